"""Rows of files that are read anew in each epoch, and never stored: data of any size in bounded memory.

An epoch is a sequence of windows, which fit into the memory limit. While the program takes the rows of one, the next is
read. With a shuffle, the splits come in a new order in each epoch, several of them at a time in small chunks, and the
rows of each window are shuffled among themselves. The numbers of rows are known before (Parquet's footers have them;
those of TFRecord files are counted in the first epoch, see `counting.py`), so all workers take the same number of
steps, and an epoch can begin at any step without reading the windows before.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import flat_columns, summarize
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.messages import ColumnSummary
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Segment, Shard

__all__ = [
    "OPEN_SPLITS",
    "Chunk",
    "CountedSplit",
    "FileRows",
    "Read",
    "WindowPlan",
    "by_split",
    "check_rows",
    "interleave",
    "plan_windows",
    "windows",
]

OPEN_SPLITS = 4  # that are read at the same time: network and disk wait for each other, and decoding is native code
_WINDOWS_IN_MEMORY = 4  # the current one, the next, and the copies that decoding and shuffling make


class CountedSplit(Protocol):
    """A part of some files, with a known number of rows."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a split."""

    split: int
    start: int
    stop: int


def interleave(rows: Sequence[int], order: Sequence[int], width: int, chunk_rows: int) -> Iterator[Chunk]:
    """Yield all rows of some splits in chunks, several splits in turn.

    Parameters
    ----------
    rows : sequence of int
        Number of rows of each split.
    order : sequence of int
        The splits' numbers.
    width : int
        Number of splits that take turns.
    chunk_rows : int
        Rows of one turn.

    Examples
    --------
    >>> [(each.split, each.start, each.stop) for each in interleave([3, 2, 2], [2, 0, 1], width=2, chunk_rows=2)]
    [(2, 0, 2), (0, 0, 2), (1, 0, 2), (0, 2, 3)]
    """
    waiting = iter([number for number in order if rows[number]])
    current = [[number, 0] for _, number in zip(range(width), waiting, strict=False)]
    while current:
        for each in list(current):
            number, start = each
            stop = min(start + chunk_rows, rows[number])
            yield Chunk(number, start, stop)
            each[1] = stop
            if stop == rows[number]:
                following = next(waiting, None)
                if following is None:
                    current.remove(each)
                else:
                    each[:] = [following, 0]


