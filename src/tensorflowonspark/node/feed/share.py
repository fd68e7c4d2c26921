"""One worker's share of a feed, as programs read it: the passes over its rows, and where the next ones begin."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from weakref import WeakSet

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.composed_rows import ComposedSelection
from tensorflowonspark.node.feed.cursor import EpochCursor
from tensorflowonspark.node.feed.footers import Combine
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.plan import shares_of
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.step_orders import WorkerOrder, step_order
from tensorflowonspark.node.feed.taken import TakenRows, order_seed


@dataclass(eq=False, repr=False)
class Share(ShareRows):
    """One worker's share of a feed; a checkpoint that is restored moves the passes which have not begun."""

    # what combines values of all workers, for a call of the program; None if this one is alone
    combine: Callable[[str], Combine | None] = lambda _call: None
    # of the passes of which one began last, or if none has, of those made last
    latest: EpochCursor | None = field(default=None, init=False)
    _created: WeakSet[EpochCursor] = field(default_factory=WeakSet, init=False)  # since the last `resume_at`

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
        share = self._composed(selection, seed) if isinstance(selection, ComposedSelection) else self
        order = step_order(share, share.shares(batch_size), seed)
        made = Passes(share, selection, order, int(first_step), on_epoch_end, on_begin=self._note_begun)
        self.latest = made.cursor
        self._created.add(made.cursor)
        return made

    def _composed(self, selection: ComposedSelection, seed: int | None) -> ShareRows:
        """Return the composed rows of all workers; they need all rows, and agree on the numbers of those."""
        call = selection.call
        if not isinstance(self.rows, Shard):
            raise FeedError(f"{call} needs all rows before the first step: keep them (cache='disk', start='all_rows')")
        if self.is_global:
            raise FeedError(f"{call}: order='global' divides the rows that are fed among the steps: leave out order")
        rows = selection.rows_of(self.rows, order_seed(seed, 0, self.index))
        combine = self.combine(call) if len(self.numbers) > 1 else None
        own = rows.rows, rows.facts
        found = [own] if combine is None else combine(own, list)
        if len(found) != len(self.numbers):
            raise FeedError(f"{call}: these workers do not train together, and have other numbers of steps")
        counts, facts = zip(*found, strict=True)
        rows.check_workers(facts, self.index)
        if not any(counts):
            raise FeedError(f"{call}: {selection.none}")
        manifest = replace(self.manifest, rows=dict(zip(self.numbers, counts, strict=True)), layout=None)
        made = ShareRows(manifest, rows, self.numbers, self.number, self.report, self.taken_before, self.observer)
        made.is_training = self.is_training
        return made

    def independent_passes(self, selection: Selection, batch_rows: int, seed: int | None) -> Passes:
        """Return the passes of a worker whose steps depend on no other's."""
        order = WorkerOrder(self, shares_of(batch_rows, 1, 0), seed, alone=True)
        return Passes(self, selection, order, on_begin=self._note_begun)

    def _note_begun(self, cursor: EpochCursor) -> None:
        self.latest = cursor
