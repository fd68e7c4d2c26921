"""One worker's share of a feed, wherever its rows are: in a cache, in files, or still arriving."""

import logging
from collections.abc import Callable, Sequence
from numbers import Integral
from weakref import WeakSet

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import Layout, Shares, SplitManifest
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.arriving import ArrivingParts, ArrivingRows
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.plan import EpochPlan, plan_epoch, shares_of, uneven_rows
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.taken import TakenRows

_log = logging.getLogger(__name__)


class Share:
    """One worker's share of a feed.

    Parameters
    ----------
    manifest : SplitManifest
        The rows and columns of all workers.
    rows : Rows or ArrivingRows
        This worker's rows.
    numbers : sequence of int
        The node numbers of all workers that are fed, in their order.
    number : int
        This node's number.
    report : callable
        Takes a `Progress` before each batch.
    taken_before : callable, optional
        Takes a number of steps; returns the rows of their last epoch that they have taken, if a checkpoint was restored
        that has them.
    equal_batches : callable, optional
        Returns whether all batches of all workers must have the same number of rows (`plan_epoch`).
    count_rows : callable, optional
        Takes the number of rows of a pass over the rows to train on, at its end.

    Attributes
    ----------
    arriving : ArrivingRows or None
        The rows, if they arrive.
    index : int
        This worker's place among those that are fed.
    is_training : bool
        Whether the rows are to train on, and not to validate on.
    latest : Passes or None
        The passes of which one began last, or if none has begun, those that were made last.
    manifest, report, taken_before, count_rows
        The same.

    Raises
    ------
    FeedError
        If this node has another number of rows than the manifest.
    """

    def __init__(
        self,
        manifest: SplitManifest,
        rows: Rows | ArrivingRows,
        numbers: Sequence[int],
        number: int,
        report: Callable[[Progress], None],
        taken_before: Callable[[int], TakenRows | None] = lambda _: None,
        equal_batches: Callable[[], bool] = lambda: False,
        count_rows: Callable[[int], object] = lambda _rows: None,
    ) -> None:
        self.arriving = rows if isinstance(rows, ArrivingRows) else None
        self._rows = None if isinstance(rows, ArrivingRows) else rows
        if self._rows is not None and self._rows.rows != manifest.rows[number]:
            raise FeedError(
                f"this node has {self._rows.rows} rows of the feed, and should have {manifest.rows[number]}"
            )
        self.index = list(numbers).index(number)
        self.is_training = True
        self.latest: Passes | None = None
        self.report = report
        self.taken_before = taken_before
        self.count_rows = count_rows
        self._equal_batches = equal_batches
        self.manifest = manifest
        self._numbers = numbers
        self._created: WeakSet[Passes] = WeakSet()  # since the last `resume_at`

    @property
    def counts(self) -> list[int] | None:
        """Number of rows of each worker; None as long as rows arrive."""
        manifest = self._manifest_of_all
        return None if manifest is None else self._counts_of(manifest)

    @property
    def layout(self) -> Layout | None:
        """Where the rows of all workers are; None if that is unknown, or a worker is lost."""
        manifest = self._manifest_of_all
        return None if manifest is None or list(manifest.rows) != list(self._numbers) else manifest.layout

    @property
    def _manifest_of_all(self) -> SplitManifest | None:
        return self.manifest if self.arriving is None else self.arriving.arrived()

    def _counts_of(self, manifest: SplitManifest) -> list[int]:
        return [manifest.rows.get(each, 0) for each in self._numbers]

    @property
    def parts(self) -> ArrivingParts | None:
        """The rows as they arrive, if they do."""
        return None if self.arriving is None else self.arriving.parts

    @property
    def is_kept(self) -> bool:
        """Whether the rows can be passed over several times."""
        return self.arriving is None or self.arriving.wait is not None

    @property
    def first_pass_is_unique(self) -> bool:
        """Whether the first pass takes the rows in the order of their arrival, which no later one repeats."""
        return self.arriving is not None and not self.arriving.repeatable

    @property
    def fingerprint(self) -> int:
        """That of all workers' rows, on which the order of an epoch depends; wait until all rows have arrived."""
        if self.arriving is None or self.arriving.repeatable:
            return self.manifest.fingerprint
        return (self.arriving.arrived() or self._wait()[0]).fingerprint

    @property
    def in_first_pass(self) -> ArrivingRows | None:
        """The rows, while the program takes them in an order that no later pass repeats."""
        return self.arriving if self.arriving and self.arriving.in_first_pass and self.first_pass_is_unique else None

    def plan(self, counts: Sequence[int], batch_size: int) -> EpochPlan:
        """Return this worker's epoch over rows of these numbers; a pass over them as they arrive has the same steps."""
        return plan_epoch(
            counts, batch_size, self.index, in_order=self.arriving is not None, equal=self._equal_batches()
        )

    def all_shares(self, batch_size: int) -> list[Shares]:
        """Return the shares of all workers, in their order, in the steps of a plan."""
        counts, in_order, equal = self.counts, self.arriving is not None, self._equal_batches()
        assert counts is not None
        workers = range(len(counts))
        return [plan_epoch(counts, batch_size, each, in_order=in_order, equal=equal).shares for each in workers]

    def resume_from(self, taken: TakenRows) -> int | None:
        """Start the passes that have not begun where an epoch's steps have taken these rows.

        Returns
        -------
        int or None
            The step of the epoch at which they begin; None if they can't.
        """
        if self.first_pass_is_unique and not taken.epoch:
            return None
        steps = [(each, each.resume_from(taken)) for each in self._created]
        # A program may have another dataset to evaluate on; the one that it trains on takes the steps as before.
        same = {step for each, step in steps if taken.legs and each.takes_steps_as(taken.legs[-1])}
        found = same or {step for _, step in steps}
        return found.pop() if len(found) == 1 else None

    def resume_at(self, epoch: int, step: int) -> bool:
        """Start the passes that have not begun in the middle of an epoch; return whether one exists.

        Parameters
        ----------
        epoch, step : int
            Complete epochs, and steps taken in the next one.
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

        Parameters
        ----------
        selection : Selection
            The columns.
        batch_size, seed, first_step, on_epoch_end
            As for `Feed.dataset`; without a seed the rows keep their order.

        Raises
        ------
        FeedError, SpecError
            If `first_step` is invalid, or the rows before it are gone.
        """
        if not isinstance(first_step, Integral) or first_step < 0:
            raise SpecError(f"first_step={first_step!r}: expected the number of steps taken before")
        if first_step and not self.is_kept:
            raise FeedError("first_step is for cached rows: the rows before it of a stream are gone")
        shares = shares_of(batch_size, len(self._numbers), self.index, equal=self._equal_batches())
        self.latest = Passes(self, selection, shares, seed, int(first_step), on_epoch_end)
        self._created.add(self.latest)
        return self.latest

    def passes_alone(self, selection: Selection, batch_rows: int, seed: int | None) -> Passes:
        """Return the passes of a worker whose steps depend on no other's."""
        return Passes(self, selection, shares_of(batch_rows, 1, 0), seed, alone=True)

    def all_rows(self, selection: Selection, shares: Shares, *, alone: bool) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them, and the plan of an epoch over them.

        Raises
        ------
        FeedError
            If there are none, or some are not of the kinds of the first ones.
        """
        manifest, rows = self.manifest, self._rows
        if rows is None:
            manifest, rows = self._wait()
            if not manifest.schema:
                raise FeedError("the data has no rows to validate on")
            selection.check(manifest)
        if alone:
            return rows, plan_epoch([rows.rows], shares.batch_size, 0)
        counts = self._counts_of(manifest)
        plan = self.plan(counts, shares.batch_size)
        if self.is_training and self.index == 0 and (text := uneven_rows(counts, shares.batch_size, plan.steps)):
            _log.warning("%s", text)
        return rows, plan

    def _wait(self) -> tuple[SplitManifest, Rows]:
        assert self.arriving is not None
        assert self.arriving.wait is not None
        return self.arriving.wait()
