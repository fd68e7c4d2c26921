"""Which rows the steps of an epoch have: each worker's own in an order of its own, or those of one order of all rows.

A cursor asks one of the two, and never which of them it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Layout, PartitionSlice, Shares
from tensorflowonspark.node.feed.global_order import global_order
from tensorflowonspark.node.feed.order import Mask, Numbers
from tensorflowonspark.node.feed.plan import EpochPlan
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.taken import EpochRest, StepSpan, partition_sizes, row_numbers

Spans = tuple[StepSpan, ...]


class WorkerOrder:
    """Each worker takes its share of a step from its own rows; so do the workers that take the rest of an epoch.

    `alone` is a worker of asynchronous training, whose steps depend on no other worker's. Without a `seed` the rows
    keep their own order.
    """

    is_global = False

    def __init__(self, share: ShareRows, shares: Shares, seed: int | None, *, alone: bool = False) -> None:
        self.shares = shares
        self.seed = seed
        self.alone = alone
        self._share = share

    @property
    def layout(self) -> Layout | None:
        """Where the rows of all workers are; None if that is unknown."""
        return self._share.layout

    @property
    def has_equal_batches(self) -> bool:
        """Whether this worker's batches have as many rows, but for the last one."""
        return not self.shares.batch_size % self.shares.workers

    def rest(self, epoch: int, spans: Spans, left: Sequence[Mask], plan: EpochPlan) -> EpochRest:
        """Return what is left of an epoch after some spans, of the rows of each worker."""
        rows = [int(np.count_nonzero(each)) for each in left]
        steps = max(each.steps(count) for each, count in zip(self._all_shares(), rows, strict=True))
        return EpochRest(epoch, spans, plan.steps - steps, rows, left[self._share.index])

    def span(self, rest: EpochRest, steps: int, window_rows: int) -> StepSpan | None:
        """Return the first steps of what is left of an epoch; None if nobody knows where the rows are."""
        layout, rows = self.layout, self._share.counts if rest.rows is None else rest.rows
        if layout is None or rows is None:
            return None
        taken = tuple(min(count, each.before(steps)) for each, count in zip(self._all_shares(), rows, strict=True))
        return StepSpan(layout, taken, steps, self.shares.batch_size, self.seed, window_rows)

    def plan(self, rest: EpochRest, whole: EpochPlan) -> EpochPlan:
        """Return the plan of what is left of an epoch, by that of a whole one."""
        if rest.rows is None:
            return whole
        return replace(whole, rows=rest.rows[self._share.index], steps=whole.steps - rest.first_step)

    def rows(self, rows: Rows, rest: EpochRest) -> Rows:
        """Return those of this worker's rows that are left of an epoch."""
        return rows if rest.left is None else rows.only(rest.left)

    def _all_shares(self) -> list[Shares]:
        return self._share.all_shares(self.shares.batch_size)


class _OwnRows(NamedTuple):
    """The rows of an epoch that a worker has: their numbers in its order, and how many each step has."""

    order: Numbers
    counts: Numbers


class GlobalOrder:
    """A step has the same rows on any number of workers: each takes those that it has (`global_order`).

    `sizes` are the rows of each partition. `own` has the number of each of the worker's rows over all partitions
    (`taken.row_numbers`), in the worker's order.
    """

    is_global, alone = True, False

    def __init__(self, sizes: dict[int, int], own: Numbers, shares: Shares, seed: int | None) -> None:
        # The layout of one worker that has all rows.
        self.layout = Layout((tuple(PartitionSlice(partition, 0, rows) for partition, rows in sizes.items()),))
        self.shares = shares
        self.seed = seed
        self.has_equal_batches = shares.workers == 1
        self._sizes = list(sizes.values())
        self._own = np.full(sum(self._sizes), -1)  # numbers of this worker's rows, by those of all
        self._own[own] = np.arange(len(own))
        self._last: tuple[int, Mask | None, _OwnRows] | None = None

    def rest(self, epoch: int, spans: Spans, left: Sequence[Mask], plan: EpochPlan) -> EpochRest:
        """Return what is left of an epoch after some spans, of all rows."""
        (of_all,) = left
        steps = -(-int(np.count_nonzero(of_all)) // self.shares.batch_size)
        return EpochRest(epoch, spans, plan.steps - steps, left=of_all)

    def span(self, rest: EpochRest, steps: int, window_rows: int) -> StepSpan:
        """Return the first steps of what is left of an epoch."""
        size = self.shares.batch_size
        rows = len(self._own) if rest.left is None else int(np.count_nonzero(rest.left))
        taken = (min(rows, steps * size),)
        return StepSpan(self.layout, taken, steps, size, self.seed, window_rows, is_global=True)

    def plan(self, rest: EpochRest, whole: EpochPlan) -> EpochPlan:
        """Return the plan of what is left of an epoch, by that of a whole one."""
        order, counts = self._own_rows(rest)
        return replace(whole, rows=len(order), steps=len(counts), counts=counts)

    def rows(self, rows: Rows, rest: EpochRest) -> Rows:
        """Return those of this worker's rows that are left of an epoch, in the order of its steps."""
        assert isinstance(rows, Shard)
        return rows.in_order(self._own_rows(rest).order)

    def _own_rows(self, rest: EpochRest) -> _OwnRows:
        epoch, left = rest.epoch, rest.left
        if self._last is None or self._last[0] != epoch or self._last[1] is not left:
            order = global_order(self._sizes, self.seed, epoch)
            order = order if left is None else order[left[order]]
            own, size = self._own[order], self.shares.batch_size
            places = np.flatnonzero(own >= 0)
            counts = np.bincount(places // size, minlength=-(-len(order) // size))
            self._last = epoch, left, _OwnRows(own[places], counts)
        return self._last[2]


StepOrder = WorkerOrder | GlobalOrder


def step_order(share: ShareRows, shares: Shares, seed: int | None) -> StepOrder:
    """Return the order of steps that a feed asks for, by this worker's shares of them.

    With ``order="global"`` a `FeedError` says that a worker is lost.
    """
    if not share.is_global:
        return WorkerOrder(share, shares, seed)
    layout = share.layout
    if layout is None or (numbers := row_numbers(layout, sizes := partition_sizes(layout))) is None:
        raise FeedError("order='global': a worker is lost, and nobody knows which rows it had: leave out order")
    return GlobalOrder(sizes, numbers[share.index], shares, seed)
