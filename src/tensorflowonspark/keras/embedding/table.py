"""One worker's rows of a table, and the slots of its optimizer, in variables of this process alone.

Row ``id`` is row ``id // workers`` of its owner. The initial value of a row depends on the seed and the id only: a
table is the same on any number of workers, and no process makes more than its own rows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.embedding.row_optimizers import RowOptimizer

Initializer = str | Callable[[npt.NDArray[np.int64]], Any]
_BLOCK_BYTES = 16 << 20


class Table:
    """The rows ``rank``, ``rank + workers``, ``rank + 2 * workers``, ... of a table of shape ``(rows, dim)``.

    `initial` returns the initial rows of ids.
    """

    def __init__(
        self, rows: int, dim: int, workers: int, rank: int, optimizer: RowOptimizer, initial: Callable[..., Any]
    ) -> None:
        self.rows, self.dim, self.workers, self.rank = rows, dim, workers, rank
        self.optimizer = optimizer
        self.own = len(range(rank, rows, workers))
        self.block_rows = max(1, _BLOCK_BYTES // (4 * dim))
        rate = optimizer.settings["learning_rate"]
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self.values = self._variable(0.0, "rows")
            self.slots = {name: self._variable(value, name) for name, value in optimizer.slots.items()}
            self.learning_rate = _variable(tf.constant(0.0 if callable(rate) else rate), "learning_rate")
            self.steps = _variable(tf.constant(0, tf.int64), "steps")
            self.calls = _variable(tf.constant(0, tf.int64), "calls")
            for first, ids in self.blocks():
                self.assign(self.values, np.arange(first, first + len(ids)), initial(ids))

    def _variable(self, value: float, name: str) -> tf.Variable:
        # One row at least, since a gather from none fails on those that fill up a request.
        return _variable(tf.fill([max(1, self.own), self.dim], tf.constant(value, tf.float32)), name)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The rows and the slots, by name."""
        return {"rows": self.values, **self.slots}

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield the first row and the ids of each block of this worker's rows."""
        for first in range(0, self.own, self.block_rows):
            yield first, self.rank + self.workers * np.arange(first, min(first + self.block_rows, self.own))

    def assign(self, variable: tf.Variable, rows: Any, values: Any) -> None:
        """Assign values to some of this worker's rows."""
        variable.scatter_update(tf.IndexedSlices(tf.convert_to_tensor(values, tf.float32), tf.cast(rows, tf.int64)))

    def read(self, ids: tf.Tensor) -> tf.Tensor:
        """Return this worker's rows of some ids, any row for -1; shape ``(ids, dim)``."""
        return self.values.sparse_read(tf.maximum(ids, 0) // self.workers)

    def update(self, ids: tf.Tensor, gradients: tf.Tensor) -> None:
        """Take a step: add up the gradients of each of this worker's ids, and update the rows.

        Ids may repeat, and are -1 for gradients that do not count; int64, shape ``(n,)``. Gradients are of float32,
        shape ``(n, dim)``.
        """
        self.steps.assign_add(1)
        steps = self.steps.read_value()
        unique, places = tf.unique(ids)
        sums = tf.math.unsorted_segment_sum(gradients, places, tf.size(unique))
        counts = tf.logical_and(unique >= 0, tf.reduce_any(sums != 0, axis=1))
        rows, sums = tf.boolean_mask(unique, counts) // self.workers, tf.boolean_mask(sums, counts)
        rate = self.optimizer.learning_rate(self.learning_rate, steps - 1)
        slots = {name: slot.sparse_read(rows) for name, slot in self.slots.items()}
        change, slots = self.optimizer.change(sums, slots, rate, steps)
        self.values.scatter_sub(tf.IndexedSlices(change, rows))
        for name, value in slots.items():
            self.slots[name].scatter_update(tf.IndexedSlices(value, rows))


def _variable(value: tf.Tensor, name: str) -> tf.Variable:
    """Return a variable that no strategy mirrors, and no optimizer of Keras updates."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # not through the strategy's creators

    return ResourceVariable(value, trainable=False, name=name)


def initial_rows(
    initializer: Initializer, ids: npt.NDArray[np.int64], dim: int, seed: int, scale: float
) -> npt.NDArray[Any]:
    """Return the initial rows of some ids, as float32 of shape ``(ids, dim)``.

    The initializer is ``"uniform"`` (from `-scale` to `scale`), ``"normal"`` (with the deviation `scale`), ``"zeros"``,
    or a function of ids that returns as many rows. Another one is a `SpecError`, or another shape.
    """
    if callable(initializer):
        rows = np.asarray(initializer(ids), np.float32)
        if rows.shape != (len(ids), dim):
            raise SpecError(f"initializer: it returned the shape {rows.shape} for {len(ids)} ids of {dim} columns")
        return rows
    if initializer == "zeros":
        return np.zeros((len(ids), dim), np.float32)
    numbers = ids.astype(np.uint64)[:, None] * np.uint64(dim) + np.arange(dim, dtype=np.uint64)
    if initializer == "uniform":
        return np.asarray(scale * (2 * _random(numbers, seed) - 1), np.float32)
    if initializer == "normal":  # Box, Muller, 1958
        radius = np.sqrt(-2 * np.log1p(-_random(numbers, seed)))
        return np.asarray(scale * radius * np.cos(2 * np.pi * _random(numbers, ~seed)), np.float32)
    raise SpecError(f"initializer={initializer!r}: expected 'uniform', 'normal', 'zeros', or a function of ids")


def _random(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """Return a random value from 0 to below 1 for each number, by SplitMix64.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    start = np.random.SeedSequence(seed & (2**64 - 1)).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53, np.float64)
