"""Passes over a worker's rows: steps from a plan over all rows, or as they are granted while rows arrive.

A pass is a sequence of blocks, of one or several steps each, whose rows come from one queue.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Shares, StepGrant
from tensorflowonspark.keras.feed_tracking import note_rows, row_counts, state_pass
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.arriving import ArrivingParts
from tensorflowonspark.node.feed.plan import EpochPlan
from tensorflowonspark.node.feed.rows import RowQueue, Rows
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.shard import Allocate
from tensorflowonspark.node.feed.taken import Leg, TakenRows, find_left

if TYPE_CHECKING:
    from tensorflowonspark.node.feed.share import Share

# Gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
_BLOCK_ROWS = 2048
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class _Block:
    """Consecutive steps: the rows of each with padding, and how many rows of all are real, which come first."""

    sizes: Sequence[int]
    rows: int


@dataclass(frozen=True)
class _Rest:
    """What is left of an epoch after some legs: its first step, the rows of each worker, and which of this one's."""

    epoch: int
    legs: tuple[Leg, ...] = ()
    first_step: int = 0
    rows: Sequence[int] | None = None  # None: all
    left: npt.NDArray[np.bool_] | None = None


class Passes:
    """The passes over one worker's rows by one dataset; each call starts one.

    Parameters
    ----------
    share : Share
        The rows.
    selection : Selection
        The columns to gather.
    shares : Shares
        This worker's rows of each step.
    seed : int or None
        Seed of the epochs' orders; None keeps the rows' own order.
    first_step : int
        The step of all passes at which the first of them begins.
    on_epoch_end : callable, optional
        Called with the epoch's number (from 0) when its last batch has been taken and the next is requested.
    alone : bool
        Whether this is a worker of asynchronous training, whose steps depend on no other worker's.

    Attributes
    ----------
    selection, shares
        The same.
    arrive : bool
        Whether the rows arrive, so that nobody knows the number of steps.
    """

    def __init__(
        self,
        share: "Share",
        selection: Selection,
        shares: Shares,
        seed: int | None,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.selection = selection
        self.shares = shares
        self.arrive = share.arriving is not None
        self._share = share
        self._seed = seed
        self._first_step = first_step
        self._on_epoch_end = on_epoch_end
        self._alone = alone
        self._known: tuple[Rows, EpochPlan] | None = None  # once all rows are there
        self._begin = 0, 0  # epoch and step of the next pass; an abandoned one does not count
        self._epoch = 0  # of the current pass, or of the next one if none has begun
        self._rest: _Rest | None = None  # of the epoch that other workers began
        self._counted_from = 0, 0  # a step of the program, and the step of all passes that it is
        self._takes_parts = self._adapts = False  # the current pass takes the rows as they arrive, or is a layer's
        if not self.arrive:
            self._all_rows()

    def resume_at(self, epoch: int, step: int, rest: _Rest | None = None) -> None:
        """Make the next pass the rest of an epoch, from a step on."""
        self._first_step, self._begin, self._rest, self._epoch = 0, (epoch, step), rest, epoch

    def resume_from(self, taken: TakenRows) -> int | None:
        """Make the next pass the rest of an epoch; return its first step, or None if the rows are others.

        The same workers go on with the next step. Others take the rows that are left, in the last steps of the epoch.
        """
        _, plan = self._all_rows()
        legs, step = taken.legs, 0
        rest = self._rest_after(taken.epoch, legs[:-1], plan)
        if legs and rest is not None and self._leg(rest, legs[-1].steps, plan) == legs[-1]:
            step = legs[-1].steps
        else:
            rest = self._rest_after(taken.epoch, legs, plan)
        if rest is None:
            return None
        self.resume_at(taken.epoch, rest.first_step + step, rest)
        return rest.first_step + step

    def takes_steps_as(self, leg: Leg) -> bool:
        """Return whether a leg's steps have as many rows, in an order of the same seed."""
        return (self.shares.batch_size, self._seed) == (leg.batch_size, leg.seed)

    def _rest_after(self, epoch: int, legs: tuple[Leg, ...], plan: EpochPlan) -> _Rest | None:
        if not legs:
            return _Rest(epoch)
        layout = self._share.layout
        left = None if layout is None else find_left(epoch, legs, layout)
        if left is None:
            return None
        rows = [int(np.count_nonzero(each)) for each in left]
        shares = self._share.all_shares(self.shares.batch_size)
        steps = max(each.steps(count) for each, count in zip(shares, rows, strict=True))
        return _Rest(epoch, legs, plan.steps - steps, rows, left[self._share.index])

    def _leg(self, rest: _Rest, steps: int, plan: EpochPlan) -> Leg | None:
        """Return the first steps of what is left of an epoch; None if nobody knows where the rows are."""
        layout, rows = self._share.layout, self._share.counts if rest.rows is None else rest.rows
        if layout is None or rows is None or self._known is None:
            return None
        shares = self._share.all_shares(self.shares.batch_size)
        taken = tuple(min(count, each.before(steps)) for each, count in zip(shares, rows, strict=True))
        window_rows = self._known[0].window_rows(plan.shares.cycle)
        return Leg(layout, taken, steps, self.shares.batch_size, self._seed, window_rows)

    def taken(self, step: int, batch: int) -> TakenRows | None:
        """Return the rows that the current epoch's steps have taken; None if these are unknown.

        Parameters
        ----------
        step : int
            The steps of the program, which count if it does not count those of an epoch.
        batch : int
            The steps of the epoch.
        """
        if self._known is None or self._alone:
            return None
        plan, epoch = self._known[1], self._epoch
        if not batch:
            program, own = self._counted_from
            epoch, batch = divmod(own + step - program, max(1, plan.steps))
            if batch and epoch != self._epoch:
                return None
        rest = self._rest_of(epoch)
        if batch <= rest.first_step:
            return TakenRows(epoch, rest.legs)
        leg = self._leg(rest, batch - rest.first_step, plan)
        return None if leg is None else TakenRows(epoch, (*rest.legs, leg))

    def _rest_of(self, epoch: int) -> _Rest:
        return self._rest if self._rest is not None and self._rest.epoch == epoch else _Rest(epoch)

    # ---- the length

    @property
    def plan(self) -> EpochPlan | None:
        """The steps of an epoch; None as long as rows arrive."""
        return self._known[1] if self._known else None

    @property
    def steps(self) -> int | None:
        """The number of steps of each pass; None if the first one is shorter, or rows arrive."""
        return None if self.arrive or self.plan is None or self._begin[1] else self.plan.steps

    @property
    def known_steps(self) -> int:
        """Number of steps of the current pass that are certain."""
        if self.plan is not None and not self._takes_parts:
            return self.plan.steps
        parts = self._share.parts
        return 0 if parts is None else parts.known_steps

    def has_step(self, step: int) -> bool:
        """Return whether the current pass has a step, above 0; wait until that is certain."""
        if not self._takes_parts:
            return self.plan is None or step < self.plan.steps
        assert self._share.parts is not None
        found = self._share.parts.has_step(step)
        if not found:
            self._end_first_pass()
        return found

    # ---- the rows

    def __call__(self) -> Iterator[Batch]:
        """Yield the columns of each batch, and a mask of its real rows."""
        for block, (values, real) in self._pass(np.empty):
            start = 0
            for size in block.sizes:
                stop = start + size
                self._report(1, real[start:stop])
                yield {name: each[start:stop] for name, each in values.items()}, real[start:stop]
                start = stop

    def blocks(self, empty: Allocate = np.empty) -> Iterator[Batch]:
        """Yield the rows of several batches at once.

        Parameters
        ----------
        empty : callable
            Allocates the arrays into which numeric columns are gathered.
        """
        for block, batch in self._pass(empty):
            self._report(len(block.sizes), batch[1])
            yield batch

    def _pass(self, empty: Allocate) -> Iterator[tuple[_Block, Batch]]:
        note_rows()
        arriving, adapts = self._share.arriving, state_pass()
        resumed = self._first_step or self._begin != (0, 0)
        self._takes_parts = arriving is not None and arriving.begin_pass(may_be_first=not (resumed or adapts))
        self._adapts = adapts and not self._takes_parts
        if self._adapts:
            yield from self._real_rows(*self._all_rows())
            return
        queue = RowQueue(self.selection.kinds, self.shares.most)
        if self._takes_parts:
            assert self._share.parts is not None
            self._epoch, self._step, self._seen = 0, 0, 0
            blocks = self._granted(self._share.parts, queue)
        else:
            rows, plan = self._all_rows()
            self._share.latest = self
            (self._epoch, self._step), self._begin = self._begin, (self._begin[0], 0)
            rest = self._rest_of(self._epoch)
            if self._step < rest.first_step:
                rest = self._rest = _Rest(self._epoch)  # of a pass that was abandoned
            rest_plan, own = plan, plan.rows
            if rest.rows is not None:
                own = rest.rows[self._share.index]
                rest_plan = replace(plan, rows=own, steps=plan.steps - rest.first_step)
            step = self._step - rest.first_step
            self._seen = plan.rows - own + min(own, plan.shares.before(step))
            blocks = self._planned(rows, rest_plan, queue, step, rest.left)
        with closing(blocks):
            for block in blocks:
                size = sum(block.sizes)
                yield block, (queue.take(block.rows, size, empty), np.arange(size) < block.rows)
        if self._takes_parts:
            self._end_first_pass()
        if self._share.is_training and not self._alone:
            row_counts.add(queue.taken)
        if self._on_epoch_end is not None:
            self._on_epoch_end(self._epoch)

    def _report(self, steps: int, real: npt.NDArray[np.bool_]) -> None:
        """Report that the rows of the next steps are handed out."""
        if self._adapts:
            return
        total = 0 if self._takes_parts or self.plan is None else self.plan.steps
        self._step += steps
        self._seen += int(np.count_nonzero(real))
        self._share.report(Progress(self._epoch, self._step, total, self._seen))
        if self._step == total:
            self._begin = self._epoch + 1, 0

    def _end_first_pass(self) -> None:
        assert self._share.arriving is not None
        self._share.arriving.all_taken = True
        self._begin = 1, 0

    def _all_rows(self) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them and the plan of an epoch."""
        if self._known is None:
            rows, plan = self._share.all_rows(self.selection, self.shares, alone=self._alone)
            self._known = rows, plan
            if first := self._first_step:
                taken = self._share.taken_before(first)
                if taken is None or self.resume_from(taken) is None:
                    self.resume_at(*divmod(first, max(1, plan.steps)))
                self._counted_from = first, self._begin[0] * plan.steps + self._begin[1]
                if self._share.first_pass_is_unique and not self._begin[0]:
                    raise FeedError(
                        f"first_step={first}: the first epoch has {plan.steps} steps, and of a feed with "
                        "start='first_rows' it can't be resumed, since its rows come in the order of their arrival: "
                        "use start='all_rows', or save checkpoints after epochs only"
                    )
        return self._known

    # ---- the steps

    def _planned(
        self, rows: Rows, plan: EpochPlan, queue: RowQueue, step: int, left: npt.NDArray[np.bool_] | None
    ) -> Generator[_Block, None, None]:
        """Yield the steps of an epoch from one on, over all rows or those that are left."""
        shares = plan.shares
        most = self._steps_per_block(rows.bytes_per_row(self.selection.kinds))
        seed = None if self._seed is None else [self._seed, self._epoch]

        def blocks(end: int) -> Iterator[_Block]:
            nonlocal step
            while step < end:
                steps = range(step, min(step + most, end))
                step = steps.stop
                real = [plan.real_rows(each) for each in steps]
                yield _Block([each + plan.padding(at) for each, at in zip(real, steps, strict=True)], sum(real))

        with closing(rows.segments(self.selection, seed, shares.cycle, shares.before(step), left)) as segments:
            for segment in segments:
                queue.add(segment.reader, segment.order, max(0, shares.before(step) - segment.first_row))
                yield from blocks(shares.full_steps(segment.first_row + len(segment.order)))
            yield from blocks(plan.steps)  # the last rows, and the steps of workers with more

    def _granted(self, parts: ArrivingParts, queue: RowQueue) -> Generator[_Block, None, None]:
        """Yield the steps that are granted; wait for the driver's next grant when none is left."""
        parts.open(self.shares)
        seed = None if self._seed is None else [self._seed, 0]
        sizes = map(self.shares.rows, count())
        most, end = 1, False
        parts.begin(self.shares.cycle, seed)
        try:
            while not end:
                grant = parts.wait(queue.taken, alone=self._alone)
                end = grant.end
                for number, (shard, summaries, release) in parts.parts(grant):
                    for summary in summaries:
                        parts.check(self.selection, summary)
                    order = np.arange(shard.rows)
                    if seed is not None:
                        order = np.random.default_rng([*seed, number]).permutation(shard.rows)
                    most = self._steps_per_block(shard.bytes_per_row(self.selection.kinds))
                    queue.add(shard.reader(self.selection.kinds), order, release=release)
                if grant.steps is None:
                    yield from self._steps_alone(grant, queue, most)
                    continue
                for steps, real in grant.steps:
                    left = real
                    for first in range(0, steps, most):
                        some = list(islice(sizes, min(most, steps - first)))
                        rows = min(left, sum(some))
                        yield _Block(some, rows)
                        left -= rows
        finally:
            parts.end()

    def _steps_alone(self, grant: StepGrant, queue: RowQueue, most: int) -> Iterator[_Block]:
        """Yield the steps of a worker on which no other depends: full ones, and the remainder if it is requested."""
        size = self.shares.most
        if grant.fill and not queue.count:
            yield _Block([size], 0)
        while full := min(most, queue.count // size):
            yield _Block([size] * full, full * size)
        if (grant.flush or grant.fill) and queue.count:
            yield _Block([queue.count], queue.count)

    def _steps_per_block(self, row_bytes: float) -> int:
        rows = min(_BLOCK_ROWS, _BLOCK_BYTES / max(1.0, row_bytes))
        return max(1, int(rows) // self.shares.most)

    def _real_rows(self, rows: Rows, plan: EpochPlan) -> Iterator[tuple[_Block, Batch]]:
        """Yield each row once, in the rows' own order, unpadded; this does not count as an epoch."""
        size = self.shares.most
        most = size * self._steps_per_block(rows.bytes_per_row(self.selection.kinds))
        for segment in rows.segments(self.selection, None, plan.shares.cycle, 0):
            for start in range(0, len(segment.order), most):
                numbers = segment.order[start : start + most]
                sizes = [min(size, len(numbers) - first) for first in range(0, len(numbers), size)]
                yield _Block(sizes, len(numbers)), (segment.reader.take(numbers), np.ones(len(numbers), np.bool_))
