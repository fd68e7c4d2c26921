"""One pass over a worker's rows: its steps, by a plan of an epoch or as the rows arrive, and the rows of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from tensorflowonspark.feed_messages import Shares, StepGrant
from tensorflowonspark.node.feed.order import row_order
from tensorflowonspark.node.feed.plan import EpochPlan, Step, plan_epoch
from tensorflowonspark.node.feed.rows import RowQueue, Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.streams import PartStream

# Gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
_BLOCK_ROWS = 2048
_BLOCK_BYTES = 16 << 20


class Block(NamedTuple):
    """Consecutive steps: the rows of each with padding, and how many rows of all are real, which come first."""

    sizes: list[int]
    rows: int


@dataclass(kw_only=True)
class Pass(ABC):
    """A pass, of which the steps are counted that have been handed out."""

    selection: Selection
    seed: Sequence[int] | None = None  # None: the rows keep their own order
    counts: bool = True  # as an epoch, or as a part of one
    epoch: int = 0
    step: int = 0  # of the epoch, which comes next
    steps: int = 0  # of the epoch; 0 as long as nobody knows
    rows_before: int = 0  # of the epoch, which have been handed out

    @abstractmethod
    def blocks(self, queue: RowQueue) -> Generator[Block, None, None]:
        """Yield the steps in blocks, each when its rows are in the queue."""


@dataclass(kw_only=True)
class EpochPass(Pass):
    """A pass over the rows of an epoch, or over those that are left of one, by a plan of these."""

    rows: Rows
    plan: EpochPlan
    first: int = 0  # the step of the plan that comes first

    def blocks(self, queue: RowQueue) -> Generator[Block, None, None]:
        """Yield the steps from the first one on."""
        shares = self.plan.shares
        first_row = self.plan.before(self.first)
        most = _steps_per_block(self.rows.bytes_per_row(self.selection.kinds), shares)
        with closing(self.rows.segments(self.selection, self.seed, shares.cycle, first_row)) as segments:

            def add() -> bool:
                segment = next(segments, None)
                if segment is not None:
                    queue.add(segment.reader, segment.order, max(0, first_row - segment.first_row))
                return segment is not None

            yield from _in_blocks(self.plan.steps_from(self.first), queue, most, add)


@dataclass(kw_only=True)
class ArrivingPass(Pass):
    """The pass over rows as they arrive, in the steps that the driver grants: the first epoch, if rows are kept."""

    parts: PartStream
    shares: Shares
    alone: bool  # no other worker's steps depend on these

    def blocks(self, queue: RowQueue) -> Generator[Block, None, None]:
        """Yield the steps of one grant after the other."""
        parts = self.parts
        parts.open(self.shares)
        sizes = map(self.shares.rows, count())
        most, end = 1, False
        parts.begin(self.shares.cycle, self.seed)
        try:
            while not end:
                grant = parts.wait(queue.taken, alone=self.alone)
                end = grant.end
                for part, (shard, summaries, release) in parts.parts(grant):
                    for summary in summaries:
                        parts.check(self.selection, summary)
                    order = row_order(shard.rows, self.seed, part.seed)
                    most = _steps_per_block(shard.bytes_per_row(self.selection.kinds), self.shares)
                    queue.add(shard.reader(self.selection.kinds), order, release=release)
                yield from _in_blocks(self._steps(grant, sizes, queue.count), queue, most)
        finally:
            parts.end()

    def _steps(self, grant: StepGrant, sizes: Iterator[int], rows: int) -> Iterator[Step]:
        """Yield the steps of a grant; a worker on which no other depends gets those that its rows suffice for."""
        if grant.steps is None:
            size = self.shares.most
            if grant.fill and not rows:
                yield Step(0, size)
            complete = rows if grant.flush or grant.fill else rows - rows % size
            yield from plan_epoch([complete], size, 0).steps_from(0)
            return
        for steps, real in grant.steps:
            left = real
            for _ in range(steps):
                size = next(sizes)
                yield Step(min(left, size), size)
                left -= min(left, size)


def _in_blocks(
    steps: Iterable[Step], queue: RowQueue, most: int, add: Callable[[], bool] = lambda: False
) -> Iterator[Block]:
    """Yield steps in blocks of at most `most`, each as soon as its rows are in the queue, whose consumer takes them.

    `add` adds further rows to the queue, and returns False if there are none. It is called before the last block until
    it does: files that have changed show that at their end.
    """
    sizes: list[int] = []
    rows = 0

    def taken() -> Iterator[Block]:
        nonlocal sizes, rows
        if sizes:
            yield Block(sizes, rows)
            sizes, rows = [], 0

    for step in steps:
        if len(sizes) == most or (step.real and rows < sum(sizes)):
            yield from taken()
        while rows + step.real > queue.count:
            yield from taken()
            if step.real > queue.count and not add():
                raise AssertionError(f"a step of {step.real} rows, of which {queue.count} are there")
        sizes.append(step.rows)
        rows += step.real
    while add():
        pass
    yield from taken()


def _steps_per_block(row_bytes: float, shares: Shares) -> int:
    """Return how many steps at most to gather at once, of rows of so many bytes."""
    rows = min(_BLOCK_ROWS, _BLOCK_BYTES / max(1.0, row_bytes))
    return max(1, int(rows) // shares.most)
