"""Which rows the steps of an epoch have: each worker's own in an order of its own, or those of one order of all rows.

A cursor asks one of the two, and never which of them it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Layout, PartitionSlice, Shares
from tensorflowonspark.mixture import Mixture, order_of
from tensorflowonspark.node.feed.composed_rows import ComposedRows
from tensorflowonspark.node.feed.global_order import global_order
from tensorflowonspark.node.feed.mixture_order import mixture_order
from tensorflowonspark.node.feed.order import Mask, Numbers
from tensorflowonspark.node.feed.plan import EpochPlan
from tensorflowonspark.node.feed.row_sources import Sources
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.taken import EpochRest, StepSpan, find_left, partition_sizes, row_numbers

Spans = tuple[StepSpan, ...]


class WorkerOrder:
    """Each worker takes its share of a step from its own rows; so do the workers that take the rest of an epoch.

    `alone` is a worker of asynchronous training, whose steps depend on no other worker's. Without a `seed` the rows
    keep their own order.
    """

    is_global = False
    mixture: tuple[int, ...] = ()

    def __init__(self, share: ShareRows, shares: Shares, seed: int | None, *, alone: bool = False) -> None:
        self.shares = shares
        self.seed = seed
        self.alone = alone
        self._share = share

    @property
    def layout(self) -> Layout | None:
        """Where the rows of all workers are, or those of which they are `made`; None if that is unknown."""
        return self._share.layout

    @property
    def made(self) -> str:
        """How composed rows are made of those of the layout."""
        return self._share.made

    @property
    def has_equal_batches(self) -> bool:
        """Whether this worker's batches have as many rows, but for the last one."""
        return not self.shares.batch_size % self.shares.workers

    def rest(self, epoch: int, spans: Spans, plan: EpochPlan) -> EpochRest | None:
        """Return what is left of an epoch after some spans, of the rows of each worker; None if they had others."""
        left = None if self.made else _left(epoch, spans, self.layout)
        if left is None:
            return None
        rows = [int(np.count_nonzero(each)) for each in left]
        steps = max(each.steps(count) for each, count in zip(self._all_shares(), rows, strict=True))
        return EpochRest(epoch, spans, plan.steps - steps, rows, left[self._share.index])

    def span(self, rest: EpochRest, steps: int, window_rows: int) -> StepSpan | None:
        """Return the first steps of what is left of an epoch; None if nobody knows where the rows are."""
        layout, rows = self.layout, self._share.counts if rest.rows is None else rest.rows
        if layout is None or rows is None:
            return None
        taken = tuple(min(count, each.before(steps)) for each, count in zip(self._all_shares(), rows, strict=True))
        return StepSpan(layout, taken, steps, self.shares.batch_size, self.seed, window_rows, made=self.made)

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

    is_global, alone, made = True, False, ""
    mixture: tuple[int, ...] = ()  # the rows of each source in an epoch

    def __init__(self, sizes: dict[int, int], own: Numbers, shares: Shares, seed: int | None) -> None:
        # The layout of one worker that has all rows.
        self.layout = Layout((tuple(PartitionSlice(partition, 0, rows) for partition, rows in sizes.items()),))
        self.shares = shares
        self.seed = seed
        self.has_equal_batches = shares.workers == 1
        self._sizes = list(sizes.values())
        self._own = np.full(sum(self._sizes), -1)  # numbers of this worker's rows, by those of all
        self._own[own] = np.arange(len(own))
        self._last: tuple[EpochRest, _OwnRows] | None = None

    def rest(self, epoch: int, spans: Spans, plan: EpochPlan) -> EpochRest | None:
        """Return what is left of an epoch after some spans, of all rows; None if they had others."""
        left = _left(epoch, spans, self.layout)
        if left is None:
            return None
        (of_all,) = left
        steps = -(-int(np.count_nonzero(of_all)) // self.shares.batch_size)
        return EpochRest(epoch, spans, plan.steps - steps, left=of_all)

    def _rows_left(self, rest: EpochRest) -> int:
        return len(self._own) if rest.left is None else int(np.count_nonzero(rest.left))

    def _order(self, rest: EpochRest) -> Numbers:
        """Return the rows that are left of an epoch, in the order of its steps."""
        order = global_order(self._sizes, self.seed, rest.epoch)
        return order if rest.left is None else order[rest.left[order]]

    def span(self, rest: EpochRest, steps: int, window_rows: int) -> StepSpan:
        """Return the first steps of what is left of an epoch."""
        size = self.shares.batch_size
        taken = (min(self._rows_left(rest), steps * size),)
        return StepSpan(
            self.layout,
            taken,
            steps,
            size,
            self.seed,
            window_rows,
            is_global=True,
            mixture=self.mixture,
            made=self.made,
        )

    def plan(self, rest: EpochRest, whole: EpochPlan) -> EpochPlan:
        """Return the plan of what is left of an epoch, by that of a whole one."""
        order, counts = self._own_rows(rest)
        return replace(whole, rows=len(order), steps=len(counts), counts=counts)

    def rows(self, rows: Rows, rest: EpochRest) -> Rows:
        """Return those of this worker's rows that are left of an epoch, in the order of its steps."""
        assert isinstance(rows, (Shard, ComposedRows))
        return rows.in_order(self._own_rows(rest).order)

    def _own_rows(self, rest: EpochRest) -> _OwnRows:
        if self._last is None or not _is_same(self._last[0], rest):
            order = self._order(rest)
            own, size = self._own[order], self.shares.batch_size
            places = np.flatnonzero(own >= 0)
            counts = np.bincount(places // size, minlength=-(-len(order) // size))
            self._last = rest, _OwnRows(own[places], counts)
        return self._last[1]


class MixtureOrder(GlobalOrder):
    """The same of a mixture, of which an epoch has the rows in stated shares (`mixture_order`).

    `sources` has the number of the source of each row of all, by the rows' numbers over all partitions.
    """

    def __init__(
        self,
        mixture: Mixture,
        sources: Sources,
        sizes: dict[int, int],
        own: Numbers,
        shares: Shares,
        seed: int | None,
    ) -> None:
        super().__init__(sizes, own, shares, seed)
        self._own = self._own[np.argsort(sources, kind="stable")]  # numbered over all sources, one after the other
        self._sizes = np.bincount(sources, minlength=len(mixture.names)).tolist()
        self.mixture = mixture.counts(len(sources))

    def of_composed(self, layout: Layout, made: str) -> "MixtureOrder":
        """Return it for rows that are made of others, which are in a layout, and in no other make the same."""
        self.layout, self.made = layout, made
        return self

    def rest(self, epoch: int, spans: Spans, plan: EpochPlan) -> EpochRest | None:
        """Return what is left of an epoch after some spans; None if these were not of this mixture and order."""
        own = self.layout, self.mixture, self.seed, self.made
        if any((each.layout, each.mixture, each.seed, each.made) != own for each in spans):
            return None
        taken = sum(sum(each.taken) for each in spans)
        steps = -(-(sum(self.mixture) - taken) // self.shares.batch_size)
        return EpochRest(epoch, spans, plan.steps - steps, taken=taken)

    def _rows_left(self, rest: EpochRest) -> int:
        return sum(self.mixture) - rest.taken

    def _order(self, rest: EpochRest) -> Numbers:
        return mixture_order(self._sizes, self.mixture, self.seed, rest.epoch)[rest.taken :]


def _left(epoch: int, spans: Spans, layout: Layout | None) -> list[Mask] | None:
    return None if layout is None else find_left(epoch, spans, layout)


def _is_same(rest: EpochRest, other: EpochRest) -> bool:
    return (rest.epoch, rest.taken) == (other.epoch, other.taken) and rest.left is other.left


StepOrder = WorkerOrder | GlobalOrder  # of which a mixture's is one
FindSources = Callable[[Sequence[Numbers]], Sources]  # those of a mixture's rows, by the numbers of each worker's


def step_order(share: ShareRows, shares: Shares, seed: int | None, sources: FindSources) -> StepOrder:
    """Return the order of steps that a feed asks for, by this worker's shares of them.

    With ``order="global"`` and of a mixture a `FeedError` says that a worker is lost.
    """
    if not share.is_global:
        return WorkerOrder(share, shares, seed)
    layout, counts = share.layout, share.counts
    if layout is None or counts is None:
        raise _lost(share.mixture)
    if share.mixture is not None and share.made:
        starts = np.cumsum([0, *counts])
        numbers = [np.arange(start, stop) for start, stop in pairwise(starts)]
        sizes, own = dict(enumerate(counts)), numbers[share.index]
        mixed = MixtureOrder(share.mixture, sources(numbers), sizes, own, shares, seed)
        return mixed.of_composed(layout, share.made)
    sizes = partition_sizes(layout)
    found = row_numbers(layout, sizes)
    if found is None:
        raise _lost(share.mixture)
    if share.mixture is None:
        return GlobalOrder(sizes, found[share.index], shares, seed)
    return MixtureOrder(share.mixture, sources(found), sizes, found[share.index], shares, seed)


def _lost(mixture: Mixture | None) -> FeedError:
    return FeedError(
        f"{order_of(mixture)}: a worker is lost, and nobody knows which rows it had: feed one DataFrame without order"
    )
