"""One worker's rows of a table, and the slots of its optimizer, in variables of this process alone.

Row ``id`` is row ``id // workers`` of its owner. The initial value of a row depends on the seed and the id only: a
table is the same on any number of workers, and no process makes more than its own rows.
"""

from collections.abc import Callable, Iterator, Mapping
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
        self, rows: Any, dim: int, workers: int, rank: int, optimizer: RowOptimizer, initial: Callable[..., Any]
    ) -> None:
        self.rows, self.dim, self.workers, self.rank = rows, dim, workers, rank
        self.optimizer, self.initial = optimizer, initial
        self.block_rows = max(1, _BLOCK_BYTES // (4 * dim))
        rate = optimizer.settings["learning_rate"]
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self.learning_rate = _variable(tf.constant(0.0 if callable(rate) else rate), "learning_rate")
            self.steps = _variable(tf.constant(0, tf.int64), "steps")
            self.calls = _variable(tf.constant(0, tf.int64), "calls")
            self._make_rows()

    def _make_rows(self) -> None:
        self.own = len(range(self.rank, self.rows, self.workers))
        self.values = self._variable(0.0, "rows")
        self.slots = {name: self._variable(value, name) for name, value in self.optimizer.slots.items()}
        for first, ids in self.blocks():
            self.assign(self.values, np.arange(first, first + len(ids)), self.initial(ids))

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

    def keys(self, ids: tf.Tensor) -> tf.Tensor:
        """Return what the workers exchange: the ids."""
        return ids

    def owners(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the worker that has each id."""
        return ids % self.workers

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

    def clear(self) -> None:
        """Forget what `load` does not replace: nothing."""

    def about(self) -> dict[str, Any]:
        """Return what `load` needs to know of this worker."""
        return {}

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the name and the contents of each part of a checkpoint."""
        for name, variable in self.variables.items():
            for part, (first, ids) in enumerate(self.blocks()):
                yield f"{name}-{part:06d}", variable.sparse_read(tf.range(first, first + len(ids))).numpy()

    def load(self, rank: int, workers: int, about: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        """Take this worker's rows from the arrays of one worker."""
        count = len(range(rank, self.rows, workers))
        for name, variable in self.variables.items():
            for part, first in enumerate(range(0, count, about["block_rows"])):
                ids = rank + workers * np.arange(first, min(first + about["block_rows"], count))
                own = ids % self.workers == self.rank
                if own.any():
                    values = read(f"{name}-{part:06d}").reshape(len(ids), self.dim)
                    self.assign(variable, ids[own] // self.workers, values[own])


def _variable(value: tf.Tensor, name: str) -> tf.Variable:
    """Return a variable that no strategy mirrors, and no optimizer of Keras updates."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # not through the strategy's creators

    return ResourceVariable(value, trainable=False, name=name)


def initial_rows(initializer: Initializer, ids: Any, dim: int, seed: int, scale: float) -> Any:
    """Return the initial rows of some ids, as float32 of shape ``(ids, dim)``; of a tensor's as a tensor.

    The initializer is ``"uniform"`` (from `-scale` to `scale`), ``"normal"`` (with the deviation `scale`), ``"zeros"``,
    or a function of ids, for arrays alone, that returns as many rows. Another one is a `SpecError`, or another shape.
    """
    if callable(initializer):
        rows = np.asarray(initializer(ids), np.float32)
        if rows.shape != (len(ids), dim):
            raise SpecError(f"initializer: it returned the shape {rows.shape} for {len(ids)} ids of {dim} columns")
        return rows
    if initializer == "zeros":
        return tf.zeros([tf.size(ids), dim]) if tf.is_tensor(ids) else np.zeros((len(ids), dim), np.float32)
    in_graph = tf.is_tensor(ids)
    of: Any = tf.math if in_graph else np
    bits: Any = tf.bitcast(ids, tf.uint64) if in_graph else ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        far = bits // np.uint64(2**32) * np.uint64(0x9FB21C651E98DF25)  # or those 2**64 / dim apart would be alike
        numbers = (bits * np.uint64(dim) + far)[:, None] + np.arange(dim, dtype=np.uint64)
    if initializer == "uniform":
        values = scale * (2 * _random(numbers, seed) - 1)
    elif initializer == "normal":  # Box, Muller, 1958
        radius = of.sqrt(-2 * of.log1p(-_random(numbers, seed)))
        values = scale * radius * of.cos(2 * np.pi * _random(numbers, ~seed))
    else:
        raise SpecError(f"initializer={initializer!r}: expected 'uniform', 'normal', 'zeros', or a function of ids")
    return tf.cast(values, tf.float32) if in_graph else np.asarray(values, np.float32)


def _random(numbers: Any, seed: int) -> Any:
    """Return a random value from 0 to below 1 for each number."""
    start = np.random.SeedSequence(seed & (2**64 - 1)).generate_state(1, np.uint64)[0]
    high = mixed(numbers, start) // np.uint64(2**11)
    return (tf.cast(high, tf.float64) if tf.is_tensor(high) else high) * 2.0**-53


def mixed(numbers: Any, start: np.uint64 = np.uint64(0)) -> Any:  # noqa: B008 - a number
    """Return a hash of each uint64, by SplitMix64.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        value = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start
        value = (value ^ (value // np.uint64(2**30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value // np.uint64(2**27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value // np.uint64(2**31))
