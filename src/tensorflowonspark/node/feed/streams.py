"""Rows that arrive while the program takes them: the parts that count, in the steps that the driver grants.

Tasks send parts to the node, which holds them up to a limit (`Cache`); files are read ahead (`CountingPass`). The
driver grants one part for each partition, and the number of steps that all workers can take with their rows
(`driver/sharing/scheduler.py`). No row is handed out before its part is granted, so a task that Spark repeats adds no
row twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    FeedId,
    InputStarved,
    PartId,
    PartSummary,
    RowsConsumed,
    Shares,
    SplitManifest,
    StepGrant,
    StoredPart,
    StreamOpened,
)
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Shard

_REPORT_SECONDS = 0.3  # between two counts of the rows consumed
_STARVED_SECONDS = 1.0  # that a step waits for rows before the driver learns of it
_Part = tuple[Shard, Sequence[PartSummary], Callable[[], None]]


class PartStore(Protocol):
    """Holds the parts (`Cache`, and for files `CountingPass`)."""

    def take_part(self, feed: FeedId, part: StoredPart) -> _Part:
        """Return a part, the summaries of its rows, and a function to call when all its rows have been handed out."""

    def drop_part(self, feed: FeedId, part: StoredPart) -> None:
        """Drop a part that does not count."""

    def program_waits(self, feed: FeedId, waits: bool) -> None:
        """Record whether the program waits for rows, having consumed all that were granted."""


def _check_kinds(selection: Selection, summary: PartSummary) -> None:
    selection.check(SplitManifest({}, columns=summary.columns))


@dataclass
class PartStream:
    """The parts of one feed on this worker, which are handed out once."""

    feed: FeedId
    store: PartStore
    next_grant: Callable[..., StepGrant | None]  # waits for the driver's next one, at most for the seconds given
    # waits until a step is granted, or the feed ends, and for no step (None) not at all; the steps granted so far, or
    # None without common steps
    granted: Callable[[int | None], int | None]
    send: Callable[[object], None]
    # raises if the rows of a part are not of the kinds of the first rows
    check: Callable[[Selection, PartSummary], None] = _check_kinds
    # before the pass, with the rows of a cycle of steps and the seed of their order
    begin: Callable[[int, Sequence[int] | None], object] = lambda _rows, _seed: None
    end: Callable[[], object] = lambda: None
    _opened: bool = field(default=False, init=False)

    def open(self, shares: Shares | None) -> None:
        """Report that the program begins to take rows, in steps with these shares of this worker or without steps.

        If they have been taken before, it is a `FeedError`.
        """
        if self._opened:
            raise FeedError(
                "the rows of a stream can be passed over just once (one epoch, one data set): feed them with "
                "cache='disk' for more passes, or use steps_per_epoch"
            )
        self._opened = True
        self.send(StreamOpened(self.feed, shares))

    def wait(self, taken: int, *, alone: bool = False) -> StepGrant:
        """Wait for the next grant of a program that has taken all rows before.

        `alone` is a worker of asynchronous training. If no further rows come because of a failure, it is a `FeedError`.
        """
        self.send(RowsConsumed(self.feed, taken))
        self.store.program_waits(self.feed, True)
        while (grant := self.next_grant(_STARVED_SECONDS if alone else None)) is None:
            # A coordinator that waits for this step schedules none on the workers that have rows, and the driver grants
            # this worker none before they have consumed theirs.
            self.send(InputStarved(self.feed))
        self.store.program_waits(self.feed, False)
        if grant.failed:
            raise FeedError(f"the stream broke off after {taken} rows: {grant.failed}")
        return grant

    def parts(self, grant: StepGrant) -> Iterator[tuple[PartId, _Part]]:
        """Yield the parts that a grant counts; drop those that do not."""
        for part in grant.dropped:
            self.store.drop_part(self.feed, part)
        for part in grant.parts:
            yield part[0], self.store.take_part(self.feed, part)

    @property
    def known_steps(self) -> int:
        """Number of steps that the driver has granted."""
        return self.granted(None) or 0

    def has_step(self, step: int) -> bool:
        """Return whether there is a step, above 0; wait until it is granted, or the feed ends."""
        granted = self.granted(step)
        return granted is None or granted > step

    def partitions(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of one partition after the other as they were sent; workers take no steps together.

        Take all batches of a partition before the next one.
        """
        self.open(None)
        taken, end = 0, False
        while not end:
            grant = self.wait(taken)
            for _, (shard, _, release) in self.parts(grant):
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
                self.send(RowsConsumed(self.feed, taken))


@dataclass
class RowStream:
    """The rows of one worker that arrive; if they are kept, all passes but one wait until all are there.

    The first pass that a program begins takes the rows as they arrive. All workers run the same program, so it is the
    same pass on all of them.
    """

    parts: PartStream | None  # None if every pass waits for all rows, as over rows to validate on
    arrived: Callable[[], SplitManifest | None] = lambda: None  # what all workers have; None as long as rows arrive
    # until all rows have arrived, or of files been counted; None if they are not kept
    wait: Callable[[], tuple[SplitManifest, Rows]] | None = None
    # the pass over them as they arrive has the order of the first epoch, and can be resumed within that
    repeatable: bool = False
    in_first_pass: bool = field(default=False, init=False)  # the pass that began last takes the rows as they arrive
    all_taken: bool = field(default=False, init=False)  # by the program, in that pass
    _begun: bool = field(default=False, init=False)  # a pass has

    def begin_pass(self, *, may_be_first: bool) -> bool:
        """Note that a pass begins; return whether it is the one over the rows as they arrive."""
        first = self.parts is not None and (self.wait is None or (may_be_first and not self._begun))
        self.in_first_pass, self._begun = first, True
        return first
