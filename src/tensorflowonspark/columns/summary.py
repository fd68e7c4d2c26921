"""What is in a column: its nulls and the lengths of its arrays, and the first row that shows each.

A summary is made of each batch as it comes to the node, and merged over batches, parts and nodes, so that a program
that asks for a shape learns at once, and before it has seen a row, whether all rows of all workers have it.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout
from tensorflowonspark.parts import ColumnSummary, Extent

__all__ = ["merge", "summarize"]

_SHOWN_CHARACTERS = 60


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
    """

    def told(column: pa.Array, row: int) -> str:
        value = str(column[row].as_py())
        shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}..."
        return f"row {first_row + row} of partition {partition}: {shown}"

    return {name: _summarize(column, told) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _summarize(column: pa.Array, told: "layout.Teller") -> ColumnSummary:
    nulls, null_at = 0, ""
    extents: list[Extent] = []
    for level, rows in layout.levels(column):
        if level.null_count:
            if not nulls:
                null_at = told(column, _row(rows, int(np.argmax(level.is_null().to_numpy(zero_copy_only=False)))))
            nulls += level.null_count
        lengths = layout.lengths(level)
        if lengths is None:
            continue
        bounds = pc.min_max(lengths)
        shortest, longest = bounds["min"].as_py(), bounds["max"].as_py()
        if shortest is not None:
            at = [told(column, _row(rows, pc.index(lengths, bound).as_py())) for bound in (shortest, longest)]
            extents.append(Extent(shortest, longest, *at))
    return ColumnSummary(nulls, null_at, tuple(extents))


def _row(rows: "layout.Parents", index: int) -> int:
    """Return the row in which the value of some number at some level stands."""
    for parents in reversed(rows):
        index = parents[index].as_py()
    return index


def merge(summaries: Iterable[dict[str, ColumnSummary]]) -> dict[str, ColumnSummary]:
    """Return the summary of several batches or parts together; of equals, the first one's example stays.

    Examples
    --------
    >>> merge([{"x": ColumnSummary(1, "a", (Extent(2, 2),))}, {"x": ColumnSummary(0, "", (Extent(3, 3, "b", "b"),))}])
    {'x': ColumnSummary(nulls=1, null_at='a', lengths=(Extent(shortest=2, longest=3, shortest_at='', \
longest_at='b'),))}
    """
    total: dict[str, ColumnSummary] = {}
    for summary in summaries:
        for name, column in summary.items():
            total[name] = _merged(total[name], column) if name in total else column
    return total


def _merged(one: ColumnSummary, other: ColumnSummary) -> ColumnSummary:
    longer, shorter = sorted((one.lengths, other.lengths), key=len, reverse=True)
    both = [_wider(a, b) for a, b in zip(one.lengths, other.lengths, strict=False)]
    return ColumnSummary(one.nulls + other.nulls, one.null_at or other.null_at, (*both, *longer[len(shorter) :]))


def _wider(one: Extent, other: Extent) -> Extent:
    low = one if one.shortest <= other.shortest else other
    high = one if one.longest >= other.longest else other
    return Extent(low.shortest, high.longest, low.shortest_at, high.longest_at)
