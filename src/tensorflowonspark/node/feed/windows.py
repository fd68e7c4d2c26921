"""Windows over the rows of files, as many rows at a time as memory allows: several splits in turn, read ahead.

With a shuffle, the splits come in a new order in each epoch, several of them at a time in small chunks, and the rows of
each window are shuffled among themselves by those who take them. Where the numbers of rows are known, reading can begin
at any window; where they are not, reading shows them. The windows are the same.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import flat_columns
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.messages import ColumnSummary
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.storage.file_systems import READS_AT_ONCE

OPEN_SPLITS = 4  # that are read at the same time: network and disk wait for each other, and decoding is native code
_WINDOW_SPLITS = 256  # of a window, about: opening small files takes longer than reading them
_WINDOWS_IN_MEMORY = 4  # the current one, the next, and the copies that decoding and shuffling make


class FileSplit(Protocol):
    """A part of some files, which one worker reads."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""

    @property
    def size(self) -> int:
        """Size in bytes, by which the splits are divided."""

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows."""

    def count(self) -> int:
        """Return the number of its rows, which may need to be read."""


class Piece(NamedTuple):
    """Rows of a split: the number of the first in it, and how many follow each other."""

    split: int
    first_row: int
    rows: int

    def part(self, start: int, rows: int) -> "Piece":
        """Return some of the rows: those from one on, as many as there are of so many."""
        return Piece(self.split, self.first_row + start, min(rows, self.rows - start))


class Read(NamedTuple):
    """Rows of a split that were read."""

    split: int
    first_row: int
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        """How many they are."""
        return int(self.batch.num_rows)

    def part(self, start: int, rows: int) -> "Read":
        """Return some of the rows, as of a `Piece`."""
        return Read(self.split, self.first_row + start, self.batch.slice(start, rows))


_AnyPiece = TypeVar("_AnyPiece", Piece, Read)


class WindowPlan(NamedTuple):
    """How one epoch's windows are made: their rows, the splits' order, and the chunks in which several take turns."""

    window_rows: int
    order: Sequence[int]
    width: int  # number of splits that take turns
    chunk_rows: int
    ahead_bytes: int = 0  # of splits, as they are stored, that are read before their turn


def plan_windows(
    splits: int, seed: Sequence[int] | None, batch_rows: int, row_bytes: float, limit_bytes: int
) -> WindowPlan:
    """Return the plan of an epoch's windows, which does not depend on the numbers of rows.

    A window has a multiple of `batch_rows`, those of one or several steps, of `row_bytes` in memory each.

    Examples
    --------
    >>> plan_windows(3, None, batch_rows=10, row_bytes=8.0, limit_bytes=4000)
    WindowPlan(window_rows=120, order=range(0, 3), width=1, chunk_rows=30, ahead_bytes=250)
    """
    limit = limit_bytes / _WINDOWS_IN_MEMORY / max(1.0, row_bytes)
    plan = plan_turns(splits, seed, max(1, int(limit) // batch_rows) * batch_rows)
    return plan._replace(ahead_bytes=limit_bytes // 16)


def window_limit(limit_bytes: int, sizes: Sequence[int]) -> int:
    """Return the limit of the rows in memory with which a window has so few splits that its first batch comes soon.

    The sizes are those of the splits of all workers, so that all have the same windows.

    Examples
    --------
    >>> window_limit(1 << 30, [1000] * 10_000), window_limit(1 << 30, [1 << 30])
    (1024000, 1073741824)
    """
    mean = max(1, sum(sizes) // max(1, len(sizes)))
    return min(limit_bytes, _WINDOW_SPLITS * _WINDOWS_IN_MEMORY * mean)


def plan_turns(splits: int, seed: Sequence[int] | None, window_rows: int) -> WindowPlan:
    """Return the plan of an epoch's windows of so many rows."""
    order: Sequence[int] = range(splits)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(splits).tolist()
    return WindowPlan(window_rows, order, 1 if seed is None else OPEN_SPLITS, -(-window_rows // OPEN_SPLITS))


def window_pieces(plan: WindowPlan, rows: Sequence[int]) -> Iterator[list[Piece]]:
    """Yield what the windows of an epoch have, as `read_windows` reads it.

    Examples
    --------
    >>> [[tuple(each) for each in window] for window in window_pieces(WindowPlan(4, [0, 1], 2, 1), [3, 2])]
    [[(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)], [(0, 2, 1)]]
    """
    return _in_windows(_Turns(plan, rows), plan.window_rows)


class _Turns(Iterator[Piece]):
    """The splits in turn, each with the chunk that it has next, where their numbers of rows are known.

    `waiting` are the splits whose first turn is yet to come, and `next` the next chunks of the others.
    """

    def __init__(self, plan: WindowPlan, rows: Sequence[int]) -> None:
        self._plan = plan
        self._rows = rows
        self.waiting = iter([split for split in plan.order if rows[split]])
        self.next = deque(self._chunk(split, 0) for _, split in zip(range(plan.width), self.waiting, strict=False))

    def _chunk(self, split: int, start: int) -> Piece:
        return Piece(split, start, self._rows[split] - start).part(0, self._plan.chunk_rows)

    def __next__(self) -> Piece:
        if not self.next:
            raise StopIteration
        chunk = self.next.popleft()
        stop = chunk.first_row + chunk.rows
        if stop < self._rows[chunk.split]:
            self.next.append(self._chunk(chunk.split, stop))
        elif (following := next(self.waiting, None)) is not None:
            self.next.append(self._chunk(following, 0))
        return chunk


def check_rows(selection: Selection, summary: dict[str, ColumnSummary], split: int, name: str) -> None:
    """Check that rows of a split, which their summary names a partition, are of the kinds of the first rows.

    A column that is not is a `FeedError` with a row and the file.
    """
    try:
        selection.check(SplitManifest({}, columns=summary))
    except FeedError as error:
        raise FeedError(f"{error}; partition {split} is {name}") from error


def read_windows(
    splits: Sequence[FileSplit],
    plan: WindowPlan,
    rows: Sequence[int] | None = None,
    first_window: int = 0,
    on_count: Callable[[int, int], object] = lambda _split, _rows: None,
) -> Generator[list[Read], None, None]:
    """Yield windows of equally many rows, each by its splits; the last one may have fewer.

    For known `rows` of each split, reading can begin with a later window; `on_count` takes the number of a split and
    that of its rows, when it has been read. A file that can't be read, or has changed, is a `FeedError`.
    """
    chunks = _Chunks(splits, plan, rows, on_count)
    try:
        yield from _in_windows(chunks.after(first_window * plan.window_rows), plan.window_rows)
    finally:
        chunks.close()


def _in_windows(pieces: Iterable[_AnyPiece], window_rows: int) -> Iterator[list[_AnyPiece]]:
    """Yield windows of equally many rows, each by its splits, in the order in which these come."""
    window: dict[int, list[_AnyPiece]] = {}
    room = window_rows
    for piece in pieces:
        start = 0
        while start < piece.rows:
            part = piece.part(start, room)
            window.setdefault(part.split, []).append(part)
            start, room = start + part.rows, room - part.rows
            if not room:
                yield [each for found in window.values() for each in found]
                window, room = {}, window_rows
    if window:
        yield [each for found in window.values() for each in found]


class _Chunks:
    """The rows of some splits in chunks, several splits in turn; the next chunks are being read."""

    def __init__(
        self,
        splits: Sequence[FileSplit],
        plan: WindowPlan,
        rows: Sequence[int] | None,
        on_count: Callable[[int, int], object],
    ) -> None:
        self._splits = splits
        self._plan = plan
        self._rows = rows
        self._on_count = on_count
        self._waiting = iter([number for number in plan.order if rows is None or rows[number]])
        self._ahead: deque[_OpenSplit] = deque()  # those that come next, of which the first chunks are being read
        self._ahead_bytes = 0
        self._turns: deque[_OpenSplit] = deque()
        self._pool = ThreadPoolExecutor(READS_AT_ONCE if plan.ahead_bytes else OPEN_SPLITS, thread_name_prefix="read")

    def close(self) -> None:
        """End reading, without a wait: a pass may be abandoned where nobody can wait for a read that hangs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in (*self._turns, *self._ahead):
            each.close()

    def after(self, rows: int) -> Iterator[Read]:
        """Yield what follows the first rows."""
        left = self._pass_over(rows)
        for each in self._turns:
            each.read_on(self._pool, self._plan.chunk_rows)
        while len(self._turns) < self._plan.width and self._append_following():
            pass
        while self._turns:
            turn = self._turns.popleft()
            chunk = turn.result()
            if chunk.ended:
                self._on_count(turn.number, turn.next_row)
                turn.close()
                self._append_following()
            else:
                turn.read_on(self._pool, self._plan.chunk_rows)
                self._turns.append(turn)
            for read in chunk.rows:
                passed = min(left, read.rows)
                left -= passed
                yield read.part(passed, read.rows)

    def _pass_over(self, rows: int) -> int:
        """Take the turns of the first rows without reading them; return how many are left of the chunk that follows."""
        if not rows:
            return 0
        assert self._rows is not None
        turns = _Turns(self._plan, self._rows)
        while turns.next and turns.next[0].rows <= rows:
            rows -= next(turns).rows
        self._waiting = turns.waiting
        for chunk in turns.next:
            self._turns.append(self._open(chunk.split))
            self._turns[-1].next_row = chunk.first_row
        return rows

    def _open(self, number: int) -> "_OpenSplit":
        return _OpenSplit(number, self._splits[number], None if self._rows is None else self._rows[number])

    def _has_room(self) -> bool:
        """Return whether another split may be read ahead: each has a chunk in memory, as each of those in turn."""
        few = len(self._ahead) < max(1, OPEN_SPLITS - self._plan.width)
        return few or (len(self._ahead) < READS_AT_ONCE and self._ahead_bytes < self._plan.ahead_bytes)

    def _append_following(self) -> bool:
        """Give a turn to the next split that has rows; return whether there is one."""
        while True:
            while self._has_room() and (number := next(self._waiting, None)) is not None:
                self._ahead.append(self._open(number))
                self._ahead_bytes += self._splits[number].size
                self._ahead[-1].read_on(self._pool, self._plan.chunk_rows)
            if not self._ahead:
                return False
            found = self._ahead.popleft()
            self._ahead_bytes -= self._splits[found.number].size
            if self._rows is not None or found.result().rows:
                self._turns.append(found)
                return True
            self._on_count(found.number, 0)


class _Chunk(NamedTuple):
    rows: list[Read]
    ended: bool  # the split has no further rows


class _OpenSplit:
    """A split in its turn, which is read from a row on to its end.

    `next_row` is the one that the next chunk begins with.
    """

    def __init__(self, number: int, split: FileSplit, rows: int | None) -> None:
        self.number = number
        self.next_row = 0
        self._split = split
        self._rows = rows  # of the split; None if they are unknown until it is read
        self._batches = split.batches()
        self._rest = pa.RecordBatch.from_pylist([], pa.schema([]))
        self._position = 0  # of the first row of the rest
        self._chunk: Future[_Chunk] | None = None

    def read_on(self, pool: ThreadPoolExecutor, rows: int) -> None:
        """Begin to read the next chunk."""
        self._chunk = pool.submit(self._read, rows)

    def result(self) -> _Chunk:
        """Wait for the chunk that is being read; return it."""
        assert self._chunk is not None
        return self._chunk.result()

    def close(self) -> None:
        """Close the file, unless another thread reads it, which closes it at its end."""
        with suppress(ValueError):  # the generator runs in another thread
            self._batches.close()

    def _read(self, rows: int) -> _Chunk:
        stop = self.next_row + rows if self._rows is None else min(self.next_row + rows, self._rows)
        found: list[Read] = []
        try:
            while self._position < stop and self._has_next():
                end = self.next_row if self._position < self.next_row else stop  # rows that were passed over come first
                taken = self._rest.slice(0, end - self._position)
                if self._position >= self.next_row:
                    found.append(Read(self.number, self._position, taken))
                    self.next_row += taken.num_rows
                self._rest = self._rest.slice(taken.num_rows)
                self._position += taken.num_rows
            # The end is looked at for known rows too: there a file shows that it has changed.
            ended = (self._rows is None or self._position >= self._rows) and not self._has_next()
        except (OSError, pa.ArrowException) as error:
            raise FeedError(f"{self._split.name} can't be read: {error}") from error
        if self._rows is not None and self._position < stop:
            raise FeedError(
                f"{self._split.name} ended after {self._position} rows and should have {self._rows}: it has changed "
                "since it was listed"
            )
        if self._rows is not None and self._position >= self._rows and not ended:
            raise FeedError(
                f"{self._split.name} has more than its {self._rows} rows: it has changed since it was listed"
            )
        return _Chunk(found, ended)

    def _has_next(self) -> bool:
        while not self._rest.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._rest = flat_columns(batch)
        return True
