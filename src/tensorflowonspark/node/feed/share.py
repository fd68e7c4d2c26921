"""One worker's share of a feed, as programs read it: the passes over its rows, and where the next ones begin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TypeVar
from weakref import WeakSet

import numpy as np
import pyarrow.compute as pc

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.mixture import Mixture
from tensorflowonspark.node.feed.composed_rows import ComposedSelection
from tensorflowonspark.node.feed.cursor import EpochCursor
from tensorflowonspark.node.feed.footers import Combine
from tensorflowonspark.node.feed.order import Numbers
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.plan import shares_of
from tensorflowonspark.node.feed.row_sources import Sources, all_sources, check_sources, own_sources
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.step_orders import FindSources, WorkerOrder, step_order
from tensorflowonspark.node.feed.taken import TakenRows, order_seed

Value = TypeVar("Value")


@dataclass(eq=False, repr=False)
class Share(ShareRows):
    """One worker's share of a feed; a checkpoint that is restored moves the passes which have not begun."""

    # what combines values of all workers, for a call of the program; None if this one is alone
    combine: Callable[[str], Combine | None] = lambda _call: None
    # of the passes of which one began last, or if none has, of those made last
    latest: EpochCursor | None = field(default=None, init=False)
    _created: WeakSet[EpochCursor] = field(default_factory=WeakSet, init=False)  # since the last `resume_at`
    _sources: Sources | None = field(default=None, init=False)  # of the rows of all workers, once they are known

    def resume_from(self, taken: TakenRows) -> tuple[int, int] | None:
        """Start the passes that have not begun where an epoch's steps have taken these rows.

        The result is the epoch and its step at which they begin; None if they can't.
        """
        if self.first_pass_is_unique and not taken.epoch:
            return None
        places = [(each, each.resume_from(taken)) for each in self._created]
        # A program may have another dataset to evaluate on; the one that it trains on takes the steps as before.
        same = {place for each, place in places if taken.spans and each.takes_steps_as(taken.spans[-1])}
        found = same or {place for _, place in places}
        return found.pop() if len(found) == 1 else None

    def resume_at(self, epoch: int, step: int) -> bool:
        """Start the passes that have not begun in the middle of an epoch; return whether one exists.

        These are complete epochs, and steps taken in the next one.
        """
        if self.first_pass_is_unique and step and not epoch:
            return False
        created, self._created = list(self._created), WeakSet()
        for each in created:
            each.resume_at(epoch, step)
        return bool(created)

    def passes(
        self,
        selection: Selection,
        batch_size: int,
        seed: int | None,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
    ) -> Passes:
        """Return the passes in which all workers take the same steps.

        Rows before `first_step` that are gone are a `FeedError`.
        """
        if not isinstance(first_step, Integral) or first_step < 0:
            raise SpecError(f"first_step={first_step!r}: expected the number of steps taken before")
        if first_step and not self.is_kept:
            raise FeedError("first_step is for cached rows: the rows before it of a stream are gone")
        share: ShareRows = self
        sources = self._all_sources
        if isinstance(selection, ComposedSelection):
            share, sources = self._composed(selection, seed)
        elif selection.only is not None:
            share = self._of_source(*selection.only)
        order = step_order(share, share.shares(batch_size), seed, sources)
        made = Passes(share, selection, order, int(first_step), on_epoch_end, on_begin=self._note_begun)
        self.latest = made.cursor
        self._created.add(made.cursor)
        return made

    def _composed(self, selection: ComposedSelection, seed: int | None) -> tuple[ShareRows, FindSources]:
        """Return the composed rows, and what finds the sources of a mixture's; the workers agree on their numbers."""
        call = selection.call
        if selection.only is not None:
            raise FeedError(f"{call}: only=... takes rows as they are: leave one of them out")
        if not isinstance(self.rows, Shard):
            raise FeedError(f"{call} needs all rows before the first step: keep them (cache='disk', start='all_rows')")
        if self.is_global and self.mixture is None:
            raise FeedError(f"{call}: order='global' divides the rows that are fed among the steps: leave out order")
        if self.mixture is not None and not selection.is_mixed:
            raise FeedError(f"{call}: a mixture draws the rows that are fed, one by one: feed a single DataFrame")
        if self.mixture is not None and self.mixture.epoch_rows is None:
            raise FeedError(
                f"{call}: an epoch of a mixture has as many packed rows as epoch_rows says: pass it with the sources"
            )
        rows = selection.rows_of(self.rows, order_seed(seed, 0, self.index))
        counts, facts = zip(*self._of_all(call, (rows.rows, rows.facts)), strict=True)
        rows.check_workers(facts, self.index)
        if not any(counts):
            raise FeedError(f"{call}: {selection.none}")
        return self._with(rows, counts, selection.made), lambda _: _sources_in_order(facts, self.manifest.mixture)

    def _of_source(self, column: str, source: int) -> ShareRows:
        """Return the rows of one source of a mixture; all workers agree on the numbers of these."""
        assert isinstance(self.rows, Shard)
        own = Shard([[each.filter(pc.equal(each.column(column), source)) for each in self.rows.batches]])
        counts = self._of_all("a dataset with only=...", own.rows)
        if not any(counts):
            raise FeedError("only=...: the source has no rows here")
        made = self._with(own, counts, f"only={source}")
        made.manifest = replace(made.manifest, is_global=False, mixture=None)
        return made

    def _with(self, rows: Rows, counts: Sequence[int], how: str) -> ShareRows:
        """Return other rows that are made of these, so many on each worker."""
        manifest = replace(self.manifest, rows=dict(zip(self.numbers, counts, strict=True)))
        made = ShareRows(manifest, rows, self.numbers, self.number, self.report, self.taken_before, self.observer)
        made.is_training, made.made = self.is_training, how
        return made

    def _all_sources(self, numbers: Sequence[Numbers]) -> Sources:
        """Return the sources of all rows of a mixture, by the numbers of each worker's; all workers ask together."""
        if self._sources is None:
            mixture, rows = self.manifest.mixture, self.rows
            assert mixture is not None
            assert isinstance(rows, Shard)
            own = own_sources(rows, mixture.column, numbers[self.index])
            self._sources = all_sources(self._of_all("the first dataset of a mixture", own), numbers, mixture)
        return self._sources

    def _of_all(self, call: str, own: Value) -> list[Value]:
        """Return what all workers pass, which make the same calls."""
        combine = self.combine(call) if len(self.numbers) > 1 else None
        found: list[Value] = [own] if combine is None else combine(own, list)
        if len(found) != len(self.numbers):
            raise FeedError(f"{call}: these workers do not train together, and have other numbers of steps")
        return found

    def independent_passes(self, selection: Selection, batch_rows: int, seed: int | None) -> Passes:
        """Return the passes of a worker whose steps depend on no other's."""
        order = WorkerOrder(self, shares_of(batch_rows, 1, 0), seed, alone=True)
        return Passes(self, selection, order, on_begin=self._note_begun)

    def _note_begun(self, cursor: EpochCursor) -> None:
        self.latest = cursor


def _sources_in_order(counts: Sequence[Sequence[int]], mixture: Mixture | None) -> Sources:
    """Return the sources of all workers' rows, of which each has so many of each source, in the order of these."""
    assert mixture is not None
    found = [np.repeat(np.arange(len(own)), own) for own in counts]
    sources: Sources = np.concatenate(found).astype(np.uint16)
    check_sources(sources, mixture)
    return sources
