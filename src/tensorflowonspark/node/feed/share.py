"""One worker's share of a feed, as programs read it: the passes over its rows, and where the next ones begin."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from weakref import WeakSet

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.cursor import EpochCursor
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.plan import shares_of
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.share_rows import ShareRows
from tensorflowonspark.node.feed.step_orders import WorkerOrder, step_order
from tensorflowonspark.node.feed.taken import TakenRows


@dataclass(eq=False, repr=False)
class Share(ShareRows):
    """One worker's share of a feed; a checkpoint that is restored moves the passes which have not begun."""

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
        order = step_order(self, self.shares(batch_size), seed)
        made = Passes(self, selection, order, int(first_step), on_epoch_end, on_begin=self._note_begun)
        self.latest = made.cursor
        self._created.add(made.cursor)
        return made

    def independent_passes(self, selection: Selection, batch_rows: int, seed: int | None) -> Passes:
        """Return the passes of a worker whose steps depend on no other's."""
        order = WorkerOrder(self, shares_of(batch_rows, 1, 0), seed, alone=True)
        return Passes(self, selection, order, on_begin=self._note_begun)

    def _note_begun(self, cursor: EpochCursor) -> None:
        self.latest = cursor
