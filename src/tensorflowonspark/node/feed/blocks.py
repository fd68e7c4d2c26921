"""The steps of a pass, in blocks of which the rows are gathered at once: by a plan of all rows, or as they are granted.

Each function yields blocks, and adds their rows to a queue before it does.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import numpy.typing as npt

from tensorflowonspark.feed_messages import Shares, StepGrant
from tensorflowonspark.node.feed.arriving import ArrivingParts
from tensorflowonspark.node.feed.order import row_order
from tensorflowonspark.node.feed.plan import EpochPlan
from tensorflowonspark.node.feed.rows import RowQueue, Rows
from tensorflowonspark.node.feed.selection import Selection

# Gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
_BLOCK_ROWS = 2048
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Block:
    """Consecutive steps: the rows of each with padding, and how many rows of all are real, which come first."""

    sizes: Sequence[int]
    rows: int


def planned_blocks(
    rows: Rows,
    selection: Selection,
    plan: EpochPlan,
    queue: RowQueue,
    step: int,
    seed: Sequence[int] | None,
    left: npt.NDArray[np.bool_] | None,
) -> Generator[Block, None, None]:
    """Yield the steps of an epoch from one on, over all rows or those that are left."""
    shares = plan.shares
    most = _steps_per_block(rows.bytes_per_row(selection.kinds), shares)

    def blocks(end: int) -> Iterator[Block]:
        nonlocal step
        while step < end:
            steps = range(step, min(step + most, end))
            step = steps.stop
            real = [plan.real_rows(each) for each in steps]
            yield Block([each + plan.padding(at) for each, at in zip(real, steps, strict=True)], sum(real))

    with closing(rows.segments(selection, seed, shares.cycle, shares.before(step), left)) as segments:
        for segment in segments:
            queue.add(segment.reader, segment.order, max(0, shares.before(step) - segment.first_row))
            yield from blocks(shares.full_steps(segment.first_row + len(segment.order)))
        yield from blocks(plan.steps)  # the last rows, and the steps of workers with more


def granted_blocks(
    parts: ArrivingParts,
    selection: Selection,
    shares: Shares,
    queue: RowQueue,
    seed: Sequence[int] | None,
    *,
    alone: bool,
) -> Generator[Block, None, None]:
    """Yield the steps that are granted; wait for the driver's next grant when none is left."""
    parts.open(shares)
    sizes = map(shares.rows, count())
    most, end = 1, False
    parts.begin(shares.cycle, seed)
    try:
        while not end:
            grant = parts.wait(queue.taken, alone=alone)
            end = grant.end
            for number, (shard, summaries, release) in parts.parts(grant):
                for summary in summaries:
                    parts.check(selection, summary)
                order = row_order(shard.rows, seed, number)
                most = _steps_per_block(shard.bytes_per_row(selection.kinds), shares)
                queue.add(shard.reader(selection.kinds), order, release=release)
            if grant.steps is None:
                yield from _blocks_alone(grant, queue, shares.most, most)
                continue
            for steps, real in grant.steps:
                left = real
                for first in range(0, steps, most):
                    some = list(islice(sizes, min(most, steps - first)))
                    rows = min(left, sum(some))
                    yield Block(some, rows)
                    left -= rows
    finally:
        parts.end()


def _blocks_alone(grant: StepGrant, queue: RowQueue, size: int, most: int) -> Iterator[Block]:
    """Yield the steps of a worker on which no other depends: full ones, and the remainder if it is requested."""
    if grant.fill and not queue.count:
        yield Block([size], 0)
    while full := min(most, queue.count // size):
        yield Block([size] * full, full * size)
    if (grant.flush or grant.fill) and queue.count:
        yield Block([queue.count], queue.count)


def unpadded_blocks(rows: Rows, selection: Selection, shares: Shares, queue: RowQueue) -> Generator[Block, None, None]:
    """Yield steps that have each row once, in the rows' own order, as many as one worker alone would take."""
    size = shares.most
    most = size * _steps_per_block(rows.bytes_per_row(selection.kinds), shares)
    with closing(rows.segments(selection, None, shares.cycle, 0)) as segments:
        for segment in segments:
            queue.add(segment.reader, segment.order)
            while queue.count:
                count_rows = min(most, queue.count)
                yield Block([min(size, count_rows - first) for first in range(0, count_rows, size)], count_rows)


def _steps_per_block(row_bytes: float, shares: Shares) -> int:
    rows = min(_BLOCK_ROWS, _BLOCK_BYTES / max(1.0, row_bytes))
    return max(1, int(rows) // shares.most)
