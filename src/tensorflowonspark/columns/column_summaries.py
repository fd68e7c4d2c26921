"""Summaries of columns: the number of nulls, the lengths of arrays, and the first row that shows each.

A node summarizes each batch on arrival, and the summaries of batches, splits and nodes are merged. So a program that
declares a shape gets an error before its first batch if any row of any worker does not fit.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout
from tensorflowonspark.messages import ColumnSummary, LengthRange

_SHOWN_CHARACTERS = 60  # of a value in an error, which is to stay a line

_Describe = Callable[[Sequence[pa.Array], int], str]  # takes a column's levels down to one, and a position in that


def summarize(batch: pa.RecordBatch, partition: int = 0, first_row: int = 0) -> dict[str, ColumnSummary]:
    """Return for each column the number of nulls at all levels, and the range of its arrays' lengths at each.

    The partition's number and the position of the batch's first row in it are for naming a row.

    Examples
    --------
    >>> summarize(pa.record_batch({"x": [[1.0], [1.0, 2.0]]}))["x"].lengths[0].longest_at
    'row 1 of partition 0: [1.0, 2.0]'
    >>> summarize(pa.record_batch({"x": [[1.0], [2.0, None]]}))["x"].null_at
    'row 1 of partition 0, item [1] of [2.0, None]'
    """

    def describe(levels: Sequence[pa.Array], position: int) -> str:
        row, *path = _path(levels, position)
        where, value = f"row {first_row + row} of partition {partition}", levels[0][row]
        if path:
            return f"{where}, item {''.join(f'[{index}]' for index in path)} of {_shown(value)}"
        return f"{where}: {_shown(value)}" if value.is_valid else where

    return {name: _summarize(column, describe) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _summarize(column: pa.Array, describe: _Describe) -> ColumnSummary:
    nulls, null_at = 0, ""
    ranges: list[LengthRange] = []
    levels: list[pa.Array] = []
    for level in layout.levels(column):
        levels.append(level)
        if level.null_count:
            null_at = null_at or describe(levels, pc.index(level.is_null(), True).as_py())
            nulls += level.null_count
        ranges += _length_range(levels, describe)
    return ColumnSummary(nulls, null_at, tuple(ranges))


def _length_range(levels: Sequence[pa.Array], describe: _Describe) -> list[LengthRange]:
    """Return the range of lengths at the last level, or nothing if it has no lengths."""
    lengths = layout.lengths(levels[-1])
    if lengths is None or lengths.null_count == len(lengths):
        return []
    shortest, longest = (bound.as_py() for bound in pc.min_max(lengths).values())
    shortest_at = describe(levels, pc.index(lengths, shortest).as_py())
    longest_at = shortest_at if shortest == longest else describe(levels, pc.index(lengths, longest).as_py())
    return [LengthRange(shortest, longest, shortest_at, longest_at)]


def _path(levels: Sequence[pa.Array], position: int) -> list[int]:
    """Return the row of the value at a position of the last level, and its index at each level of lists."""
    path: list[int] = []
    for level in reversed(levels[:-1]):
        ends = np.cumsum(layout.counts(level))
        parent = int(np.searchsorted(ends, position, side="right"))
        path.insert(0, position - int(ends[parent - 1]) if parent else position)
        position = parent
    return [position, *path]


def _shown(value: pa.Scalar) -> str:
    text = _text(value, _SHOWN_CHARACTERS)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _text(value: pa.Scalar, room: int) -> str:
    """Return a value as text, or enough of it to fill the room: rows can be long."""
    if not value.is_valid:
        return "None"
    if layout.is_vector(value.type):
        shown = [value["values"]] if value["type"].as_py() else [value["size"], value["indices"], value["values"]]
        texts = [_text(each, room) for each in shown]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    if layout.is_list(value.type):
        text = "["
        for each in value.values:
            if len(text) > room:
                break
            text += (", " if len(text) > 1 else "") + _text(each, room - len(text))
        return text + "]"
    try:
        plain = value.as_py()
    except (KeyError, ValueError, OverflowError):  # a year above 9999, or a time zone unknown to this host
        return f"{getattr(value, 'value', '?')} ({value.type})"
    return repr(plain[: room + 1]) if isinstance(plain, (str, bytes)) else str(plain)


def merge(summaries: Iterable[dict[str, ColumnSummary]]) -> dict[str, ColumnSummary]:
    """Return the summary of several batches or splits; of equal lengths, the first example is kept.

    Examples
    --------
    >>> first = {"x": ColumnSummary(1, "a", (LengthRange(2, 2),))}
    >>> merge([first, {"x": ColumnSummary(0, "", (LengthRange(3, 3, "b", "b"),))}])
    {'x': ColumnSummary(nulls=1, null_at='a', lengths=(LengthRange(shortest=2, longest=3, shortest_at='', \
longest_at='b'),))}
    """
    total: dict[str, ColumnSummary] = {}
    for summary in summaries:
        for name, column in summary.items():
            total[name] = _merged(total[name], column) if name in total else column
    return total


def _merged(one: ColumnSummary, other: ColumnSummary) -> ColumnSummary:
    # A level is missing if all arrays above it are empty or null.
    common = min(len(one.lengths), len(other.lengths))
    both = [_wider(a, b) for a, b in zip(one.lengths, other.lengths, strict=False)]
    rest = one.lengths[common:] or other.lengths[common:]
    return ColumnSummary(one.nulls + other.nulls, one.null_at or other.null_at, (*both, *rest))


def _wider(one: LengthRange, other: LengthRange) -> LengthRange:
    low = one if one.shortest <= other.shortest else other
    high = one if one.longest >= other.longest else other
    return LengthRange(low.shortest, high.longest, low.shortest_at, high.longest_at)
