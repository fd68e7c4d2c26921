"""Where a program stands in the epochs over its rows, and where the next pass begins."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.node.feed.global_order import GlobalOrder
from tensorflowonspark.node.feed.one_pass import EpochPass
from tensorflowonspark.node.feed.plan import EpochPlan, Step
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.taken import EpochRest, StepSpan, TakenRows, find_left, order_seed


class EpochCursor:
    """A place in the epochs over one worker's rows: an epoch, and a step of it.

    A pass moves it to the next epoch when it has handed out its last step, and a checkpoint that is restored anywhere.
    With an `global_order` the steps have the same rows on any number of workers.
    """

    def __init__(
        self,
        share: ShareRows,
        selection: Selection,
        shares: Shares,
        seed: int | None,
        first_step: int,
        *,
        global_order: GlobalOrder | None = None,
        alone: bool,
    ) -> None:
        self.epoch = 0  # of the current pass, or of the next one if none has begun
        self.next = 0, 0  # epoch and step of the next pass; an abandoned one does not count
        self.plan: EpochPlan | None = None  # of a whole epoch, once all rows are there
        self._rows: Rows | None = None  # likewise
        self._share = share
        self._selection = selection
        self._shares = shares
        self.seed = seed
        self._first_step = first_step  # that the program gave, until all rows are there
        self._global_order = global_order
        self._alone = alone
        self._rest: EpochRest | None = None  # of the epoch that other workers began
        self._origin = 0, 0  # a step of the program, and the step of all passes that it is

    @property
    def is_resumed(self) -> bool:
        """Whether the next pass is not the first one from its beginning on."""
        return bool(self._first_step) or self.next != (0, 0)

    def all_rows(self) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them and the plan of an epoch."""
        if self._rows is None or self.plan is None:
            self._rows, self.plan = self._share.all_rows(self._selection, self._shares, alone=self._alone)
            if self._first_step:
                self._resume_at_step(self._first_step, self.plan)
        return self._rows, self.plan

    def _resume_at_step(self, first: int, plan: EpochPlan) -> None:
        """Make the next pass begin with a step of all passes."""
        taken = self._share.taken_before(first)
        if taken is None or self.resume_from(taken) is None:
            self.resume_at(*divmod(first, max(1, plan.steps)))
        self._origin = first, self.next[0] * plan.steps + self.next[1]
        if self._share.first_pass_is_unique and not self.next[0]:
            raise FeedError(
                f"first_step={first}: the first epoch has {plan.steps} steps, and of a feed with "
                "start='first_rows' it can't be resumed, since its rows come in the order of their arrival: "
                "use start='all_rows', or save checkpoints after epochs only"
            )

    def resume_at(self, epoch: int, step: int, rest: EpochRest | None = None) -> None:
        """Make the next pass the rest of an epoch, from a step on."""
        self._first_step, self.next, self._rest, self.epoch = 0, (epoch, step), rest, epoch

    def resume_from(self, taken: TakenRows) -> tuple[int, int] | None:
        """Make the next pass the rest of an epoch; return the epoch and its first step, or None if the rows are others.

        The same workers go on with the next step. Others take the rows that are left, in the last steps of the epoch.
        If none is left, it is the next epoch.
        """
        _, plan = self.all_rows()
        spans, step = taken.spans, 0
        rest = self._rest_after(taken.epoch, spans[:-1], plan)
        if spans and rest is not None and self._span(rest, spans[-1].steps, plan) == spans[-1]:
            step = spans[-1].steps
        else:
            rest = self._rest_after(taken.epoch, spans, plan)
        if rest is None:
            return None
        if rest.first_step + step < plan.steps:
            self.resume_at(taken.epoch, rest.first_step + step, rest)
        else:
            self.resume_at(taken.epoch + 1, 0)
        return self.next

    def takes_steps_as(self, span: StepSpan) -> bool:
        """Return whether the steps of a span have as many rows, in an order of the same seed."""
        wanted = self._shares.batch_size, self.seed, self._global_order is not None
        return wanted == (span.batch_size, span.seed, span.is_global)

    def _rest_after(self, epoch: int, spans: tuple[StepSpan, ...], plan: EpochPlan) -> EpochRest | None:
        if not spans:
            return EpochRest(epoch)
        layout = self._share.layout if self._global_order is None else self._global_order.layout
        left = None if layout is None else find_left(epoch, spans, layout)
        if left is None:
            return None
        if self._global_order is not None:
            return EpochRest(epoch, spans, plan.steps - self._global_order.steps(left[0]), left=left[0])
        rows = [int(np.count_nonzero(each)) for each in left]
        shares = self._share.all_shares(self._shares.batch_size)
        steps = max(each.steps(count) for each, count in zip(shares, rows, strict=True))
        return EpochRest(epoch, spans, plan.steps - steps, rows, left[self._share.index])

    def _span(self, rest: EpochRest, steps: int, plan: EpochPlan) -> StepSpan | None:
        """Return the first steps of what is left of an epoch; None if nobody knows where the rows are."""
        batch_size = self._shares.batch_size
        if self._global_order is not None:
            whole = (min(self._global_order.rows(rest.left), steps * batch_size),)
            return StepSpan(self._global_order.layout, whole, steps, batch_size, self.seed, 0, is_global=True)
        layout, rows = self._share.layout, self._share.counts if rest.rows is None else rest.rows
        if layout is None or rows is None or self._rows is None:
            return None
        shares = self._share.all_shares(batch_size)
        taken = tuple(min(count, each.before(steps)) for each, count in zip(shares, rows, strict=True))
        window_rows = self._rows.window_rows(plan.shares.cycle)
        return StepSpan(layout, taken, steps, batch_size, self.seed, window_rows)

    def taken(self, step: int, batch: int) -> TakenRows | None:
        """Return the rows that the current epoch's steps have taken; None if these are unknown.

        `batch` is the number of steps of the epoch; where it is 0, `step` counts, those of the program.
        """
        if self.plan is None or self._alone:
            return None
        plan, epoch = self.plan, self.epoch
        if not batch:
            program, own = self._origin
            epoch, batch = divmod(own + step - program, max(1, plan.steps))
            if batch and epoch != self.epoch:
                return None
        rest = self._rest_of(epoch)
        if batch <= rest.first_step:
            return TakenRows(epoch, rest.spans)
        span = self._span(rest, batch - rest.first_step, plan)
        return None if span is None else TakenRows(epoch, (*rest.spans, span))

    def _rest_of(self, epoch: int) -> EpochRest:
        return self._rest if self._rest is not None and self._rest.epoch == epoch else EpochRest(epoch)

    def _left(self, plan: EpochPlan) -> tuple[EpochRest, EpochPlan, int]:
        """Return what is left of the next pass's epoch, the plan of that, and the step of it that comes next."""
        epoch, step = self.next
        rest = self._rest_of(epoch)
        if step < rest.first_step:
            rest = EpochRest(epoch)
        if rest.rows is not None:
            plan = replace(plan, rows=rest.rows[self._share.index], steps=plan.steps - rest.first_step)
        if self._global_order is not None:
            order, counts = self._global_order.epoch(epoch, rest.left)
            plan = replace(plan, rows=len(order), steps=len(counts), counts=counts)
        return rest, plan, step - rest.first_step

    def steps_ahead(self) -> Iterator[Step] | None:
        """Return the steps of the next pass; None if they are not known."""
        if self.plan is None or self._alone:
            return None
        _, plan, first = self._left(self.plan)
        return plan.steps_from(first)

    def begin(self) -> EpochPass:
        """Begin the next pass, over the next epoch or what is left of one."""
        rows, whole = self.all_rows()
        self.epoch, step = self.next
        rest, plan, first = self._left(whole)
        if step < self._rest_of(self.epoch).first_step:
            self._rest = rest  # that of a pass that was abandoned is over
        self.next = self.epoch, 0
        if self._global_order is not None:
            assert isinstance(rows, Shard)
            rows = rows.in_order(self._global_order.epoch(self.epoch, rest.left).order)
        elif rest.left is not None:
            rows = rows.only(rest.left)
        return EpochPass(
            rows=rows,
            selection=self._selection,
            plan=plan,
            seed=order_seed(self.seed, self.epoch, self._share.index),
            first=first,
            epoch=self.epoch,
            step=step,
            steps=whole.steps,
            rows_before=whole.rows - plan.rows + plan.before(first),
        )
