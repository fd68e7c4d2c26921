"""What is in a column: its nulls and the lengths of its arrays, and the first row that shows each.

A summary is made of each batch as it comes to the node, and merged over batches, parts and nodes, so that a program
that asks for a shape learns at once, and before it has seen a row, whether all rows of all workers have it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout

__all__ = ["ColumnSummary", "LengthRange", "merge", "summarize"]


@dataclass(frozen=True)
class LengthRange:
    """The shortest and the longest of a column's arrays at one level of nesting, and where each was seen first."""

    shortest: int
    longest: int
    shortest_at: str = ""
    longest_at: str = ""


@dataclass(frozen=True)
class ColumnSummary:
    """What is in one column: its nulls at any level, and its arrays' lengths at each, from the outermost on."""

    nulls: int = 0
    null_at: str = ""
    lengths: tuple[LengthRange, ...] = ()


_SHOWN_CHARACTERS = 60

_Teller = Callable[[Sequence[pa.Array], int], str]  # takes the levels of a column down to one, and a place in that one


def summarize(batch: pa.RecordBatch, partition: int = 0, first_row: int = 0) -> dict[str, ColumnSummary]:
    """Return, for each column, its nulls at any level and the range of its arrays' lengths at each.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Some rows of a partition.
    partition, first_row : int
        Where they stand, for naming one.

    Examples
    --------
    >>> summarize(pa.record_batch({"x": [[1.0], [1.0, 2.0]]}))["x"].lengths[0].longest_at
    'row 1 of partition 0: [1.0, 2.0]'
    >>> summarize(pa.record_batch({"x": [[1.0], [2.0, None]]}))["x"].null_at
    'row 1 of partition 0, item [1] of [2.0, None]'
    """

    def told(levels: Sequence[pa.Array], place: int) -> str:
        row, *path = _path(levels, place)
        item = f", item {''.join(f'[{index}]' for index in path)} of " if path else ": "
        return f"row {first_row + row} of partition {partition}{item}{_shown(levels[0][row])}"

    return {name: _summarize(column, told) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _summarize(column: pa.Array, told: _Teller) -> ColumnSummary:
    nulls, null_at = 0, ""
    extents: list[LengthRange] = []
    levels: list[pa.Array] = []
    for level in layout.levels(column):
        levels.append(level)
        if level.null_count:
            null_at = null_at or told(levels, pc.index(level.is_null(), True).as_py())
            nulls += level.null_count
        extents += _extent(levels, told)
    return ColumnSummary(nulls, null_at, tuple(extents))


def _extent(levels: Sequence[pa.Array], told: _Teller) -> list[LengthRange]:
    """Return the lengths at the last level, if there are any."""
    lengths = layout.lengths(levels[-1])
    if lengths is None or lengths.null_count == len(lengths):
        return []
    shortest, longest = (bound.as_py() for bound in pc.min_max(lengths).values())
    shortest_at = told(levels, pc.index(lengths, shortest).as_py())
    longest_at = shortest_at if shortest == longest else told(levels, pc.index(lengths, longest).as_py())
    return [LengthRange(shortest, longest, shortest_at, longest_at)]


def _path(levels: Sequence[pa.Array], place: int) -> list[int]:
    """Return where the value at a place of the last level stands: its row, and its index at each level of lists."""
    path: list[int] = []
    for level in reversed(levels[:-1]):
        ends = np.cumsum(layout.counts(level))
        parent = int(np.searchsorted(ends, place, side="right"))
        path.insert(0, place - int(ends[parent - 1]) if parent else place)
        place = parent
    return [place, *path]


def _shown(value: pa.Scalar) -> str:
    text = _text(value, _SHOWN_CHARACTERS)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _text(value: pa.Scalar, room: int) -> str:
    """Return a value as text, or as much of it as is needed to fill the room: rows can be long."""
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
    except (KeyError, ValueError, OverflowError):  # a year above 9999, or a time zone that this host does not know
        return f"{getattr(value, 'value', '?')} ({value.type})"
    return repr(plain[: room + 1]) if isinstance(plain, (str, bytes)) else str(plain)


def merge(summaries: Iterable[dict[str, ColumnSummary]]) -> dict[str, ColumnSummary]:
    """Return the summary of several batches or parts together; of equals, the first one's example stays.

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
    # A level is missing where all arrays that could have it are empty or null.
    common = min(len(one.lengths), len(other.lengths))
    both = [_wider(a, b) for a, b in zip(one.lengths, other.lengths, strict=False)]
    rest = one.lengths[common:] or other.lengths[common:]
    return ColumnSummary(one.nulls + other.nulls, one.null_at or other.null_at, (*both, *rest))


def _wider(one: LengthRange, other: LengthRange) -> LengthRange:
    low = one if one.shortest <= other.shortest else other
    high = one if one.longest >= other.longest else other
    return LengthRange(low.shortest, high.longest, low.shortest_at, high.longest_at)
