"""Where a program stands in the epochs over its rows, and where the next pass begins."""

import logging
from collections.abc import Iterator

from tensorflowonspark.errors import FeedError
from tensorflowonspark.node.feed.one_pass import EpochPass
from tensorflowonspark.node.feed.plan import EpochPlan, Step
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.step_orders import StepOrder
from tensorflowonspark.node.feed.taken import EpochRest, StepSpan, TakenRows, order_seed

_log = logging.getLogger(__name__)


class EpochCursor:
    """A place in the epochs over one worker's rows: an epoch, and a step of it.

    A pass moves it to the next epoch when it has handed out its last step, and a checkpoint that is restored anywhere.
    """

    def __init__(self, share: ShareRows, selection: Selection, order: StepOrder, first_step: int) -> None:
        self.epoch = 0  # of the current pass, or of the next one if none has begun
        self.next = 0, 0  # epoch and step of the next pass; an abandoned one does not count
        self.plan: EpochPlan | None = None  # of a whole epoch, once all rows are there
        self._rows: Rows | None = None  # likewise
        self._share = share
        self._selection = selection
        self.order = order
        self._first_step = first_step  # that the program gave, until all rows are there
        self._rest: EpochRest | None = None  # of the epoch that other workers began
        self._origin = 0, 0  # a step of the program, and the step of all passes that it is

    @property
    def is_resumed(self) -> bool:
        """Whether the next pass is not the first one from its beginning on."""
        return bool(self._first_step) or self.next != (0, 0)

    def all_rows(self) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them and the plan of an epoch."""
        if self._rows is None or self.plan is None:
            self._rows, self.plan = self._share.all_rows(self._selection, self.order.shares, alone=self.order.alone)
            if self._first_step:
                self._resume_at_step(self._first_step, self.plan)
        return self._rows, self.plan

    def _resume_at_step(self, first: int, plan: EpochPlan) -> None:
        """Make the next pass begin with a step of all passes."""
        taken = self._share.taken_before(first)
        if taken is None:
            self.resume_at(*divmod(first, max(1, plan.steps)))
        elif self.resume_from(taken) is None:
            _log.warning("first_step=%d: nobody knows which rows are left of its epoch, which begins again", first)
            self.resume_at(taken.epoch, 0)
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
        if spans and rest is not None and self._span(rest, spans[-1].steps) == spans[-1]:
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
        order = self.order
        wanted = order.shares.batch_size, order.seed, order.is_global, order.mixture, order.made
        return wanted == (span.batch_size, span.seed, span.is_global, span.mixture, span.made)

    def _rest_after(self, epoch: int, spans: tuple[StepSpan, ...], plan: EpochPlan) -> EpochRest | None:
        return self.order.rest(epoch, spans, plan) if spans else EpochRest(epoch)

    def _span(self, rest: EpochRest, steps: int) -> StepSpan | None:
        rows, plan = self.all_rows()
        return self.order.span(rest, steps, rows.window_rows(plan.shares.cycle))

    def taken(self, step: int, batch: int) -> TakenRows | None:
        """Return the rows that the current epoch's steps have taken; None if these are unknown.

        `batch` is the number of steps of the epoch; where it is 0, `step` counts, those of the program.
        """
        if self.plan is None or self.order.alone:
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
        span = self._span(rest, batch - rest.first_step)
        return None if span is None else TakenRows(epoch, (*rest.spans, span))

    def _rest_of(self, epoch: int) -> EpochRest:
        return self._rest if self._rest is not None and self._rest.epoch == epoch else EpochRest(epoch)

    def _left(self, plan: EpochPlan) -> tuple[EpochRest, EpochPlan, int]:
        """Return what is left of the next pass's epoch, the plan of that, and the step of it that comes next."""
        epoch, step = self.next
        rest = self._rest_of(epoch)
        if step < rest.first_step:
            rest = EpochRest(epoch)
        return rest, self.order.plan(rest, plan), step - rest.first_step

    def steps_ahead(self) -> Iterator[Step] | None:
        """Return the steps of the next pass; None if they are not known."""
        if self.plan is None or self.order.alone:
            return None
        _, plan, first = self._left(self.plan)
        return plan.steps_from(first)

    def begin(self) -> EpochPass:
        """Begin the next pass, over the next epoch or what is left of one."""
        rows, whole = self.all_rows()
        self.epoch, step = self.next
        of_epoch = self.order.plan(EpochRest(self.epoch), whole).rows
        rest, plan, first = self._left(whole)
        if step < self._rest_of(self.epoch).first_step:
            self._rest = rest  # that of a pass that was abandoned is over
        self.next = self.epoch, 0
        return EpochPass(
            rows=self.order.rows(rows, rest),
            selection=self._selection,
            plan=plan,
            seed=order_seed(self.order.seed, self.epoch, self._share.index),
            first=first,
            epoch=self.epoch,
            step=step,
            steps=whole.steps,
            rows_before=of_epoch - plan.rows + plan.before(first),
        )
