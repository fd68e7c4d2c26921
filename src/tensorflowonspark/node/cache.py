"""What a node keeps of the rows that it was fed: Arrow IPC files on the executor's disk, mapped into memory.

The files have no name: they are gone with the process, whatever it dies of.
"""

import mmap
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns import merge, summarize
from tensorflowonspark.messages import ColumnSummary, PartSummary

__all__ = ["Cache", "Shard"]


class Cache:
    """The parts that were stored, each one attempt at one partition; which of them count is said later.

    Parameters
    ----------
    directory : str
        Where its files are, on a disk with room for the rows.
    number : int
        This node's number.
    """

    def __init__(self, directory: str, number: int) -> None:
        self._directory = directory
        self._number = number
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, int, int], list[pa.RecordBatch]] = {}

    def store(
        self, feed: int, partition: int, attempt: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
    ) -> PartSummary:
        """Write a part; it counts as stored only when all its batches came."""
        rows = 0
        columns: dict[str, ColumnSummary] = {}
        with tempfile.TemporaryFile(dir=self._directory) as file:
            with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
                    columns = merge((columns, summarize(batch)))
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        with self._lock:
            self._parts[feed, partition, attempt] = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        return PartSummary(partition, attempt, self._number, rows, columns, schema.serialize().to_pybytes())

    def shard(self, feed: int, parts: Iterable[tuple[int, int]]) -> "Shard":
        """Return the rows of the parts that count, in the order given, and drop all other parts of that feed."""
        counted = [(feed, *part) for part in parts]
        with self._lock:
            for key in [key for key in self._parts if key[0] == feed and key not in counted]:
                del self._parts[key]
            return Shard(self._parts[key] for key in counted if key in self._parts)

    def drop(self, feed: int) -> None:
        """Forget a feed's rows; views that are still in use stay valid."""
        with self._lock:
            for key in [key for key in self._parts if key[0] == feed]:
                del self._parts[key]


class Shard:
    """A node's rows of one feed, found by their number.

    Examples
    --------
    >>> shard = Shard([[pa.record_batch({"x": [0, 1]})], [pa.record_batch({"x": [2, 3, 4]})]])
    >>> shard.rows, shard.take(np.array([4, 0, 3]), ["x"])["x"].to_pylist()
    (5, [4, 0, 3])
    """

    def __init__(self, parts: Iterable[list[pa.RecordBatch]]) -> None:
        self._batches = [batch for part in parts for batch in part if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self._starts[-1])

    def bytes_per_row(self, names: Sequence[str]) -> float:
        """How many bytes a row has in these columns, on average."""
        return float(sum(batch.select(names).nbytes for batch in self._batches) / max(1, self.rows))

    def take(self, numbers: npt.NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """Return columns of rows by their numbers, in that order; a run of neighbours costs no copy."""
        homes = np.searchsorted(self._starts, numbers, side="right") - 1
        if homes[0] == homes[-1] and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
            return self._batches[homes[0]].select(names).slice(int(numbers[0] - self._starts[homes[0]]), len(numbers))
        order = np.argsort(homes, kind="stable")
        pieces = []
        for home in np.unique(homes):
            local = numbers[order][homes[order] == home] - self._starts[home]
            pieces.append(self._batches[home].select(names).take(pa.array(local)))
        return _concatenated(pieces).take(pa.array(np.argsort(order, kind="stable")))


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    columns = [pa.concat_arrays(columns) for columns in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
