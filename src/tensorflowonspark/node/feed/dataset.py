"""Batches of numpy arrays as a ``tf.data.Dataset``.

TensorFlow takes over the memory of an array that Python gives to its graph, without a copy, if it begins at a multiple
of 64 bytes; any other array it copies. So the rows of cached feeds are gathered into aligned memory. It comes from
Arrow's allocator, which keeps the memory that TensorFlow has released for the next block: numpy and TensorFlow return
large blocks to the kernel, and pay for each of their pages again.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from tensorflowonspark.columns import Array, Kind, Ragged, zeros
from tensorflowonspark.node.feed.pace import Measure
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.selection import Batch, Selection

_PREFETCH_BATCHES = 2


def make_dataset(passes: Passes, measure: Measure | None = None) -> tf.data.Dataset:
    """Return batches as a ``tf.data.Dataset``."""
    selection, batch_rows = passes.selection, passes.batch_rows
    # A call into Python costs as much as the rows of a batch. So rows come in blocks of several batches, which tf.data
    # divides without a copy; it can't divide ragged ones, nor into batches that differ in size.
    in_blocks = passes.are_of_one_size and not any(kind.ragged for kind in selection.kinds.values())
    source = partial(passes.blocks, aligned_empty) if in_blocks else passes

    def arrays() -> Iterator[tuple[Array, ...]]:
        real_only = passes.observer.adapts()
        batches = (tuple(flat_arrays(selection, each)) for each in source(real_only=real_only))
        if measure is None or real_only:
            return batches
        return measure(batches, lambda each: -(-len(each[-1]) // batch_rows) if in_blocks else 1)

    dataset = _from_generator(arrays, selection)
    if in_blocks:
        dataset = dataset.rebatch(batch_rows)
    if passes.steps is not None and passes.plan is not None:
        if passes.plan.batches_alone < passes.steps:  # it makes the start of each pass longer
            dataset = dataset.concatenate(_empty_batches(passes.steps - passes.plan.batches_alone, passes))
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(passes.steps))
    return passes.observer.of_feed(dataset.prefetch(_PREFETCH_BATCHES), passes)


def _empty_batches(number: int, passes: Passes) -> tf.data.Dataset:
    """Return batches without rows, in passes over the real rows alone.

    They complete the declared length of a pass, which this worker's rows do not reach if another worker has more.
    """
    selection = passes.selection

    def arrays() -> Iterator[tuple[Array, ...]]:
        if passes.observer.adapts():
            empty = {name: zeros(0, kind) for name, kind in selection.kinds.items()}, np.zeros(0, np.bool_)
            for _ in range(number):
                yield tuple(flat_arrays(selection, empty))

    return _from_generator(arrays, selection)


class _Passes:
    """The running passes over the arrays of a generator function, for the graph functions that call this."""

    def __init__(self, function: Callable[[], Iterator[tuple[Array, ...]]]) -> None:
        self._function = function
        self._numbers = count()
        self._running: dict[int, Iterator[tuple[Array, ...]]] = {}

    def open(self, _: int) -> Any:
        """Return the number of a new pass, which begins with its first arrays."""
        return np.int64(next(self._numbers))

    def next(self, number: int) -> tuple[Array, ...]:
        """Return the next arrays of a pass, or raise StopIteration, which ends it in the graph as well."""
        if number not in self._running:
            self._running[number] = self._function()
        return next(self._running[number])

    def close(self, number: int) -> int:
        """Close a pass, which has ended or was abandoned."""
        self._running.pop(number, None)
        return number


def _from_generator(function: Callable[[], Iterator[tuple[Array, ...]]], selection: Selection) -> tf.data.Dataset:
    """Return a dataset of the elements whose flat arrays a generator function yields from a feed.

    ``tf.data.Dataset.from_generator`` puts the same dataset into a ``flat_map``, whose function, with all functions in
    it, is prepared anew for each pass: 20 ms in place of 10.
    """
    passes, specs = _Passes(function), tuple(flat_specs(selection))
    types = [spec.dtype for spec in specs]
    number = tf.TensorSpec((), tf.int64)

    def graph_function(call: Callable[[int], Any], results: Any) -> Any:
        traced = tf.function(lambda argument: tf.numpy_function(call, [argument], results), autograph=False)
        return traced.get_concrete_function(number)

    functions = [
        graph_function(passes.open, tf.int64),
        graph_function(passes.next, types),
        graph_function(passes.close, tf.int64),
    ]
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=[np.int64(0)],
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=functions[0],
        next_func=functions[1],
        finalize_func=functions[2],
        output_types=types,
        output_shapes=[spec.shape for spec in specs],
    )
    flat = tf.data.experimental.from_variant(variant, specs)
    flat._tensorflowonspark_functions = functions  # TensorFlow forgets functions that Python has dropped
    # A generator's elements are flat, and structured in the graph, which is cheaper than in Python.
    return flat.map(lambda *tensors: assemble(selection, tensors))


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of any values that TensorFlow takes over without a copy.

    Examples
    --------
    >>> array = aligned_empty((2, 3), np.dtype("float32"))
    >>> array.shape, array.flags.writeable, array.ctypes.data % 64
    ((2, 3), True, 0)
    """
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(size), np.uint8).view(dtype).reshape(shape)


def flat_arrays(selection: Selection, batch: Batch) -> Iterator[Array]:
    """Yield a batch's arrays, a ragged column's splits after its values, and last the weights."""
    batch = selection.finished(batch)
    for values in batch[0].values():
        if isinstance(values, Ragged):
            yield _writable(values.values)
            yield from values.splits
        else:
            yield _writable(values)
    yield selection.weights(batch)


def _writable(values: Array) -> Array:
    """Return an array that TensorFlow may write to.

    TensorFlow takes over the memory of arrays that Python gives to its graph, and an operation whose input is not used
    elsewhere (as the multiplication in a `Rescaling`) writes its result there. It must not overwrite the cached rows.
    """
    if values.flags.writeable or values.dtype.kind == "O":
        return values
    copied = aligned_empty(values.shape, values.dtype)
    np.copyto(copied, values)
    return copied


def flat_specs(selection: Selection) -> Iterator[tf.TensorSpec]:
    """Yield the specs of the arrays that `flat_arrays` yields."""
    for kind in selection.kinds.values():
        yield tf.TensorSpec((None, *(kind.inner if kind.row_splits else kind.shape)), _tensor_type(kind))
        yield from (tf.TensorSpec((None,), tf.int64) for _ in range(kind.row_splits))
    yield tf.TensorSpec((None, *selection.weight_shape), selection.weight_dtype)


def assemble(selection: Selection, tensors: Any) -> Any:
    """Return an element built from the tensors of `flat_arrays`."""
    rest = iter(tensors)
    values = {}
    for name, kind in selection.kinds.items():
        value = next(rest)
        splits = [next(rest) for _ in range(kind.row_splits)]
        values[name] = tf.RaggedTensor.from_nested_row_splits(value, splits, validate=False) if splits else value
    return selection.arrange(values, next(rest))


def _tensor_type(kind: Kind) -> tf.DType:
    return tf.string if kind.dtype.kind == "O" else tf.as_dtype(kind.dtype)
