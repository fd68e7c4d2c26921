"""Epochs over cached rows: the same number of steps on every worker, shuffled anew in each epoch.

In synchronous training a worker that runs out of batches stops all others for ever. So all workers agree, from the
row counts that each of them knows, on the number of steps of the one that needs most; the others fill up with rows of
weight zero. Each row is seen exactly once per epoch with its own weight.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt

from tensorflowonspark import columns
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import note_rows, state_pass
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.shard import Shard

__all__ = ["BLOCK_BYTES", "BLOCK_ROWS", "EpochPlan", "Epochs", "batch_shares", "plan_epoch"]


@dataclass(frozen=True)
class EpochPlan:
    """One worker's epoch: `steps` batches of `batch_rows` rows, of which the first `rows` rows are real."""

    rows: int
    batch_rows: int
    steps: int

    def real_rows(self, step: int) -> int:
        """How many rows of this step are real."""
        return max(0, min(self.batch_rows, self.rows - step * self.batch_rows))

    def padding(self, step: int) -> int:
        """How many rows of weight zero fill this step up; an epoch's last batch may be short, but never empty."""
        real = self.real_rows(step)
        return 0 if real and step == self.steps - 1 else self.batch_rows - real


def plan_epoch(rows: Sequence[int], batch_size: int, index: int) -> EpochPlan:
    """Return the epoch of worker number `index`.

    Parameters
    ----------
    rows : sequence of int
        The rows of each worker.
    batch_size : int
        Rows per step over all workers together; where it can't be divided evenly, the first workers take one more.
    index : int
        Which of the workers it is for.

    Raises
    ------
    SpecError
        If there are more workers than rows in a batch.

    Examples
    --------
    >>> plan_epoch([100, 10], batch_size=64, index=1)
    EpochPlan(rows=10, batch_rows=32, steps=4)
    """
    sizes = batch_shares(batch_size, len(rows))
    steps = max(-(-count // size) for count, size in zip(rows, sizes, strict=True))
    return EpochPlan(rows[index], sizes[index], steps)


def batch_shares(batch_size: int, workers: int) -> list[int]:
    """Return how many rows of a batch each worker has: as many, or the first ones one more.

    Examples
    --------
    >>> batch_shares(32, 3)
    [11, 11, 10]
    """
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < workers:
        raise SpecError(
            f"batch_size={batch_size!r}: it counts the rows of one step over all {workers} workers, so it must be a "
            f"whole number of at least {workers}"
        )
    return [int(batch_size) // workers + (worker < int(batch_size) % workers) for worker in range(workers)]


# What is gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
BLOCK_ROWS = 2048
BLOCK_BYTES = 16 << 20


class Epochs:
    """Makes the batches of one epoch after the other; each call starts a new pass.

    Parameters
    ----------
    shard : Shard
        This worker's rows.
    selection : Selection
        The columns that are wanted.
    plan : EpochPlan
        How many steps there are, and of how many rows.
    report : callable
        Takes a `Progress` before each batch.
    seed : int or None
        What the epochs' orders are drawn from; None keeps the rows' own order.
    on_epoch_end : callable, optional
        Called with the epoch's number (from 0) when its last batch has been taken and the next is asked for.
    on_rows_given : callable, optional
        Called with the number of a pass's real rows at the same time.
    """

    def __init__(
        self,
        shard: Shard,
        selection: Selection,
        plan: EpochPlan,
        report: Callable[[Progress], None],
        seed: int | None,
        on_epoch_end: Callable[[int], None] | None = None,
        on_rows_given: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self._kinds = selection.kinds
        self._reader = shard.reader(selection.kinds)
        self._bytes_per_row = max(1.0, shard.bytes_per_row(selection.kinds))
        self._report = report
        self._seed = seed
        self._on_epoch_end = on_epoch_end
        self._on_rows_given = on_rows_given
        self._first = 0  # step of the next pass
        self._done = 0  # epochs whose last batch was handed out; passes that were given up don't count

    def begin_at(self, epoch: int, step: int) -> None:
        """Have the next pass be the rest of an epoch, from a step on."""
        self._done, self._first = epoch, step

    def __call__(self) -> Iterator[Batch]:
        """Yield the columns of each batch, and which of its rows are real."""
        note_rows()
        if state_pass():
            yield from self._real_rows(self.plan.batch_rows)
            return
        for epoch, steps, block in self._pass():
            start = 0
            for step in steps:
                stop = start + self.plan.real_rows(step) + self.plan.padding(step)
                self._tell(epoch, step)
                yield {name: values[start:stop] for name, values in block.items()}, self._real(step, step + 1)
                start = stop

    def blocks(self) -> Iterator[Batch]:
        """Yield the rows of several batches at once; all batches but the epoch's last have `plan.batch_rows` rows."""
        note_rows()
        if state_pass():
            yield from self._real_rows(self._rows_per_block)
            return
        for epoch, steps, block in self._pass():
            self._tell(epoch, steps[-1])
            yield block, self._real(steps.start, steps.stop)

    @property
    def _rows_per_block(self) -> int:
        return max(1, int(min(BLOCK_ROWS, BLOCK_BYTES / self._bytes_per_row)))

    def _real_rows(self, rows_at_once: int) -> Iterator[Batch]:
        """Yield each row once, in the rows' own order; this is no epoch, and nothing is filled up."""
        for start in range(0, self.plan.rows, rows_at_once):
            stop = min(start + rows_at_once, self.plan.rows)
            yield self._reader.take(np.arange(start, stop)), np.ones(stop - start, np.bool_)

    def _pass(self) -> Iterator[tuple[int, range, dict[str, columns.Array | columns.Ragged]]]:
        """Yield the epoch's number, some steps, and the rows of these steps."""
        plan, epoch = self.plan, self._done
        order = self._order(epoch)
        steps_per_block = max(1, self._rows_per_block // plan.batch_rows)
        begin, self._first = self._first, 0
        for first in range(begin, plan.steps, steps_per_block):
            steps = range(first, min(first + steps_per_block, plan.steps))
            yield epoch, steps, self._gather(order, steps)
        if self._on_rows_given is not None:
            self._on_rows_given(max(0, plan.rows - begin * plan.batch_rows))
        if self._on_epoch_end is not None:
            self._on_epoch_end(epoch)

    def _tell(self, epoch: int, step: int) -> None:
        """Note that a step's rows go out."""
        plan = self.plan
        seen = min(plan.rows, step * plan.batch_rows + plan.real_rows(step))
        self._report(Progress(epoch, step + 1, plan.steps, seen))
        if step == plan.steps - 1:
            self._done = epoch + 1

    def _real(self, first: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return which rows of some steps are real: all, and then none."""
        plan = self.plan
        real = sum(plan.real_rows(step) for step in range(first, stop))
        return np.arange(real + sum(plan.padding(step) for step in range(first, stop))) < real

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self.plan.rows)
        return np.random.default_rng([self._seed, epoch]).permutation(self.plan.rows)

    def _gather(self, order: npt.NDArray[np.int64], steps: range) -> dict[str, columns.Array | columns.Ragged]:
        """Return the rows of some steps, padding included, as one array for each column.

        Padding repeats real rows, so that batch statistics stay those of real data; a worker without any row has
        nothing but zeros to offer.
        """
        plan = self.plan
        size = sum(plan.real_rows(step) + plan.padding(step) for step in steps)
        if not len(order):
            return {name: columns.zeros(size, kind) for name, kind in self._kinds.items()}
        start = steps.start * plan.batch_rows
        return self._reader.take(order[np.arange(start, start + size) % len(order)])
