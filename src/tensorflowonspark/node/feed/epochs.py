"""Epochs over rows of known number: as many steps on every worker, in a new order in each epoch.

In synchronous training a worker that runs out of batches blocks all others. So all workers derive, from the row counts
that each of them has, the number of steps of the worker that needs most; the others pad with rows of weight zero. Each
row is seen exactly once per epoch with its own weight.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tensorflowonspark import columns
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.keras.feed_tracking import PassLength, note_rows, state_pass
from tensorflowonspark.keras.jax.cluster import equal_batches
from tensorflowonspark.keras.provenance import report_read
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.pace import PaceMeter
from tensorflowonspark.node.feed.selection import Batch, Selection, real_rows
from tensorflowonspark.node.feed.shard import Allocate, Segment

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ROWS",
    "Batches",
    "EpochPlan",
    "Epochs",
    "Rows",
    "plan_epoch",
    "shares_of",
    "uneven_rows",
]


@dataclass(frozen=True)
class EpochPlan:
    """One worker's epoch: `steps` batches with these shares, of which the first `rows` rows are real."""

    rows: int
    shares: Shares
    steps: int
    full: bool = False  # whether the last batch is padded too

    @property
    def batch_rows(self) -> int:
        """The rows of the largest batch."""
        return self.shares.most

    @property
    def own_steps(self) -> int:
        """The number of largest batches that the real rows make."""
        return -(-self.rows // self.batch_rows)

    def real_rows(self, step: int) -> int:
        """Return the number of real rows of a step."""
        return max(0, min(self.shares.rows(step), self.rows - self.shares.before(step)))

    def padding(self, step: int) -> int:
        """Return the number of padding rows of a step; an epoch's last batch may be short (but never empty), or not."""
        real = self.real_rows(step)
        return 0 if real and step == self.steps - 1 and not self.full else self.shares.rows(step) - real


def plan_epoch(rows: Sequence[int], batch_size: int, index: int, in_order: bool = False) -> EpochPlan:
    """Return the epoch of worker number `index`.

    Parameters
    ----------
    rows : sequence of int
        The rows of each worker.
    batch_size : int
        Rows per step over all workers together, which are dealt to them in turn (`Shares`).
    index : int
        The worker's position in `rows`.
    in_order : bool
        Whether the deal begins at the first worker, as in a stream. Otherwise it begins at one with the most rows: the
        steps are then those of one process if the numbers of rows differ by at most one.

    Raises
    ------
    SpecError
        If a batch has fewer rows than workers.

    Examples
    --------
    >>> plan = plan_epoch([100, 10], batch_size=64, index=1)
    >>> plan.steps, [(plan.real_rows(step), plan.padding(step)) for step in range(plan.steps)]
    (4, [(10, 22), (0, 32), (0, 32), (0, 32)])
    >>> plan_epoch([266, 267, 267], batch_size=8, index=0).steps
    100
    """
    workers = range(len(rows))
    order = workers if in_order else sorted(workers, key=lambda worker: -rows[worker])
    places = {worker: place for place, worker in enumerate(order)}
    shares = [shares_of(batch_size, len(rows), places[worker]) for worker in workers]
    steps = max(each.steps(count) for each, count in zip(shares, rows, strict=True))
    return EpochPlan(rows[index], shares[index], steps, full=len(rows) > 1 and equal_batches())


def shares_of(batch_size: int, workers: int, place: int) -> Shares:
    """Return the shares of the worker at a place in the deal; on JAX all workers take as many rows, the first's.

    Examples
    --------
    >>> shares_of(32, 3, 0)
    Shares(batch_size=32, workers=3, place=0)

    Raises
    ------
    SpecError
        If a batch has fewer rows than workers.
    """
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < workers:
        raise SpecError(
            f"batch_size={batch_size!r}: it counts the rows of one step over all {workers} workers, so it must be a "
            f"whole number of at least {workers}"
        )
    shares = Shares(int(batch_size), workers, place)
    return replace(shares, batch_size=shares.most * workers) if equal_batches() else shares


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


_SHOWN = 5  # workers that a message lists

# Gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
BLOCK_ROWS = 2048
BLOCK_BYTES = 16 << 20


class Rows(Protocol):
    """The rows of one worker, which can be passed over again and again."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """Return the mean size of a row's values in some columns, in bytes."""

    def segments(
        self, selection: Selection, seed: Sequence[int] | None, batch_rows: int, first_row: int
    ) -> Generator[Segment, None, None]:
        """Yield the rows of one epoch, from one on.

        Parameters
        ----------
        selection : Selection
            The columns to gather.
        seed : sequence of int or None
            Seed of the order; None keeps the rows' own order.
        batch_rows : int
            Rows of one or several steps; each segment but the last has a multiple of them.
        first_row : int
            The number of the row that the first segment includes.
        """


class Epochs:
    """Batches of one epoch after the other; each call starts a new pass.

    Parameters
    ----------
    source : Rows
        This worker's rows.
    selection : Selection
        The columns to gather.
    plan : EpochPlan
        Number and size of the steps.
    report : callable
        Takes a `Progress` before each batch.
    seed : int or None
        Seed of the epochs' orders; None keeps the rows' own order.
    on_epoch_end : callable, optional
        Called with the epoch's number (from 0) when its last batch has been taken and the next is requested.
    on_pass_end : callable, optional
        Called with the number of a pass's real rows at the same time.
    """

    def __init__(
        self,
        source: Rows,
        selection: Selection,
        plan: EpochPlan,
        report: Callable[[Progress], None],
        seed: int | None,
        on_epoch_end: Callable[[int], None] | None = None,
        on_pass_end: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self._source = source
        self._selection = selection
        self._bytes_per_row = max(1.0, source.bytes_per_row(selection.kinds))
        self._report = report
        self._seed = seed
        self._on_epoch_end = on_epoch_end
        self._on_pass_end = on_pass_end
        self._first_step = 0  # of the next pass
        self._epochs_done = 0  # epochs whose last batch was handed out; abandoned passes don't count

    def resume_at(self, epoch: int, step: int) -> None:
        """Make the next pass the rest of an epoch, from a step on."""
        self._epochs_done, self._first_step = epoch, step

    def __call__(self) -> Iterator[Batch]:
        """Yield the columns of each batch, and a mask of its real rows."""
        note_rows()
        if state_pass():
            yield from self._real_rows(self.plan.batch_rows)
            return
        for epoch, steps, block in self._pass(np.empty):
            start = 0
            for step in steps:
                stop = start + self.plan.real_rows(step) + self.plan.padding(step)
                self._report_step(epoch, step)
                yield {name: values[start:stop] for name, values in block.items()}, self._real(step, step + 1)
                start = stop

    def blocks(self, empty: Allocate = np.empty) -> Iterator[Batch]:
        """Yield the rows of several batches at once.

        Parameters
        ----------
        empty : callable
            Allocates the arrays into which numeric columns are gathered.
        """
        note_rows()
        if state_pass():
            yield from self._real_rows(self._rows_per_block)
            return
        for epoch, steps, block in self._pass(empty):
            self._report_step(epoch, steps[-1])
            yield block, self._real(steps.start, steps.stop)

    @property
    def _rows_per_block(self) -> int:
        return max(1, int(min(BLOCK_ROWS, BLOCK_BYTES / self._bytes_per_row)))

    def _real_rows(self, rows_at_once: int) -> Iterator[Batch]:
        """Yield each row once, in the rows' own order, unpadded; this does not count as an epoch."""
        for segment in self._source.segments(self._selection, None, self.plan.shares.cycle, 0):
            for start in range(0, len(segment.order), rows_at_once):
                numbers = segment.order[start : start + rows_at_once]
                yield segment.reader.take(numbers), np.ones(len(numbers), np.bool_)

    def _pass(self, empty: Allocate) -> Iterator[tuple[int, range, dict[str, columns.Array | columns.Ragged]]]:
        """Yield the epoch's number, a range of steps, and the rows of these steps."""
        plan, epoch = self.plan, self._epochs_done
        begin, self._first_step = self._first_step, 0
        step, segment, shares = begin, None, plan.shares
        seed = None if self._seed is None else [self._seed, epoch]
        with closing(self._source.segments(self._selection, seed, shares.cycle, shares.before(begin))) as segments:
            for segment in segments:
                end = shares.steps(segment.first_row + len(segment.order))
                for steps in self._blocks_of(step, end):
                    yield epoch, steps, self._gather(segment, steps, empty)
                step = max(step, end)
            for steps in self._blocks_of(step, plan.steps):  # those of workers with more rows
                yield epoch, steps, self._gather(segment, steps, empty)
        if self._on_pass_end is not None:
            self._on_pass_end(max(0, plan.rows - shares.before(begin)))
        if self._on_epoch_end is not None:
            self._on_epoch_end(epoch)

    def _blocks_of(self, first: int, end: int) -> Iterator[range]:
        """Yield the steps from one to another, as many at a time as are gathered at once."""
        size = max(1, self._rows_per_block // self.plan.batch_rows)
        for start in range(first, end, size):
            yield range(start, min(start + size, end))

    def _report_step(self, epoch: int, step: int) -> None:
        """Report that a step's rows are handed out."""
        plan = self.plan
        seen = min(plan.rows, plan.shares.before(step + 1))
        self._report(Progress(epoch, step + 1, plan.steps, seen))
        if step == plan.steps - 1:
            self._epochs_done = epoch + 1

    def _real(self, first: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the real rows of some steps, which come before all padding."""
        plan = self.plan
        real = sum(plan.real_rows(step) for step in range(first, stop))
        return np.arange(real + sum(plan.padding(step) for step in range(first, stop))) < real

    def _gather(
        self, segment: Segment | None, steps: range, empty: Allocate
    ) -> dict[str, columns.Array | columns.Ragged]:
        """Return the rows of some steps, padding included, as one array for each column.

        Padding repeats real rows, so that batch statistics stay those of real data; a worker without any row pads with
        zeros.
        """
        plan = self.plan
        size = sum(plan.real_rows(step) + plan.padding(step) for step in steps)
        if segment is None or not len(segment.order):
            return {name: columns.zeros(size, kind) for name, kind in self._selection.kinds.items()}
        start = plan.shares.before(steps.start) - segment.first_row
        return segment.reader.take(segment.order[np.arange(start, start + size) % len(segment.order)], empty)


class Batches:
    """Batches of NumPy arrays; each iteration over them is one epoch.

    Parameters
    ----------
    passes : callable
        Starts a pass over the rows.
    selection : Selection
        The columns, and the structure of an element.
    pace : PaceMeter, optional
        Measures the passes.
    steps : int, optional
        The number of batches of a pass, if it is known.
    length : PassLength, optional
        What becomes known of it otherwise.

    Notes
    -----
    Calling it starts an epoch too, as ``tf.data.Dataset.from_generator`` does.
    """

    reads_feed = True  # for `keras.provenance`, which must not take an element to find out

    def __init__(
        self,
        passes: Callable[[], Iterator[Batch]],
        selection: Selection,
        pace: PaceMeter | None = None,
        steps: int | None = None,
        length: PassLength | None = None,
    ) -> None:
        self._passes = passes
        self._selection = selection
        self._pace = pace
        self.steps = steps
        self.length = length

    def element_spec(self, make: Callable[[tuple[int, ...], str], Any]) -> Any:
        """Return an element with the result of `make` for the shape of a row, and the dtype, of each column.

        Raises
        ------
        FeedError
            If a column is ragged, or holds strings.
        """
        for name, kind in self._selection.kinds.items():
            if kind.ragged or kind.dtype.kind == "O":
                raise FeedError(f"column {name!r} is {'ragged' if kind.ragged else 'of strings'}: a model on JAX takes "
                                "arrays of numbers of one shape")  # fmt: skip
        values = {name: make(kind.inner, kind.dtype.name) for name, kind in self._selection.kinds.items()}
        return self._selection.arrange(values, make(self._selection.weight_shape, self._selection.weight_dtype))

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch."""
        real_only = state_pass()
        elements = self._elements(real_only)
        yield from elements if self._pace is None or real_only else self._pace.measured(elements, lambda _: 1)

    def _elements(self, real_only: bool) -> Iterator[Any]:
        for padded in self._passes():
            report_read()
            batch = real_rows(padded) if real_only else padded
            values = {
                name: each.rows() if isinstance(each, columns.Ragged) else each for name, each in batch[0].items()
            }
            yield self._selection.arrange(values, self._selection.weights(batch))

    __call__ = __iter__
