"""A node's rows of one split of a feed, or of one part of a stream: found by their number, gathered into arrays."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark import columns
from tensorflowonspark.columns import Array, Kind, Ragged

__all__ = ["Reader", "Shard"]

Numbers = npt.NDArray[np.int64]


class Shard:
    """Rows in the order in which they came, as Arrow batches.

    Examples
    --------
    >>> shard = Shard([[pa.record_batch({"x": [0, 1]})], [pa.record_batch({"x": [2, 3, 4]})]])
    >>> reader = shard.reader({"x": Kind(np.dtype("int64"))})
    >>> shard.rows, reader.take(np.array([4, 0, 3]))["x"]
    (5, array([4, 0, 3]))
    """

    def __init__(self, parts: Iterable[Sequence[pa.RecordBatch]]) -> None:
        self.batches = [batch for part in parts for batch in part if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self._starts[-1])

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """How many bytes a row's values in these columns take, on the average."""
        names = list(names)
        return float(sum(batch.select(names).nbytes for batch in self.batches) / max(1, self.rows))

    def slices(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, without copying them."""
        for first, batch in zip(self._starts, self.batches, strict=False):
            low, high = max(start, int(first)), min(stop, int(first) + batch.num_rows)
            if low < high:
                yield batch.slice(low - int(first), high - low)

    def reader(self, kinds: Mapping[str, Kind]) -> "Reader":
        """Return what gathers rows as arrays of these kinds, by column."""
        return Reader(self.batches, self._starts, kinds)


@dataclass(frozen=True)
class _Places:
    """Where rows stand that were asked for by number: sorted by batch, and the way back to the order asked for."""

    pieces: tuple[tuple[int, Numbers], ...]  # (batch, the rows' numbers in it)
    inverse: Numbers


class Reader:
    """Gathers rows: numbers straight from where they lie in memory, everything else by Arrow."""

    def __init__(self, batches: Sequence[pa.RecordBatch], starts: Numbers, kinds: Mapping[str, Kind]) -> None:
        self._starts = starts
        self._kinds = kinds
        self._columns = {name: [batch.column(name) for batch in batches] for name in kinds}
        self._views: dict[str, list[Array]] = {}
        for name, kind in kinds.items():
            views = [columns.view(column, kind) for column in self._columns[name]]
            if all(each is not None for each in views):
                self._views[name] = [each for each in views if each is not None]

    def take(self, numbers: Numbers) -> dict[str, Array | Ragged]:
        """Return rows by their numbers, in that order; a run of neighbours costs no copy where types allow."""
        if not len(numbers):
            return {name: columns.zeros(0, kind) for name, kind in self._kinds.items()}
        homes = np.searchsorted(self._starts, numbers, side="right") - 1
        if homes[0] == homes[-1] and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
            home, start = int(homes[0]), int(numbers[0] - self._starts[homes[0]])
            return {name: self._run(name, home, start, start + len(numbers)) for name in self._kinds}
        places = self._places(numbers, homes)
        return {name: self._gather(name, places) for name in self._kinds}

    def _places(self, numbers: Numbers, homes: Numbers) -> _Places:
        order = np.argsort(homes, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        used, firsts = np.unique(homes[order], return_index=True)
        groups = np.split(numbers[order], firsts[1:])
        return _Places(
            tuple((int(home), group - self._starts[home]) for home, group in zip(used, groups, strict=True)), inverse
        )

    def _run(self, name: str, home: int, start: int, stop: int) -> Array | Ragged:
        kind = self._kinds[name]
        if name in self._views:
            return self._views[name][home][start:stop].astype(kind.dtype, copy=False)
        return columns.to_array(self._columns[name][home].slice(start, stop - start), kind)

    def _gather(self, name: str, places: _Places) -> Array | Ragged:
        kind = self._kinds[name]
        if name not in self._views:
            pieces = [self._columns[name][home].take(pa.array(local)) for home, local in places.pieces]
            taken = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces).take(pa.array(places.inverse))
            return columns.to_array(taken, kind)
        views = self._views[name]
        # Row by row from each batch into one array, then once more into the order asked for: two copies by numpy's
        # take are several times faster than one by an index on the left of an assignment.
        grouped = np.empty((len(places.inverse), *views[0].shape[1:]), views[0].dtype)
        stop = 0
        for home, local in places.pieces:
            start, stop = stop, stop + len(local)
            views[home].take(local, axis=0, out=grouped[start:stop], mode="clip")
        ordered = grouped if len(places.pieces) == 1 else grouped.take(places.inverse, axis=0)
        return ordered.astype(kind.dtype, copy=False)
