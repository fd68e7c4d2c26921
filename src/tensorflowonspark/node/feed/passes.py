"""Passes over a worker's share of a feed, wherever its rows are: in a cache, in files, arriving, or in a stream."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral
from weakref import WeakSet

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import Shares, SplitManifest
from tensorflowonspark.keras.feed_tracking import row_counts
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.arriving import ArrivingPasses, ArrivingRows
from tensorflowonspark.node.feed.epochs import EpochPlan, Epochs, Rows, plan_epoch, shares_of, uneven_rows
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.stream import Stream

__all__ = ["Passes", "Share"]

_log = logging.getLogger(__name__)

Passes = Callable[[], Iterator[Batch]]  # starts a pass; an `Epochs`, an `ArrivingPasses`, or a stream's only pass


class Share:
    """One worker's share of a feed.

    Parameters
    ----------
    manifest : SplitManifest
        The rows and columns of all workers.
    rows : Rows, ArrivingRows or Stream
        This worker's rows: for as many epochs as one likes, or for one.
    numbers : sequence of int
        The node numbers of all workers that are fed, in their order.
    number : int
        This node's number.
    report : callable
        Takes a `Progress` before each batch.

    Attributes
    ----------
    index : int
        This worker's place among those that are fed.
    is_training : bool
        Whether the rows are to train on, and not to validate on.

    Raises
    ------
    FeedError
        If this node has another number of rows than the manifest.
    """

    def __init__(
        self,
        manifest: SplitManifest,
        rows: Rows | ArrivingRows | Stream,
        numbers: Sequence[int],
        number: int,
        report: Callable[[Progress], None],
    ) -> None:
        if not isinstance(rows, (ArrivingRows, Stream)) and rows.rows != manifest.rows[number]:
            raise FeedError(f"this node has {rows.rows} rows of the feed, and should have {manifest.rows[number]}")
        self.index = list(numbers).index(number)
        self.is_training = True
        self._manifest = manifest
        self._rows = rows
        self._numbers = numbers
        self._report = report
        self._created: WeakSet[ArrivingPasses | Epochs] = WeakSet()  # since the last `resume_at`

    @property
    def counts(self) -> list[int] | None:
        """Number of rows of each worker; None for a stream, and as long as rows arrive."""
        if isinstance(self._rows, Stream):
            return None
        manifest = self._rows.manifest if isinstance(self._rows, ArrivingRows) else self._manifest
        return None if manifest is None else self._rows_of(manifest)

    @property
    def fingerprint(self) -> int:
        """That of all workers' rows, on which the order of an epoch depends; wait until all rows have arrived."""
        if isinstance(self._rows, ArrivingRows) and not self._rows.repeatable:
            return self._rows.wait()[0].fingerprint
        return self._manifest.fingerprint

    @property
    def stream(self) -> Stream | None:
        """The rows, if they come once."""
        return self._rows if isinstance(self._rows, Stream) else None

    @property
    def in_first_pass(self) -> ArrivingRows | None:
        """The rows, while the first pass takes them in the order of their arrival, which no later one repeats."""
        rows = self._rows
        if isinstance(rows, ArrivingRows) and rows.in_first_pass and not rows.repeatable:
            return rows
        return None

    def shares(self, batch_size: int) -> Shares:
        """Return this worker's rows of each batch of all workers, of rows as they arrive."""
        return shares_of(batch_size, len(self._numbers), self.index)

    def plan(self, counts: Sequence[int], batch_size: int) -> EpochPlan:
        """Return this worker's epoch over rows of these numbers; a pass over them as they arrive has the same steps."""
        return plan_epoch(counts, batch_size, self.index, in_order=isinstance(self._rows, ArrivingRows))

    def resume_at(self, epoch: int, step: int) -> bool:
        """Start the passes that have not begun in the middle of an epoch; return whether one exists.

        Parameters
        ----------
        epoch, step : int
            Complete epochs, and steps taken in the next one.
        """
        if isinstance(self._rows, ArrivingRows) and not self._rows.repeatable and step and not epoch:
            return False  # the order of the first epoch was that of arrival
        created, self._created = list(self._created), WeakSet()
        for each in created:
            each.resume_at(epoch, step)
        return bool(created)

    def passes_alone(self, selection: Selection, batch_rows: int, seed: int | None) -> Passes:
        """Return the passes over this worker's rows, independent of other workers, unpadded."""

        def epochs_over(rows: Rows, _manifest: SplitManifest) -> Epochs:
            return Epochs(rows, selection, plan_epoch([rows.rows], batch_rows, 0), self._report, seed)

        if isinstance(self._rows, Stream):
            return partial(self._rows.batches, selection, shares_of(batch_rows, 1, 0), seed, independent=True)
        if not isinstance(self._rows, ArrivingRows):
            return epochs_over(self._rows, self._manifest)
        assert self._rows.repeatable  # others are refused before the feed begins
        assert self._rows.stream is not None
        first_pass = partial(self._rows.stream.batches, selection, shares_of(batch_rows, 1, 0), seed, independent=True)
        return ArrivingPasses(self._rows, selection, first_pass, epochs_over, 0)

    def passes(
        self,
        selection: Selection,
        batch_size: int,
        seed: int | None,
        first_step: int,
        on_epoch_end: Callable[[int], None] | None,
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
        if isinstance(self._rows, Stream):
            if first_step:
                raise FeedError("first_step is for cached rows: the rows before it of a stream are gone")
            return partial(self._rows.batches, selection, self.shares(batch_size), seed, on_epoch_end)

        def epochs_over(rows: Rows, manifest: SplitManifest) -> Epochs:
            counts = self._rows_of(manifest)
            plan = self.plan(counts, batch_size)
            if self.is_training and self.index == 0 and (text := uneven_rows(counts, batch_size, plan.steps)):
                _log.warning("%s", text)
            count = row_counts.add if self.is_training else None
            return Epochs(rows, selection, plan, self._report, seed, on_epoch_end, count)

        passes: ArrivingPasses | Epochs
        if isinstance(self._rows, ArrivingRows):
            stream, first_pass = self._rows.stream, None
            if stream is not None:
                first_pass = partial(stream.batches, selection, self.shares(batch_size), seed, on_epoch_end)
            passes = ArrivingPasses(self._rows, selection, first_pass, epochs_over, int(first_step))
        else:
            passes = epochs_over(self._rows, self._manifest)
            passes.resume_at(*divmod(int(first_step), max(1, passes.plan.steps)))
        self._created.add(passes)
        return passes

    def _rows_of(self, manifest: SplitManifest) -> list[int]:
        return [manifest.rows.get(each, 0) for each in self._numbers]
