"""A node's rows of one split of a feed, or of one part of a stream, gathered into arrays by row number."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark import columns
from tensorflowonspark.columns import Array, Kind, Ragged
from tensorflowonspark.node.feed.order import Mask, Numbers, Order, row_order

if TYPE_CHECKING:
    from tensorflowonspark.node.feed.selection import Selection

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]  # an array of a shape and a dtype, of any values

# Of shuffled rows, enough from each batch to make the cost per batch and column small, in few enough bytes to stay in
# the CPU's cache and to add little to a process's memory.
_ROWS_OF_BATCH = 400
_STRETCH_BYTES = 8 << 20


class Shard:
    """Rows in order of arrival, as Arrow batches.

    Examples
    --------
    >>> shard = Shard([[pa.record_batch({"x": [0, 1]})], [pa.record_batch({"x": [2, 3, 4]})]])
    >>> reader = shard.reader({"x": Kind(np.dtype("int64"))})
    >>> shard.rows, reader.take(np.array([4, 0, 3]))["x"]
    (5, array([4, 0, 3]))
    """

    def __init__(
        self,
        parts: Iterable[Sequence[pa.RecordBatch]],
        left: Mask | None = None,
        order: Order | None = None,
    ) -> None:
        self._left = left  # which rows a pass has
        self._order = order  # of a pass, in place of one by its seed
        self.batches = [batch for part in parts for batch in part if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """Return the mean size of a row's values in some columns, in bytes."""
        names = list(names)
        return float(sum(batch.select(names).nbytes for batch in self.batches) / max(1, self.rows))

    def slices(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of numbers, without a copy."""
        for first, batch in zip(self._starts, self.batches, strict=False):
            low, high = max(start, int(first)), min(stop, int(first) + batch.num_rows)
            if low < high:
                yield batch.slice(low - int(first), high - low)

    def reader(self, kinds: Mapping[str, Kind]) -> "Reader":
        """Return a reader that gathers rows as arrays of these kinds, by column."""
        return Reader(self.batches, self._starts, kinds)

    def window_rows(self, batch_rows: int) -> int:  # noqa: ARG002 - for rows that come in windows
        """Return 0: an epoch's order is one of all rows."""
        return 0

    def only(self, left: Mask) -> "Shard":
        """Return those rows that are left to take in an epoch."""
        return Shard([self.batches], left)

    def in_order(self, order: Order) -> "Shard":
        """Return those of these numbers, which each pass takes in this order."""
        return Shard([self.batches], order=order)

    def segments(
        self,
        selection: "Selection",
        seed: Sequence[int] | None,
        batch_rows: int,  # noqa: ARG002 - for rows that come in several segments
        first_row: int,  # noqa: ARG002
    ) -> Generator["Segment", None, None]:
        """Yield the rows of one epoch as one segment, in their own order or fully shuffled (`Epochs`)."""
        order = row_order(self.rows, seed, left=self._left) if self._order is None else self._order
        yield Segment(0, self.reader(selection.kinds), order)


@dataclass(frozen=True)
class Segment:
    """Rows of consecutive steps of an epoch: the number of rows before, and the rows' order in a reader."""

    first_row: int
    reader: "Reader"
    order: Order


class Reader:
    """Gathers rows: numeric columns directly from Arrow's memory, others by Arrow.

    `starts` has the number of the first row of each batch, and the number of all rows.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], starts: Numbers, kinds: Mapping[str, Kind]) -> None:
        self._starts = starts
        self._kinds = kinds
        self._columns = {name: [batch.column(name) for batch in batches] for name in kinds}
        self._views: dict[str, list[Array]] = {}
        for name, kind in kinds.items():
            views = [columns.view(column, kind) for column in self._columns[name]]
            if all(each is not None for each in views):
                self._views[name] = [each for each in views if each is not None]

    def take(self, numbers: Numbers, empty: Allocate = np.empty) -> dict[str, Array | Ragged]:
        """Return rows by their numbers, in that order; consecutive rows are not copied if their types allow."""
        if not len(numbers):
            return {name: columns.zeros(0, kind) for name, kind in self._kinds.items()}
        low, high = self._span(numbers)
        if low == high and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
            start = int(numbers[0] - self._starts[low])
            return {name: self._run(name, low, start, start + len(numbers)) for name in self._kinds}
        groups, inverse = self._index(numbers, low, high)
        return {name: self._gather(name, groups, inverse, empty) for name in self._kinds}

    def stretch(self, numbers: Numbers) -> int:
        """Return how many rows to gather at once, these and those that follow them in a pass.

        They are more than these if these are few from each of many batches: a call for each batch and column would cost
        more than its rows.
        """
        low, high = self._span(numbers)
        wanted = _ROWS_OF_BATCH * (high - low + 1)
        if low == high or wanted <= len(numbers):
            return len(numbers)
        return len(numbers) * max(1, int(min(wanted, _STRETCH_BYTES / self._row_bytes)) // len(numbers))

    @cached_property
    def _row_bytes(self) -> float:
        """The mean size of a row's values, as they are stored and once gathered."""
        stored = sum(column.nbytes for each in self._columns.values() for column in each) / max(1, self._starts[-1])
        gathered = sum(prod(kind.inner) * kind.dtype.itemsize for kind in self._kinds.values())
        return float(max(1, stored + gathered))

    def _span(self, numbers: Numbers) -> tuple[int, int]:
        """Return the first and the last batch that has some of the rows."""
        low, high = np.searchsorted(self._starts, [numbers.min(), numbers.max()], side="right") - 1
        return int(low), int(high)

    def _index(self, numbers: Numbers, low: int, high: int) -> tuple[list[tuple[int, Numbers]], Numbers]:
        """Return the rows' positions in each batch, and the permutation that restores the requested order."""
        if low == high:
            return [(low, numbers - self._starts[low])], np.arange(len(numbers))
        owners = (np.searchsorted(self._starts, numbers, side="right") - 1).astype(np.min_scalar_type(high))
        order = np.argsort(owners, kind="stable")  # by radix for up to 65,536 batches, ten times as fast as by number
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        ordered = numbers.take(order)
        bounds = np.searchsorted(owners.take(order), np.arange(low, high + 2)).tolist()
        groups = [
            (batch, ordered[start:stop] - self._starts[batch])
            for batch, (start, stop) in enumerate(pairwise(bounds), low)
            if start < stop
        ]
        return groups, inverse

    def _run(self, name: str, batch: int, start: int, stop: int) -> Array | Ragged:
        kind = self._kinds[name]
        if name in self._views:
            return columns.convert(self._views[name][batch][start:stop], kind)
        return columns.to_array(self._columns[name][batch].slice(start, stop - start), kind)

    def _gather(
        self, name: str, groups: Sequence[tuple[int, Numbers]], inverse: Numbers, empty: Allocate
    ) -> Array | Ragged:
        kind = self._kinds[name]
        if name not in self._views:
            pieces = [self._columns[name][batch].take(pa.array(local)) for batch, local in groups]
            taken = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces).take(pa.array(inverse))
            return columns.to_array(taken, kind)
        views = self._views[name]
        # Row by row from each batch into one array, then once more into the requested order: two copies by numpy's
        # take are several times faster than one by an index on the left of an assignment.
        shape = len(inverse), *views[0].shape[1:]
        gathered = empty(shape, views[0].dtype)
        stop = 0
        for batch, local in groups:
            start, stop = stop, stop + len(local)
            views[batch].take(local, axis=0, out=gathered[start:stop], mode="clip")
        if len(groups) > 1:
            gathered = gathered.take(inverse, axis=0, out=empty(shape, gathered.dtype), mode="clip")
        if gathered.dtype == kind.dtype:
            return gathered
        return columns.convert(gathered, kind, empty(shape, kind.dtype))
