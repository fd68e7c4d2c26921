"""The first pass over files of unknown numbers of rows: windows as they are read, and the rows of each split.

The windows are those of `FileRows`, in the same order. So an epoch that began here can be resumed there.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple, Protocol

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, summarize
from tensorflowonspark.errors import ClusterError, FeedError
from tensorflowonspark.feed_messages import PartSummary, Split, StepGrant
from tensorflowonspark.node.feed.file_rows import OPEN_SPLITS, Read, WindowPlan, by_split, plan_windows
from tensorflowonspark.node.feed.shard import Shard

__all__ = ["CountingPass", "UncountedSplit"]

_WINDOWS_HELD = 2  # the program's, and the next; a third one is being put together


class UncountedSplit(Protocol):
    """A part of some files, of which only reading it shows the number of rows."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows."""

    def count(self) -> int:
        """Return the number of its rows."""


class CountingPass:
    """Reads the splits once, ahead of the program, and holds the windows as parts of a stream.

    Parameters
    ----------
    splits : sequence of UncountedSplit
        This worker's splits.
    row_bytes : float
        Mean size of a row in memory, as far as the first rows show it.
    limit_bytes : int
        The size that the rows in memory should not exceed.
    on_rows : callable
        Takes the number of rows read so far, after each window (in another thread).
    on_end : callable
        Takes the number of all rows, when they have been read (in another thread).
    on_error : callable
        Takes what explains why reading has ended before (in another thread).
    """

    def __init__(
        self,
        splits: Sequence[UncountedSplit],
        row_bytes: float,
        limit_bytes: int,
        on_rows: Callable[[int], object] = lambda _: None,
        on_end: Callable[[int], object] = lambda _: None,
        on_error: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._splits = splits
        self._row_bytes = row_bytes
        self._limit_bytes = limit_bytes
        self._on_rows = on_rows
        self._on_end = on_end
        self._on_error = on_error
        self._counts: dict[int, int] = {}  # by split
        self._changed = Condition()
        self._windows: dict[int, tuple[Shard, list[PartSummary]]] = {}  # that the program has not taken, by number
        self._arrived: list[int] = []  # the numbers of those that were not returned by `arrived`
        self._held = 0  # windows that have not been released
        self._rows = 0  # read so far
        self._batch_rows = 1
        self._ended = self._closed = False
        self._error = ""

    @property
    def counts(self) -> list[int] | None:
        """The number of rows of each split; None if some have not been counted."""
        counts = self._counts
        return [counts[number] for number in range(len(self._splits))] if len(counts) == len(self._splits) else None

    def count(self) -> list[int]:
        """Return the number of rows of each split; those are read that have not been counted.

        Raises
        ------
        FeedError, TFRecordError
            If a file can't be read, or has changed.
        """
        missing = [number for number in range(len(self._splits)) if number not in self._counts]
        with ThreadPoolExecutor(OPEN_SPLITS, thread_name_prefix="count") as readers:
            self._counts.update(zip(missing, readers.map(self._count, missing), strict=True))
        return [self._counts[number] for number in range(len(self._splits))]

    def _count(self, number: int) -> int:
        split = self._splits[number]
        try:
            return split.count()
        except OSError as error:
            raise FeedError(f"{split.name} can't be read: {error}") from error

    # ---- the pass

    def start(self, batch_rows: int, seed: Sequence[int] | None) -> None:
        """Begin to read.

        Parameters
        ----------
        batch_rows : int
            Rows of one batch of this worker, or of several together if they differ.
        seed : sequence of int or None
            Seed of the splits' order; None keeps their own.
        """
        self._batch_rows = batch_rows
        plan = plan_windows(len(self._splits), seed, batch_rows, self._row_bytes, self._limit_bytes)
        Thread(target=self._read, args=(plan,), daemon=True, name="read-ahead").start()

    def close(self) -> None:
        """End the pass; its rows leave memory."""
        with self._changed:
            self._closed = True
            self._windows.clear()
            self._arrived.clear()
            self._changed.notify_all()

    def arrived(self) -> tuple[tuple[int, int], ...]:
        """Return the windows that have been read since the last call, as parts (number and attempt)."""
        with self._changed:
            found, self._arrived = self._arrived, []
            return tuple((number, 0) for number in found)

    def next_grant(self, seconds: float | None = None) -> StepGrant | None:
        """Wait for the next rows, of a worker whose steps depend on no other; None if none come within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended or self._error, seconds)
            parts = self.arrived()
            if not (parts or self._ended or self._error):
                return None
            failed = "" if parts else self._error
            return StepGrant(-1, parts, flush=self._ended, end=self._ended or bool(failed), failed=failed)

    def wait_for_step(self, step: int) -> int | None:
        """Wait until the rows of a step of such a worker have been read, or no more come; return the steps until then.

        Returns
        -------
        int or None
            None if reading has ended with an error.
        """
        with self._changed:
            rows = (step + 1) * self._batch_rows
            self._changed.wait_for(lambda: self._rows >= rows or self._ended or self._error or self._closed)
            if self._error:
                return None
            return -(-self._rows // self._batch_rows) if self._ended else self._rows // self._batch_rows

    # ---- the store of a stream's parts

    def take_part(self, _feed: int, part: tuple[int, int]) -> tuple[Shard, Sequence[PartSummary], Callable[[], None]]:
        """Return a window, the summaries of its rows, and a function to call when all have been handed out."""
        with self._changed:
            shard, summaries = self._windows.pop(part[0])
        return shard, summaries, self._release

    def drop_part(self, _feed: int, part: tuple[int, int]) -> None:
        """Drop a window."""
        self.take_part(_feed, part)[2]()

    def program_waits(self, _feed: int, waits: bool) -> None:
        """Do nothing: reading goes on as long as there is room."""

    def _release(self) -> None:
        with self._changed:
            self._held -= 1
            self._changed.notify_all()

    # ---- reading, in a thread of its own

    def _read(self, plan: WindowPlan) -> None:
        try:
            with ThreadPoolExecutor(OPEN_SPLITS, thread_name_prefix="read") as pool:
                for number, window in enumerate(self._windows_of(plan, pool)):
                    self._add(number, window)
                    del window  # else it would stay in memory until the next one is complete
        except _Closed:
            return
        except Exception as error:
            text = str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
            with self._changed:
                self._error = text
                self._changed.notify_all()
            self._on_error(text)
            return
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._on_end(self._rows)

    def _windows_of(self, plan: WindowPlan, pool: ThreadPoolExecutor) -> Iterator[list[Read]]:
        window: list[Read] = []
        room = plan.window_rows
        self._wait_for_room()
        for chunk in self._chunks(plan, pool):
            for read in chunk:
                start = 0
                while start < read.batch.num_rows:
                    rows = min(room, read.batch.num_rows - start)
                    window.append(Read(read.split, read.first_row + start, read.batch.slice(start, rows)))
                    start, room = start + rows, room - rows
                    if not room:
                        yield window
                        window, room = [], plan.window_rows
                        self._wait_for_room()
        if window:
            yield window

    def _wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._held < _WINDOWS_HELD or self._closed)
            if self._closed:
                raise _Closed

    def _add(self, number: int, window: list[Read]) -> None:
        window = by_split(window)
        summaries = [
            PartSummary(
                Split.TRAIN, each.split, 0, 0, each.batch.num_rows, summarize(each.batch, each.split, each.first_row)
            )
            for each in window
        ]
        shard = Shard([[each.batch for each in window]])
        with self._changed:
            if self._closed:
                raise _Closed
            self._windows[number] = shard, summaries
            self._arrived.append(number)
            self._held += 1
            self._rows += shard.rows
            self._changed.notify_all()
        self._on_rows(self._rows)

    def _chunks(self, plan: WindowPlan, pool: ThreadPoolExecutor) -> Iterator[list[Read]]:
        """Yield the rows in chunks, several splits in turn, in the order of `interleave`; the next are being read."""
        waiting = iter(plan.order)
        ahead: deque[_Turn] = deque()

        def following() -> _Turn | None:
            """Return the next split that has rows."""
            while True:
                while len(ahead) <= OPEN_SPLITS - plan.width and (number := next(waiting, None)) is not None:
                    ahead.append(_Turn(number, _OpenSplit(number, self._splits[number]), plan.chunk_rows, pool))
                if not ahead:
                    return None
                turn = ahead.popleft()
                if turn.chunk.result().rows:
                    return turn
                self._counts[turn.split] = 0

        turns = [following() for _ in range(plan.width)]
        while current := [turn for turn in turns if turn is not None]:
            turns = []
            for turn in current:
                chunk = turn.chunk.result()
                if not chunk.ended:
                    turn.read_on()
                yield chunk.rows
                if chunk.ended:
                    self._counts[turn.split] = turn.opened.position
                turns.append(following() if chunk.ended else turn)


class _Closed(Exception):
    """The pass has been closed."""


class _Chunk(NamedTuple):
    rows: list[Read]
    ended: bool  # the split has no further rows


class _OpenSplit:
    """A split that is read from begin to end."""

    def __init__(self, number: int, split: UncountedSplit) -> None:
        self.position = 0  # of the next row
        self._number = number
        self._name = split.name
        self._batches = split.batches()
        self._rest = pa.RecordBatch.from_pylist([], pa.schema([]))

    def read(self, rows: int) -> _Chunk:
        """Return the next rows, fewer at the split's end."""
        found: list[Read] = []
        try:
            while rows and self._has_next():
                taken = self._rest.slice(0, rows)
                found.append(Read(self._number, self.position, taken))
                self._rest = self._rest.slice(taken.num_rows)
                self.position += taken.num_rows
                rows -= taken.num_rows
            return _Chunk(found, not self._has_next())
        except (OSError, pa.ArrowException) as error:
            raise FeedError(f"{self._name} can't be read: {error}") from error

    def _has_next(self) -> bool:
        while not self._rest.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._rest = flat_columns(batch)
        return True


@dataclass(eq=False)
class _Turn:
    """A split in its turn: the chunk that it yields next is being read."""

    split: int
    opened: _OpenSplit
    chunk_rows: int
    pool: ThreadPoolExecutor
    chunk: Future[_Chunk] = field(init=False)

    def __post_init__(self) -> None:
        self.read_on()

    def read_on(self) -> None:
        """Begin to read the next chunk."""
        self.chunk = self.pool.submit(self.opened.read, self.chunk_rows)
