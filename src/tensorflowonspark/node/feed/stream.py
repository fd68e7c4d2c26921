"""Batches of streamed rows: each row is handed out once, in order of arrival.

Tasks send parts to the node, which holds them up to a limit (`Cache`). The driver grants one part for each partition,
and the number of steps that all workers can take with their rows (`driver/feed/scheduler.py`). No row is handed out
before its part is granted, so a task that Spark repeats adds no row twice.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark import columns
from tensorflowonspark.columns import Array, Ragged
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    InputStarved,
    PartSummary,
    RowsConsumed,
    Shares,
    SplitManifest,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.keras.feed_tracking import note_rows, row_counts
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.epochs import BLOCK_BYTES, BLOCK_ROWS
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.shard import Reader, Shard

__all__ = ["PartStore", "Stream"]

_Rows = dict[str, Array | Ragged]
_REPORT_SECONDS = 0.3  # between two counts of the rows consumed
_STARVED_SECONDS = 1.0  # that a step waits for rows before the driver learns of it


class PartStore(Protocol):
    """Holds the parts of streams (`Cache`, and for files `CountingPass`)."""

    def take_part(self, feed: int, part: tuple[int, int]) -> tuple[Shard, Sequence[PartSummary], Callable[[], None]]:
        """Return a part, the summaries of its rows, and a function to call when all its rows have been handed out."""

    def drop_part(self, feed: int, part: tuple[int, int]) -> None:
        """Drop a part that does not count."""

    def program_waits(self, feed: int, waits: bool) -> None:
        """Record whether the program waits for rows, having consumed all that were granted."""


class Stream:
    """The rows of one stream on this worker.

    Parameters
    ----------
    feed : int
        The feed's number.
    store : PartStore
        Holds the stream's parts.
    next_grant : callable
        Returns the driver's next `StepGrant`; waits for it, at most for the seconds given.
    granted : callable
        Waits until a step is granted, or the stream ends; returns the number of steps granted so far. None if workers
        take no steps together.
    send : callable
        Sends a message to the driver.
    report : callable
        Takes a `Progress` before each batch.
    """

    def __init__(
        self,
        feed: int,
        store: PartStore,
        next_grant: Callable[..., StepGrant | None],
        granted: Callable[[int], int | None],
        send: Callable[[object], None],
        report: Callable[[Progress], None],
    ) -> None:
        self._feed = feed
        self._store = store
        self._next_grant = next_grant
        self._granted = granted
        self._send = send
        self._report = report
        self._opened = False

    def batches(
        self,
        selection: Selection,
        shares: Shares,
        seed: int | None,
        on_end: Callable[[int], None] | None = None,
        *,
        independent: bool = False,
    ) -> Iterator[Batch]:
        """Yield the batches of the only pass.

        Parameters
        ----------
        selection : Selection
            The columns to gather.
        shares : Shares
            Rows of each batch of this worker.
        seed : int or None
            Seed of the order within each part; None keeps the rows' own order.
        on_end : callable, optional
            Called with 0 when all rows have been handed out.
        independent : bool
            Whether this is a worker of asynchronous training, whose steps depend on no other worker's.

        Raises
        ------
        FeedError
            If the stream was read before, or breaks off.
        """
        note_rows()
        self._open(shares)
        order_seed = None if seed is None else [seed, 0]
        rows = _GrantedRows(selection, order_seed)
        with self._arriving(shares, order_seed):
            for number, step in enumerate(self._steps(rows, shares, independent)):
                batch = rows.take(step.rows, step.size)
                self._report(Progress(0, number + 1, 0, rows.taken))
                yield batch
        row_counts.add(rows.taken)
        if on_end is not None:
            on_end(0)

    @property
    def known_steps(self) -> int:
        """Number of steps that the driver has granted."""
        return self._granted(-1) or 0

    def has_step(self, step: int) -> bool:
        """Return whether there is a step, above 0; wait until it is granted, or the stream ends."""
        granted = self._granted(step)
        return granted is None or granted > step

    def partitions(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of one partition after the other as they were sent; workers take no steps together.

        Take all batches of a partition before the next one.
        """
        self._open(None)
        taken, end = 0, False
        while not end:
            grant = self._wait_for_grant(taken, independent=False)
            self._drop(grant)
            for part in grant.parts:
                shard, _, release = self._store.take_part(self._feed, part)
                yield self._report_consumed(shard, taken)
                taken += shard.rows
                release()
            end = grant.end

    def _report_consumed(self, shard: Shard, taken: int) -> Iterator[pa.RecordBatch]:
        reported = time.monotonic()
        for batch in shard.batches:
            yield batch
            taken += batch.num_rows
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                self._send(RowsConsumed(self._feed, taken))

    def _open(self, shares: Shares | None) -> None:
        if self._opened:
            raise FeedError(
                "the rows of a stream can be passed over just once (one epoch, one data set): feed them with "
                "cache='disk' for more passes, or use steps_per_epoch"
            )
        self._opened = True
        self._send(StreamOpened(self._feed, shares))

    def _arriving(self, _shares: Shares, _seed: Sequence[int] | None) -> AbstractContextManager[object]:
        """Return a context in which the rows arrive."""
        return nullcontext()

    def _check(self, selection: Selection, summary: PartSummary) -> None:
        """Check that rows are of the kinds of the first rows."""
        selection.check(SplitManifest({}, columns=summary.columns))

    def _drop(self, grant: StepGrant) -> None:
        for part in grant.dropped:
            self._store.drop_part(self._feed, part)

    def _steps(self, rows: "_GrantedRows", shares: Shares, independent: bool) -> Iterator["_Step"]:
        """Yield the granted steps; wait for the driver's next grant when none is left."""
        sizes = map(shares.rows, count())
        end = False
        while not end:
            grant = self._wait_for_grant(rows.taken, independent)
            end = grant.end
            self._drop(grant)
            for part in grant.parts:
                shard, summaries, release = self._store.take_part(self._feed, part)
                for summary in summaries:
                    self._check(rows.selection, summary)
                rows.add(part[0], shard, release)
            if grant.steps is None:
                yield from self._independent_steps(rows, shares.most, grant.flush, grant.fill)
                continue
            for steps, real in grant.steps:
                left = real
                for size in islice(sizes, steps):
                    yield _Step(min(size, left), size)
                    left -= min(size, left)

    def _wait_for_grant(self, taken: int, independent: bool) -> StepGrant:
        self._send(RowsConsumed(self._feed, taken))
        self._store.program_waits(self._feed, True)
        while (grant := self._next_grant(_STARVED_SECONDS if independent else None)) is None:
            # A coordinator that waits for this step schedules none on the workers that have rows, and the driver grants
            # this worker none before they have consumed theirs.
            self._send(InputStarved(self._feed))
        self._store.program_waits(self._feed, False)
        if grant.failed:
            raise FeedError(f"the stream broke off after {taken} rows: {grant.failed}")
        return grant

    def _independent_steps(self, rows: "_GrantedRows", batch_rows: int, flush: bool, fill: bool) -> Iterator["_Step"]:
        """Yield the steps of a worker on which no other depends: full ones, and the remainder if it is requested."""
        if fill and not rows.count:
            yield _Step(0, batch_rows)
        while rows.count >= batch_rows:
            yield _Step(batch_rows, batch_rows)
        if (flush or fill) and rows.count:
            yield _Step(rows.count, rows.count)