def windows(chunks: Iterable[Chunk], window_rows: int) -> Iterator[list[Chunk]]:
    """Yield chunks in windows of equally many rows; the last one may have fewer.

    Examples
    --------
    >>> for window in windows([Chunk(0, 0, 5), Chunk(1, 0, 2)], 4):
    ...     print([(each.split, each.start, each.stop) for each in window])
    [(0, 0, 4)]
    [(0, 4, 5), (1, 0, 2)]
    """
    window: list[Chunk] = []
    room = window_rows
    for chunk in chunks:
        start = chunk.start
        while start < chunk.stop:
            stop = min(chunk.stop, start + room)
            window.append(Chunk(chunk.split, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield window
                window, room = [], window_rows
    if window:
        yield window


class WindowPlan(NamedTuple):
    """How one epoch's windows are made: their rows, the splits' order, and the chunks in which several take turns."""

    window_rows: int
    order: Sequence[int]
    width: int  # number of splits that take turns
    chunk_rows: int


def plan_windows(
    splits: int, seed: Sequence[int] | None, batch_rows: int, row_bytes: float, limit_bytes: int
) -> WindowPlan:
    """Return the plan of an epoch's windows, which does not depend on the numbers of rows.

    Parameters
    ----------
    splits : int
        Number of splits.
    seed : sequence of int or None
        Seed of the order; None keeps the rows' own order.
    batch_rows : int
        Rows of one or several steps; a window has a multiple of them.
    row_bytes : float
        Mean size of a row in memory.
    limit_bytes : int
        The size that the rows in memory should not exceed.

    Examples
    --------
    >>> plan_windows(3, None, batch_rows=10, row_bytes=8.0, limit_bytes=4000)
    WindowPlan(window_rows=120, order=range(0, 3), width=1, chunk_rows=30)
    """
    limit = limit_bytes / _WINDOWS_IN_MEMORY / max(1.0, row_bytes)
    window_rows = max(1, int(limit) // batch_rows) * batch_rows
    order: Sequence[int] = range(splits)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(splits).tolist()
    return WindowPlan(window_rows, order, 1 if seed is None else OPEN_SPLITS, -(-window_rows // OPEN_SPLITS))


@dataclass
class FileRows:
    """The splits of some files that are one worker's.

    Attributes
    ----------
    splits : sequence of CountedSplit
        The splits.
    row_bytes : float
        Mean size of a row in memory, as far as the first rows show it.
    limit_bytes : int
        The size that the rows in memory should not exceed.
    """

    splits: Sequence[CountedSplit]
    row_bytes: float
    limit_bytes: int
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum(split.rows for split in self.splits)

    def bytes_per_row(self, names: Iterable[str]) -> float:  # noqa: ARG002 - all columns that are read are in memory
        """Return the mean size of a row, in bytes."""
        return self.row_bytes

    def segments(
        self, selection: Selection, seed: Sequence[int] | None, batch_rows: int, first_row: int
    ) -> Generator[Segment, None, None]:
        """Yield the windows of one epoch, from that of a row on (`Epochs`).

        Raises
        ------
        FeedError
            If a file can't be read, has changed, or has values of another kind than the first rows.
        """
        plan = plan_windows(len(self.splits), seed, batch_rows, self.row_bytes, self.limit_bytes)
        window_rows = plan.window_rows
        chunks = interleave([split.rows for split in self.splits], plan.order, plan.width, plan.chunk_rows)
        first_window = first_row // window_rows
        with _Readers(self.splits) as readers:
            reading: Future[list[Read]] | None = None
            for number, window in enumerate(_with_next(windows(chunks, window_rows))):
                current, following = window
                if number < first_window:
                    continue
                reading = reading or readers.read(current)
                shard = self._shard(selection, reading.result())
                reading = readers.read(following) if following else None
                rows = np.arange(shard.rows)
                if seed is not None:
                    rows = np.random.default_rng([*seed, number]).permutation(shard.rows)
                yield Segment(number * window_rows, shard.reader(selection.kinds), rows)

    def _shard(self, selection: Selection, window: "list[Read]") -> Shard:
        """Return a window's rows; refuse values of another kind than the first rows have."""
        for each in window:
            name = self.splits[each.split].name
            check_rows(selection, summarize(each.batch, each.split, each.first_row), each.split, name)
        return Shard([[each.batch for each in window]])


def check_rows(selection: Selection, summary: dict[str, ColumnSummary], split: int, name: str) -> None:
    """Check that rows of a split, which their summary names a partition, are of the kinds of the first rows.

    Raises
    ------
    FeedError
        If a column is not; the error names it, a row, and the file.
    """
    try:
        selection.check(SplitManifest({}, columns=summary))
    except FeedError as error:
        raise FeedError(f"{error}; partition {split} is {name}") from error


def _with_next(found: Iterator[list[Chunk]]) -> Iterator[tuple[list[Chunk], list[Chunk] | None]]:
    current = next(found, None)
    while current is not None:
        following = next(found, None)
        yield current, following
        current = following


@dataclass(frozen=True)
class Read:
    """Rows that were read: the split, the number of the first in it, and the batch."""

    split: int
    first_row: int
    batch: pa.RecordBatch


def by_split(window: Sequence[Read]) -> list[Read]:
    """Return the rows of a window by their splits, in the order in which these come."""
    of_split: dict[int, list[Read]] = {}
    for each in window:
        of_split.setdefault(each.split, []).append(each)
    return [each for found in of_split.values() for each in found]


class _Readers:
    """Reads windows in background threads: one for the order, and some for splits at the same time."""

    def __init__(self, splits: Sequence[CountedSplit]) -> None:
        self._splits = splits
        self._open: dict[int, _OpenSplit] = {}
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._pool = ThreadPoolExecutor(OPEN_SPLITS, thread_name_prefix="read")

    def __enter__(self) -> "_Readers":
        return self

    def __exit__(self, *_: object) -> None:
        # Without a wait: a pass may be abandoned where nobody can wait, and a read that hangs must not hold it up.
        self._ahead.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in list(self._open.values()):
            each.close()

    def read(self, window: list[Chunk]) -> Future[list[Read]]:
        """Start to read a window, after the one before."""
        return self._ahead.submit(self._read, window)

    def _read(self, window: list[Chunk]) -> list[Read]:
        of_split: dict[int, list[Chunk]] = {}
        for chunk in window:
            of_split.setdefault(chunk.split, []).append(chunk)
        jobs = [self._pool.submit(self._take, number, chunks) for number, chunks in of_split.items()]
        return [each for job in jobs for each in job.result()]

    def _take(self, number: int, chunks: Sequence[Chunk]) -> list[Read]:
        split = self._splits[number]
        opened = self._open.get(number)
        if opened is None:
            opened = self._open[number] = _OpenSplit(split)
        try:
            found = [
                Read(number, first_row, batch)
                for chunk in chunks
                for first_row, batch in opened.take(chunk.start, chunk.stop)
            ]
        except (OSError, pa.ArrowException) as error:
            raise FeedError(f"{split.name} can't be read: {error}") from error
        if chunks[-1].stop == split.rows:
            opened.close()
            del self._open[number]
        return found


class _OpenSplit:
    """A split that is read from begin to end."""

    def __init__(self, split: CountedSplit) -> None:
        self._split = split
        self._batches = split.batches()
        self._rest: pa.RecordBatch | None = None
        self._position = 0  # of the next row

    def take(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows with numbers in a range, and the number of each batch's first; rows before are skipped."""
        while self._position < stop:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    raise FeedError(
                        f"{self._split.name} ended after {self._position} rows and should have {self._split.rows}: it "
                        "has changed since it was listed"
                    )
                self._rest = flat_columns(self._rest)
            end = start if self._position < start else stop
            taken = min(self._rest.num_rows, end - self._position)
            if self._position >= start:
                yield self._position, self._rest.slice(0, taken)
            self._rest = self._rest.slice(taken)
            self._position += taken

    def close(self) -> None:
        """Close the file, unless another thread reads it, which closes it at its end."""
        with suppress(ValueError):  # the generator runs in another thread
            self._batches.close()
