"""The plan of an epoch over rows of known number: as many steps on every worker.

In synchronous training a worker that runs out of batches blocks all others. So all workers derive, from the row counts
that each of them has, the number of steps of the worker that needs most; the others pad with rows of weight zero. Each
row is seen exactly once per epoch with its own weight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import NamedTuple

from tensorflowonspark.errors import SpecError
from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.node.feed.order import Numbers

_SHOWN = 5  # workers that a message lists


class Step(NamedTuple):
    """One worker's batch of a step: its real rows, which come first, and all of them with padding."""

    real: int
    rows: int


@dataclass(frozen=True)
class EpochPlan:
    """One worker's epoch: `steps` batches with these shares, of which the first `rows` rows are real.

    If the steps have the same rows on any number of workers, `counts` are those of each step that this one has.
    """

    rows: int
    shares: Shares
    steps: int
    full: bool = False  # whether the last batch is padded too
    counts: Numbers | None = field(default=None, compare=False)

    @property
    def batch_rows(self) -> int:
        """The rows of the largest batch, if the shares say it."""
        return self.shares.most

    @property
    def rows_alone(self) -> int:
        """The rows of a batch of this worker's real rows alone, of which there are no more than steps."""
        return max(self.batch_rows, -(-self.rows // max(1, self.steps)))

    @property
    def batches_alone(self) -> int:
        """The number of such batches."""
        return -(-self.rows // self.rows_alone)

    def before(self, step: int) -> int:
        """Return the real rows of all steps before one."""
        return min(self.rows, self.shares.before(step)) if self.counts is None else int(self.counts[:step].sum())

    def steps_from(self, first: int) -> Iterator[Step]:
        """Yield the steps from one on; an epoch's last batch may be short (but never empty), or not."""
        if self.counts is not None:
            yield from (Step(real, max(1, real)) for real in self.counts[first:].tolist())
            return
        for step in range(first, self.steps):
            size = self.shares.rows(step)
            real = max(0, min(size, self.rows - self.shares.before(step)))
            is_short = real and step == self.steps - 1 and not self.full
            yield Step(real, real if is_short else size)


def plan_epoch(
    rows: Sequence[int], batch_size: int, index: int, *, in_order: bool = False, equal: bool = False
) -> EpochPlan:
    """Return the epoch of worker number `index`.

    The rows of a step are dealt to the workers in turn (`Shares`). With `in_order` the deal begins at the first worker,
    as in a stream; else at one with the most rows: the steps are then those of one process if the numbers of rows
    differ by at most one. With `equal` all workers take as many rows in each step, the last one too, as JAX needs. A
    batch with fewer rows than workers is a `SpecError`.

    Examples
    --------
    >>> plan = plan_epoch([100, 10], batch_size=64, index=1)
    >>> plan.steps, [tuple(step) for step in plan.steps_from(0)]
    (4, [(10, 32), (0, 32), (0, 32), (0, 32)])
    >>> plan_epoch([266, 267, 267], batch_size=8, index=0).steps
    100
    """
    workers = range(len(rows))
    order = workers if in_order else sorted(workers, key=lambda worker: -rows[worker])
    places = {worker: place for place, worker in enumerate(order)}
    shares = [shares_of(batch_size, len(rows), places[worker], equal=equal) for worker in workers]
    steps = max(each.steps(count) for each, count in zip(shares, rows, strict=True))
    return EpochPlan(rows[index], shares[index], steps, full=len(rows) > 1 and equal)


def shares_of(batch_size: int, workers: int, place: int, *, equal: bool = False) -> Shares:
    """Return the shares of the worker at a place in the deal; if they must be equal, all take as many as the first.

    Examples
    --------
    >>> shares_of(32, 3, 0)
    Shares(batch_size=32, workers=3, place=0)
    """
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < workers:
        raise SpecError(
            f"batch_size={batch_size!r}: it counts the rows of one step over all {workers} workers, so it must be a "
            f"whole number of at least {workers}"
        )
    shares = Shares(int(batch_size), workers, place)
    return replace(shares, batch_size=shares.most * workers) if equal else shares


def uneven_rows(rows: Sequence[int], batch_size: int, steps: int) -> str:
    """Return a warning if unequal numbers of rows make an epoch clearly longer than in one process; empty if not.

    Examples
    --------
    >>> uneven_rows([37, 0], 8, 10)
    'an epoch has 10 steps, many with fewer rows than batch_size=8: one process takes 5. The 2 workers have 37, 0 \
rows: let them have equal numbers (the default cache, more row groups or files, rebalance=True)'
    >>> uneven_rows([19, 18], 8, 5)
    ''
    """
    one = -(-sum(rows) // batch_size)
    if steps <= one + max(1, one // 10):
        return ""
    first = ", ".join(map(str, rows[:_SHOWN])) + (", ..." if len(rows) > _SHOWN else "")
    return (
        f"an epoch has {steps} steps, many with fewer rows than batch_size={batch_size}: one process takes {one}. The "
        f"{len(rows)} workers have {first} rows: let them have equal numbers (the default cache, more row groups or "
        "files, rebalance=True)"
    )
