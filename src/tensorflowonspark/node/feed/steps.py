"""The steps of a pass in blocks, of which the rows are gathered at once."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.node.feed.plan import Step
from tensorflowonspark.node.feed.rows import RowQueue

# Gathered at once: enough rows to make the cost per batch small, few enough bytes to stay in the CPU's cache.
_BLOCK_ROWS = 2048
_BLOCK_BYTES = 16 << 20


class Block(NamedTuple):
    """Consecutive steps: the rows of each with padding, and how many rows of all are real, which come first."""

    sizes: list[int]
    rows: int


def in_blocks(
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


def steps_per_block(row_bytes: float, shares: Shares) -> int:
    """Return how many steps at most to gather at once, of rows of so many bytes."""
    rows = min(_BLOCK_ROWS, _BLOCK_BYTES / max(1.0, row_bytes))
    return max(1, int(rows) // shares.most)
