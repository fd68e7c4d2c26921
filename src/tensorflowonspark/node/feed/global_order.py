"""The order of all workers' rows in an epoch, in which a step has the same rows on any number of workers.

It follows from the seed, the epoch and the sizes of the partitions alone. Each worker computes it for all rows and
takes those of a step that it has; no row moves. The rows of each partition are spread evenly over the epoch, so that
workers with equally many rows have about equally many in each step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorflowonspark.feed_messages import Layout, PartitionSlice
from tensorflowonspark.node.feed.order import Mask, Numbers

# Rows that follow each other in a partition's order are of as many classes (its places modulo this number), which a
# held cluster deals to its workers: as many of each then come to 2, 3, 4, 6, 8, 12 and 24 workers.
_CLASSES = 24
_ROWS_OF_CLASS = 100  # at least: of fewer, an order would be no shuffle


def global_order(sizes: Sequence[int], seed: int | None, epoch: int) -> Numbers:
    """Return the order of the rows of some partitions in an epoch, by their numbers over all partitions.

    Without a seed the rows of a partition keep their order.

    Examples
    --------
    >>> global_order([4, 2], None, 0)
    array([0, 4, 1, 2, 5, 3])
    """
    random = None if seed is None else np.random.default_rng([seed, epoch])
    numbers: list[Numbers] = [np.arange(0)]
    places = [np.zeros(0)]
    start = 0
    for rows in sizes:
        numbers.append(start + _partition_order(rows, random))
        places.append((np.arange(rows) + (0.5 if random is None else random.random())) / max(1, rows))
        start += rows
    order: Numbers = np.concatenate(numbers)[np.argsort(np.concatenate(places), kind="stable")]
    return order


def _partition_order(rows: int, random: np.random.Generator | None) -> Numbers:
    """Return an order of a partition's rows, in which as many as there are classes are one of each."""
    if random is None:
        return np.arange(rows)
    if rows < _CLASSES * _ROWS_OF_CLASS:
        return random.permutation(rows)
    whole = rows - rows % _CLASSES
    mixed = random.permuted(np.arange(whole).reshape(-1, _CLASSES), axis=0).reshape(-1)
    return np.insert(mixed, random.integers(whole, size=rows - whole), np.arange(whole, rows))


class OwnRows(NamedTuple):
    """The rows of an epoch that a worker has: their numbers in its order, and how many each step has."""

    order: Numbers
    counts: Numbers


class GlobalOrder:
    """The orders of the epochs over all workers' rows, and which of them one worker has.

    `sizes` are the rows of each partition. `own` has the number of each of the worker's rows over all partitions
    (`taken.row_numbers`), in the worker's order.
    """

    def __init__(self, sizes: dict[int, int], own: Numbers, batch_size: int, seed: int | None) -> None:
        # The layout of one worker that has all rows.
        self.layout = Layout((tuple(PartitionSlice(partition, 0, rows) for partition, rows in sizes.items()),))
        self._sizes = list(sizes.values())
        self._batch_size = batch_size
        self._seed = seed
        self._own = np.full(sum(self._sizes), -1)  # numbers of this worker's rows, by those of all
        self._own[own] = np.arange(len(own))
        self._last: tuple[int, Mask | None, OwnRows] | None = None

    def rows(self, left: Mask | None = None) -> int:
        """Return the number of all workers' rows, or of those that are left of an epoch."""
        return len(self._own) if left is None else int(np.count_nonzero(left))

    def steps(self, left: Mask | None = None) -> int:
        """Return the number of steps of an epoch, or of what is left of one."""
        return -(-self.rows(left) // self._batch_size)

    def epoch(self, number: int, left: Mask | None = None) -> OwnRows:
        """Return this worker's rows of an epoch, or of what is left of one, by a mask of all rows."""
        if self._last is None or self._last[0] != number or self._last[1] is not left:
            order = global_order(self._sizes, self._seed, number)
            own = self._own[order if left is None else order[left[order]]]
            places = np.flatnonzero(own >= 0)
            counts = np.bincount(places // self._batch_size, minlength=self.steps(left))
            self._last = number, left, OwnRows(own[places], counts)
        return self._last[2]
