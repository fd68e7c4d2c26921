"""Rows of a feed that starts early: one pass over them as they arrive, and all others over rows of known number.

The first pass that a program begins takes the steps that the driver grants, as in a stream. All workers run the same
program, so it is the same pass on all of them. Any other pass begins when all rows have arrived; or, of files that are
read in each epoch, when they have been counted.
"""

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock

import numpy as np

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.keras.feed_tracking import state_pass
from tensorflowonspark.node.feed.epochs import Epochs, Rows
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.shard import Allocate
from tensorflowonspark.node.feed.stream import Stream

__all__ = ["ArrivingPasses", "ArrivingRows"]


class ArrivingRows:
    """The rows of one worker.

    Parameters
    ----------
    stream : Stream or None
        The rows as they arrive; None if every pass waits for all of them, as over rows to validate on.
    arrived : callable
        Returns what all workers have; None as long as rows arrive.
    wait : callable
        Waits until all rows have arrived; returns what all workers have, and this worker's rows.
    repeatable : bool
        Whether the pass over the rows as they arrive has the order of the first epoch over all rows, so that it can be
        resumed within that.

    Attributes
    ----------
    stream, wait, repeatable
        The same.
    in_first_pass : bool
        Whether the pass that began last takes the rows as they arrive.
    all_taken : bool
        Whether the program has taken all rows in that pass.
    """

    def __init__(
        self,
        stream: Stream | None,
        arrived: Callable[[], SplitManifest | None],
        wait: Callable[[], tuple[SplitManifest, Rows]],
        *,
        repeatable: bool = False,
    ) -> None:
        self.stream = stream
        self.wait = wait
        self.repeatable = repeatable
        self._begun = False  # a pass has
        self.in_first_pass = self.all_taken = False
        self._arrived = arrived
        self._lock = Lock()

    def begin_pass(self, *, may_be_first: bool) -> bool:
        """Note that a pass begins; return whether it is the one over the rows as they arrive."""
        with self._lock:
            self.in_first_pass = may_be_first and not self._begun and self.stream is not None
            self._begun = True
            return self.in_first_pass

    @property
    def manifest(self) -> SplitManifest | None:
        """What all workers have; None as long as rows arrive."""
        return self._arrived()


class ArrivingPasses:
    """The passes of one dataset; each call starts one.

    Parameters
    ----------
    rows : ArrivingRows
        The rows.
    selection : Selection
        The columns to gather.
    first_pass : callable or None
        Starts the pass over the rows as they arrive; None if there is none.
    epochs_over : callable
        Returns the passes over this worker's rows of a feed that is complete.
    first_step : int
        The step of all passes at which the first of them begins; if the pass as rows arrive can't be repeated, it must
        not be within that.
    """

    def __init__(
        self,
        rows: ArrivingRows,
        selection: Selection,
        first_pass: Callable[[], Iterator[Batch]] | None,
        epochs_over: Callable[[Rows, SplitManifest], Epochs],
        first_step: int,
    ) -> None:
        self._rows = rows
        self._selection = selection
        self._first_pass = first_pass
        self._epochs_over = epochs_over
        self._first_step = first_step
        self._begin = 0, 0  # epoch and step
        self._arrive = False  # the current pass takes the rows as they arrive
        self._epochs: Epochs | None = None

    def resume_at(self, epoch: int, step: int) -> None:
        """Make the next pass the rest of an epoch, from a step on."""
        self._begin, self._epochs = (epoch, step), None

    def __call__(self) -> Iterator[Batch]:
        """Yield the batches of a pass."""
        return self._pass(Epochs.__call__)

    def blocks(self, empty: Allocate = np.empty) -> Iterator[Batch]:
        """Yield the rows of a pass in order, in blocks of one or several batches.

        Parameters
        ----------
        empty : callable
            Allocates the arrays into which numeric columns are gathered once all rows have arrived.
        """
        return self._pass(partial(Epochs.blocks, empty=empty))

    @property
    def known_steps(self) -> int:
        """Number of steps of the current pass that are certain."""
        if self._epochs is not None and not self._arrive:
            return self._epochs.plan.steps
        return 0 if self._rows.stream is None else self._rows.stream.known_steps

    def has_step(self, step: int) -> bool:
        """Return whether the current pass has a step, above 0; wait until that is certain."""
        if not self._arrive:
            return self._epochs is None or step < self._epochs.plan.steps
        assert self._rows.stream is not None
        found = self._rows.stream.has_step(step)
        if not found:
            self._end_first_pass()
        return found

    def _pass(self, read: Callable[[Epochs], Iterator[Batch]]) -> Iterator[Batch]:
        resumed = self._first_step or self._begin != (0, 0)
        self._arrive = self._rows.begin_pass(may_be_first=not resumed and not state_pass())
        if not self._arrive:
            yield from read(self._all_rows())
            return
        assert self._first_pass is not None
        yield from self._first_pass()
        self._end_first_pass()

    def _end_first_pass(self) -> None:
        self._rows.all_taken = True
        self._begin = 1, 0

    def _all_rows(self) -> Epochs:
        if self._epochs is None:
            manifest, rows = self._rows.wait()
            if not manifest.schema:
                raise FeedError("the data has no rows to validate on")
            self._selection.check(manifest)
            epochs = self._epochs_over(rows, manifest)
            epoch, step = self._begin
            if self._first_step:
                epoch, step = divmod(self._first_step, max(1, epochs.plan.steps))
                if not (epoch or self._rows.repeatable):
                    raise FeedError(
                        f"first_step={self._first_step}: the first epoch has {epochs.plan.steps} steps, and of a feed "
                        "with start='first_rows' it can't be resumed, since its rows come in the order of their "
                        "arrival: use start='all_rows', or save checkpoints after epochs only"
                    )
            epochs.resume_at(epoch, step)
            self._epochs = epochs
        return self._epochs
