"""The passes of one dataset over a worker's rows, and the batches that they hand out."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.cursor import EpochCursor
from tensorflowonspark.node.feed.one_pass import ArrivingPass, Block, EpochPass, Pass
from tensorflowonspark.node.feed.plan import EpochPlan, Step, plan_epoch
from tensorflowonspark.node.feed.rows import RowQueue
from tensorflowonspark.node.feed.selection import Batch, Selection, real_rows
from tensorflowonspark.node.feed.shard import Allocate
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.step_orders import StepOrder
from tensorflowonspark.node.feed.taken import order_seed

NOTED_ROWS = 32  # at the begin of a pass: with them an export is compared with the model


class Passes:
    """The passes over one worker's rows by one dataset; each call starts one.

    `first_step` is the step of all passes at which the first one begins. `on_epoch_end` is called with the epoch's
    number (from 0) when its last batch has been taken and the next is requested, and `on_begin` with the cursor when a
    pass begins whose steps are planned.
    """

    def __init__(
        self,
        share: ShareRows,
        selection: Selection,
        order: StepOrder,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
        *,
        on_begin: Callable[[EpochCursor], object] = lambda _: None,
    ) -> None:
        self.selection = selection
        self.shares, self.alone = order.shares, order.alone
        self.are_of_one_size = order.has_equal_batches
        self.cursor = EpochCursor(share, selection, order, first_step)
        self.observer = share.observer
        self.arrive = share.stream is not None  # nobody knows the number of steps
        self._share = share
        self._on_epoch_end = on_epoch_end
        self._on_begin = on_begin
        self._current: Pass | None = None
        self._is_noted = False  # others have the first rows
        if not self.arrive:
            self.cursor.all_rows()

    # ---- the length

    @property
    def batch_rows(self) -> int:
        """The rows of the largest batch."""
        return self.shares.most

    @property
    def plan(self) -> EpochPlan | None:
        """The steps of an epoch; None as long as rows arrive."""
        return self.cursor.plan

    @property
    def steps(self) -> int | None:
        """The number of steps of each pass; None if the first one is shorter, or rows arrive."""
        return None if self.arrive or self.plan is None or self.cursor.next[1] else self.plan.steps

    @property
    def equal_steps(self) -> bool:
        """Whether all workers take as many."""
        return not (self.arrive or self.alone)

    @property
    def known_steps(self) -> int:
        """Number of steps of the current pass that are certain."""
        if self.plan is not None and not isinstance(self._current, ArrivingPass):
            return self.plan.steps
        return 0 if self._share.parts is None else self._share.parts.known_steps

    def has_step(self, step: int) -> bool:
        """Return whether the current pass has a step, above 0; wait until that is certain."""
        if not isinstance(self._current, ArrivingPass):
            return self.plan is None or step < self.plan.steps
        found = self._current.parts.has_step(step)
        if not found:
            self._end_of_stream()
        return found

    def steps_ahead(self) -> list[Step] | None:
        """Return the steps of the next pass; None if they are not known."""
        steps = self.cursor.steps_ahead()
        return None if steps is None else list(steps)

    # ---- the rows

    def __call__(self, *, real_only: bool = False) -> Iterator[Batch]:
        """Yield the columns of each batch, and a mask of its real rows.

        With `real_only` the pass leaves out the padding, is in the rows' own order, and does not count as an epoch.
        """
        for current, block, (values, real) in self._pass(np.empty, real_only=real_only):
            start = 0
            for size in block.sizes:
                stop = start + size
                batch = {name: each[start:stop] for name, each in values.items()}, real[start:stop]
                yield self._hand_out(current, 1, batch, real_only)
                start = stop

    def blocks(self, empty: Allocate = np.empty, *, real_only: bool = False) -> Iterator[Batch]:
        """Yield the rows of several batches at once, numeric columns in arrays that `empty` allocates."""
        for current, block, batch in self._pass(empty, real_only=real_only):
            yield self._hand_out(current, len(block.sizes), batch, real_only)

    def _pass(self, empty: Allocate, *, real_only: bool) -> Iterator[tuple[Pass, Block, Batch]]:
        current = self._current = self._begin(real_only=real_only)
        queue = RowQueue(self.selection.kinds, self.shares.most)
        with closing(current.blocks(queue)) as blocks:
            for block in blocks:
                size = sum(block.sizes)
                yield current, block, (queue.take(block.rows, size, empty), np.arange(size) < block.rows)
        if not current.counts:
            return
        if isinstance(current, ArrivingPass):
            self._end_of_stream()
        if self._share.is_training and not self.alone:
            self.observer.note_rows(queue.taken)
        if self._on_epoch_end is not None:
            self._on_epoch_end(current.epoch)

    def _begin(self, *, real_only: bool) -> Pass:
        stream, cursor = self._share.stream, self.cursor
        if stream is not None and stream.begin_pass(may_be_first=not (cursor.is_resumed or real_only)):
            assert stream.parts is not None
            cursor.epoch = 0
            seed = order_seed(cursor.order.seed, 0, self._share.index)
            return ArrivingPass(
                selection=self.selection, seed=seed, parts=stream.parts, shares=self.shares, alone=self.alone
            )
        rows, whole = cursor.all_rows()
        if real_only:  # in the steps of one worker alone
            plan = plan_epoch([rows.rows], whole.rows_alone, 0)
            return EpochPass(selection=self.selection, rows=rows, plan=plan, counts=False)
        self._on_begin(cursor)
        return cursor.begin()

    def _hand_out(self, current: Pass, steps: int, batch: Batch, real_only: bool) -> Batch:
        """Report that the rows of a pass's next steps are handed out; return those that are."""
        if current.counts:
            current.step += steps
            current.rows_before += (real := int(np.count_nonzero(batch[1])))
            if real < len(batch[1]):
                self.observer.note_padding()
            self._share.report(Progress(current.epoch, current.step, current.steps, current.rows_before))
            if self._share.is_training and not self._is_noted:
                self._is_noted = True
                self.observer.note_first(self._first_features(batch))
            if current.step == current.steps:
                self.cursor.next = current.epoch + 1, 0
        return real_rows(batch) if real_only else batch

    def _first_features(self, batch: Batch) -> Any:
        """Return a copy of the features of a batch's first real rows; None if rows have no common shape."""
        if any(kind.ragged for kind in self.selection.kinds.values()):
            return None
        values, real = batch
        rows = min(NOTED_ROWS, int(np.count_nonzero(real)))  # padding comes last
        return self.selection.pick_features({name: np.array(each[:rows]) for name, each in values.items()})

    def _end_of_stream(self) -> None:
        assert self._share.stream is not None
        self._share.stream.all_taken = True
        self.cursor.next = 1, 0
