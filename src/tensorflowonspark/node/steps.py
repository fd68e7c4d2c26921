"""Even steps: how many batches an epoch has, the same on every worker, whatever each of them was fed.

In synchronous training a worker that runs out of batches stops all others for ever. So all workers agree, from the
row counts that each of them knows, on the number of steps of the one that needs most; the others fill up with rows of
weight zero. Each row is seen exactly once per epoch with its own weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from tensorflowonspark.errors import SpecError

__all__ = ["EpochPlan", "batch_shares", "plan_epoch"]


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
