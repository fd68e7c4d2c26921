"""The first pass over files of unknown numbers of rows: windows as they are read, and the rows of each split.

The windows are those of `FileRows`, in the same order. So an epoch that began here can be resumed there.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Condition, Thread

from tensorflowonspark.columns import summarize
from tensorflowonspark.errors import ClusterError, FeedError
from tensorflowonspark.feed_messages import FeedId, PartId, PartSummary, Split, StepGrant, StoredPart
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.windows import (
    FileSplit,
    Read,
    WindowPlan,
    plan_windows,
    read_windows,
)
from tensorflowonspark.storage.file_systems import READS_AT_ONCE

_WINDOWS_HELD = 2  # the program's, and the next; a third one is being put together


def _ignore(_: object) -> None:
    pass


@dataclass(frozen=True)
class ReadReports:
    """What a pass calls in another thread as it reads."""

    rows: Callable[[int], object] = _ignore  # with the number of rows so far, after each window
    end: Callable[[int], object] = _ignore  # with that of all
    error: Callable[[str], object] = _ignore  # with the reason why reading has ended before


class CountingPass:
    """Reads the splits once, ahead of the program, and holds the windows as parts of a stream.

    The rows in memory should not exceed `limit_bytes`; `row_bytes` is the mean size of a row, as far as the first rows
    show it.
    """

    def __init__(
        self,
        splits: Sequence[FileSplit],
        row_bytes: float,
        limit_bytes: int,
        report: ReadReports,
    ) -> None:
        self._splits = splits
        self._row_bytes = row_bytes
        self._limit_bytes = limit_bytes
        self._report = report
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

    def learn(self, counts: Mapping[int, int]) -> None:
        """Take the numbers of rows of some splits as known, unless they have been counted."""
        self._counts = {**counts, **self._counts}

    def count(self) -> list[int]:
        """Return the number of rows of each split; those are read that have not been counted."""
        missing = [number for number in range(len(self._splits)) if number not in self._counts]
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="count") as readers:
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

        `batch_rows` are the rows of one batch of this worker, or of several together if they differ.
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

    def arrived(self) -> tuple[StoredPart, ...]:
        """Return the windows that have been read since the last call, as parts."""
        with self._changed:
            found, self._arrived = self._arrived, []
            return tuple((PartId(number), 0) for number in found)

    def next_grant(self, feed: FeedId, seconds: float | None = None) -> StepGrant | None:
        """Wait for the next rows, of a worker whose steps depend on no other; None if none come within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended or self._error, seconds)
            parts = self.arrived()
            if not (parts or self._ended or self._error):
                return None
            failed = "" if parts else self._error
            return StepGrant(feed, parts, flush=self._ended, end=self._ended or bool(failed), failed=failed)

    def wait_for_step(self, step: int | None) -> int | None:
        """Wait until the rows of a step, if any, are read, or no more come; return the steps until then, or None."""
        with self._changed:
            rows = 0 if step is None else (step + 1) * self._batch_rows
            self._changed.wait_for(lambda: self._rows >= rows or self._ended or self._error or self._closed)
            if self._error:
                return None
            return -(-self._rows // self._batch_rows) if self._ended else self._rows // self._batch_rows

    # ---- the store of a stream's parts

    def take_part(self, _feed: FeedId, part: StoredPart) -> tuple[Shard, Sequence[PartSummary], Callable[[], None]]:
        """Return a window, the summaries of its rows, and a function to call when all have been handed out."""
        with self._changed:
            shard, summaries = self._windows.pop(part[0].partition)
        return shard, summaries, self._release

    def drop_part(self, _feed: FeedId, part: StoredPart) -> None:
        """Drop a window."""
        self.take_part(_feed, part)[2]()

    def program_waits(self, _feed: FeedId, waits: bool) -> None:
        """Do nothing: reading goes on as long as there is room."""

    def _release(self) -> None:
        with self._changed:
            self._held -= 1
            self._changed.notify_all()

    # ---- reading, in a thread of its own

    def _read(self, plan: WindowPlan) -> None:
        windows = read_windows(self._splits, plan, on_count=self._counts.__setitem__)
        try:
            for number in count():
                self._wait_for_room()
                window = next(windows, None)
                if window is None:
                    break
                self._add(number, window)
                del window  # else it would stay in memory until the next one is complete
        except _Closed:
            return
        except Exception as error:
            text = str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
            with self._changed:
                self._error = text
                self._changed.notify_all()
            self._report.error(text)
            return
        finally:
            windows.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._report.end(self._rows)

    def _wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._held < _WINDOWS_HELD or self._closed)
            if self._closed:
                raise _Closed

    def _add(self, number: int, window: list[Read]) -> None:
        summaries = [
            PartSummary(
                Split.TRAIN,
                PartId(each.split, each.first_row),
                0,
                0,
                each.batch.num_rows,
                summarize(each.batch, each.split, each.first_row),
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
        self._report.rows(self._rows)


class _Closed(Exception):
    """The pass has been closed."""
