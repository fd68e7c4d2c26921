"""The order of all workers' rows in an epoch, in which a step has the same rows on any number of workers.

It follows from the seed, the epoch and the sizes of the partitions alone. Each worker computes it for all rows and
takes those of a step that it has; no row moves. The rows of each partition are spread evenly over the epoch, so that
workers with equally many rows have about equally many in each step.
"""

from collections.abc import Sequence

import numpy as np

from tensorflowonspark.node.feed.order import Numbers

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
