"""The rows that all cells train on, and the batches in which one process gets what two workers get together.

Of `EVEN` both workers have as many rows in each step but the last, in which one has two and the other one. Of `UNEVEN`
one worker has seven rows: it fills its other batches up. A number is a row's id, from which its values are made.
"""

import numpy as np

BATCH = 16
SHARE = BATCH // 2
EVEN = [[*range(8), *range(16, 24), 32, 33], [*range(8, 16), *range(24, 32), 34]]
UNEVEN = [[*range(40, 48), *range(56, 72)], [*range(48, 55)]]
_VALUES = np.random.default_rng(7).normal(size=(100, 4)).astype("f4")
_SLOPES = np.array([1.0, -2.0, 0.5, 0.25], "f4")


def features(ids):
    return _VALUES[np.asarray(ids, int)]


def labels(ids):
    return features(ids) @ _SLOPES + 0.5


def in_one_process(partitions):
    """Return the ids in the order in which one process has them: step by step, those of both workers."""
    return [row for rows in in_steps(partitions) for row in rows]


def in_steps(partitions):
    """Return the ids of each step: those of both workers."""
    starts = range(0, max(map(len, partitions)), SHARE)
    return [[row for rows in partitions for row in rows[start : start + SHARE]] for start in starts]