@dataclass(frozen=True)
class _Step:
    rows: int  # real ones
    size: int  # with padding


class _GrantedRows:
    """The rows that are granted and not yet handed out, in order; each part's rows are shuffled among themselves."""

    def __init__(self, selection: Selection, seed: Sequence[int] | None) -> None:
        self.selection = selection
        self._seed = seed
        self._parts: deque[tuple[Reader, npt.NDArray[np.int64], int, Callable[[], None]]] = deque()
        self._block: _Rows = {}
        self._start = self._stop = 0  # the rest of the block
        self._last: tuple[int, _Rows] = 0, {}  # real rows to pad with: a whole batch, for BatchNorm's statistics
        self.count = 0
        self.taken = 0

    def add(self, number: int, shard: Shard, release: Callable[[], None]) -> None:
        """Append a part."""
        if not shard.rows:
            release()
            return
        order = np.arange(shard.rows)
        if self._seed is not None:
            order = np.random.default_rng([*self._seed, number]).permutation(shard.rows)
        per_row = max(1.0, shard.bytes_per_row(self.selection.kinds))
        block_rows = max(1, int(min(BLOCK_ROWS, BLOCK_BYTES / per_row)))
        self._parts.append((shard.reader(self.selection.kinds), order, block_rows, release))
        self.count += shard.rows

    def take(self, rows: int, size: int) -> Batch:
        """Return the next rows, padded to a size."""
        pieces: list[_Rows] = []
        missing = rows
        while missing:
            if self._start == self._stop:
                self._next_block()
            stop = min(self._stop, self._start + missing)
            pieces.append({name: values[self._start : stop] for name, values in self._block.items()})
            missing -= stop - self._start
            self._start = stop
        self.count -= rows
        self.taken += rows
        kinds = self.selection.kinds
        values = {name: columns.concatenate([piece[name] for piece in pieces]) for name in kinds} if pieces else {}
        if rows:
            self._last = rows, values
        return self._padded(values, rows, size), np.arange(size) < rows

    def _padded(self, values: _Rows, rows: int, size: int) -> _Rows:
        if rows == size:
            return values
        count, source = (rows, values) if rows else self._last
        if not count:
            return {name: columns.zeros(size, kind) for name, kind in self.selection.kinds.items()}
        return {name: columns.repeat_rows(each, np.arange(size) % count) for name, each in source.items()}

    def _next_block(self) -> None:
        reader, order, block_rows, release = self._parts.popleft()
        self._block = reader.take(order[:block_rows])
        self._start, self._stop = 0, min(block_rows, len(order))
        if len(order) > block_rows:
            self._parts.appendleft((reader, order[block_rows:], block_rows, release))
        else:
            release()
