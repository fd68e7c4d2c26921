"""Passes over a worker's rows: steps from a plan over all rows, or as they are granted while rows arrive.

A pass is a sequence of blocks, of one or several steps each, whose rows come from one queue.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.keras.feed_tracking import row_counts
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.blocks import Block, granted_blocks, planned_blocks, unpadded_blocks
from tensorflowonspark.node.feed.plan import EpochPlan
from tensorflowonspark.node.feed.rows import RowQueue, Rows
from tensorflowonspark.node.feed.selection import Batch, Selection, real_rows
from tensorflowonspark.node.feed.shard import Allocate
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.taken import Leg, Rest, TakenRows, find_left, order_seed


class Passes:
    """The passes over one worker's rows by one dataset; each call starts one.

    Parameters
    ----------
    share : ShareRows
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
    on_begin : callable, optional
        Takes these passes when one of them begins whose steps are planned, and not one that takes rows as they arrive.
    alone : bool
        Whether this is a worker of asynchronous training, whose steps depend on no other worker's.

    Attributes
    ----------
    selection, shares, alone
        The same.
    arrive : bool
        Whether the rows arrive, so that nobody knows the number of steps.
    """

    def __init__(
        self,
        share: ShareRows,
        selection: Selection,
        shares: Shares,
        seed: int | None,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
        *,
        on_begin: "Callable[[Passes], object]" = lambda _: None,
        alone: bool = False,
    ) -> None:
        self.selection = selection
        self.shares = shares
        self.arrive = share.arriving is not None
        self._share = share
        self._seed = seed
        self._first_step = first_step
        self._on_epoch_end = on_epoch_end
        self._on_begin = on_begin
        self.alone = alone
        self._known: tuple[Rows, EpochPlan] | None = None  # once all rows are there
        self._begin = 0, 0  # epoch and step of the next pass; an abandoned one does not count
        self._epoch = 0  # of the current pass, or of the next one if none has begun
        self._rest: Rest | None = None  # of the epoch that other workers began
        self._counted_from = 0, 0  # a step of the program, and the step of all passes that it is
        self._takes_parts = False  # the current pass takes the rows as they arrive
        self._counts = True  # it counts as an epoch
        if not self.arrive:
            self._all_rows()

    def resume_at(self, epoch: int, step: int, rest: Rest | None = None) -> None:
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

    def _rest_after(self, epoch: int, legs: tuple[Leg, ...], plan: EpochPlan) -> Rest | None:
        if not legs:
            return Rest(epoch)
        layout = self._share.layout
        left = None if layout is None else find_left(epoch, legs, layout)
        if left is None:
            return None
        rows = [int(np.count_nonzero(each)) for each in left]
        shares = self._share.all_shares(self.shares.batch_size)
        steps = max(each.steps(count) for each, count in zip(shares, rows, strict=True))
        return Rest(epoch, legs, plan.steps - steps, rows, left[self._share.index])

    def _leg(self, rest: Rest, steps: int, plan: EpochPlan) -> Leg | None:
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
        if self._known is None or self.alone:
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

    def _rest_of(self, epoch: int) -> Rest:
        return self._rest if self._rest is not None and self._rest.epoch == epoch else Rest(epoch)

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

    def rows_ahead(self) -> list[tuple[int, int]] | None:
        """Return the real rows of each step of the next pass, which come first, and all; None if they are not known."""
        if self._known is None or self.alone:
            return None
        plan, (epoch, step) = self._known[1], self._begin
        plan, _, rest = self._left(plan, epoch, step)
        real = [(each, plan.real_rows(each)) for each in range(step - rest.first_step, plan.steps)]
        return [(rows, rows + plan.padding(each)) for each, rows in real]

    # ---- the rows

    def __call__(self, *, real_only: bool = False) -> Iterator[Batch]:
        """Yield the columns of each batch, and a mask of its real rows.

        Parameters
        ----------
        real_only : bool
            Whether to leave out the padding; the pass is then in the rows' own order, and does not count as an epoch.
        """
        for block, (values, real) in self._pass(np.empty, real_only=real_only):
            start = 0
            for size in block.sizes:
                stop = start + size
                yield self._hand_out(
                    1, ({name: each[start:stop] for name, each in values.items()}, real[start:stop]), real_only
                )
                start = stop

    def blocks(self, empty: Allocate = np.empty, *, real_only: bool = False) -> Iterator[Batch]:
        """Yield the rows of several batches at once.

        Parameters
        ----------
        empty : callable
            Allocates the arrays into which numeric columns are gathered.
        real_only : bool
            As for a call.
        """
        for block, batch in self._pass(empty, real_only=real_only):
            yield self._hand_out(len(block.sizes), batch, real_only)

    def _pass(self, empty: Allocate, *, real_only: bool) -> Iterator[tuple[Block, Batch]]:
        arriving, selection, alone = self._share.arriving, self.selection, self.alone
        resumed = self._first_step or self._begin != (0, 0)
        self._takes_parts = arriving is not None and arriving.begin_pass(may_be_first=not (resumed or real_only))
        self._counts = self._takes_parts or not real_only
        queue = RowQueue(selection.kinds, self.shares.most)
        if self._takes_parts:
            assert self._share.parts is not None
            self._epoch, self._step, self._seen = 0, 0, 0
            blocks = granted_blocks(self._share.parts, selection, self.shares, queue, self._order_seed(0), alone=alone)
        elif real_only:
            blocks = unpadded_blocks(self._all_rows()[0], selection, self.shares, queue)
        else:
            blocks = self._planned(queue)
        with closing(blocks):
            for block in blocks:
                size = sum(block.sizes)
                yield block, (queue.take(block.rows, size, empty), np.arange(size) < block.rows)
        if not self._counts:
            return
        if self._takes_parts:
            self._end_first_pass()
        if self._share.is_training and not alone:
            self._share.count_rows(queue.taken)
        if self._on_epoch_end is not None:
            self._on_epoch_end(self._epoch)

    def _planned(self, queue: RowQueue) -> Generator[Block, None, None]:
        """Begin the next epoch, or what is left of one, and return its steps."""
        rows, plan = self._all_rows()
        self._on_begin(self)
        (self._epoch, self._step), self._begin = self._begin, (self._begin[0], 0)
        if self._step < self._rest_of(self._epoch).first_step:
            self._rest = Rest(self._epoch)  # of a pass that was abandoned
        rest_plan, own, rest = self._left(plan, self._epoch, self._step)
        step = self._step - rest.first_step
        self._seen = plan.rows - own + min(own, plan.shares.before(step))
        seed = self._order_seed(self._epoch)
        return planned_blocks(rows, self.selection, rest_plan, queue, step, seed, rest.left)

    def _left(self, plan: EpochPlan, epoch: int, step: int) -> tuple[EpochPlan, int, Rest]:
        """Return the plan of what is left of an epoch from a step on, the rows that this worker has in it, and it."""
        rest = self._rest_of(epoch)
        if step < rest.first_step:
            rest = Rest(epoch)
        if rest.rows is None:
            return plan, plan.rows, rest
        own = rest.rows[self._share.index]
        return replace(plan, rows=own, steps=plan.steps - rest.first_step), own, rest

    def _order_seed(self, epoch: int) -> list[int] | None:
        return None if self._seed is None else order_seed(self._seed, epoch, self._share.index)

    def _hand_out(self, steps: int, batch: Batch, real_only: bool) -> Batch:
        """Report that the rows of the next steps are handed out; return those that are."""
        if self._counts:
            total = 0 if self._takes_parts or self.plan is None else self.plan.steps
            self._step += steps
            self._seen += (real := int(np.count_nonzero(batch[1])))
            row_counts.padded |= real < len(batch[1])
            self._share.report(Progress(self._epoch, self._step, total, self._seen))
            if self._step == total:
                self._begin = self._epoch + 1, 0
        return real_rows(batch) if real_only else batch

    def _end_first_pass(self) -> None:
        assert self._share.arriving is not None
        self._share.arriving.all_taken = True
        self._begin = 1, 0

    def _all_rows(self) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them and the plan of an epoch."""
        if self._known is None:
            rows, plan = self._share.all_rows(self.selection, self.shares, alone=self.alone)
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
