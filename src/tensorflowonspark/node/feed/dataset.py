"""Batches of numpy arrays as a ``tf.data.Dataset``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.columns import Array, Kind, Ragged, zeros
from tensorflowonspark.keras.feed_tracking import PassLength, note_length, state_pass
from tensorflowonspark.keras.shards import mark_shard
from tensorflowonspark.node.feed.arriving import ArrivingPasses
from tensorflowonspark.node.feed.epochs import Epochs
from tensorflowonspark.node.feed.selection import Batch, Selection, real_rows

__all__ = ["assemble", "flat_arrays", "flat_specs", "make_dataset"]

_PREFETCH_BATCHES = 2


def make_dataset(
    passes: Callable[[], Iterator[Batch]],
    selection: Selection,
    batch_rows: int,
    steps: int | None,
    length: PassLength | None = None,
) -> tf.data.Dataset:
    """Return batches as a ``tf.data.Dataset``.

    Parameters
    ----------
    passes : Epochs or callable
        Starts a new pass.
    selection : Selection
        The columns, and the structure of an element.
    batch_rows : int
        Rows of one batch.
    steps : int or None
        The number of batches of a pass, if it is known.
    length : PassLength, optional
        What becomes known of it otherwise.
    """
    # A call into Python costs as much as the rows of a batch. So cached rows come in blocks of several batches, which
    # tf.data divides; it can't divide ragged ones.
    cached = isinstance(passes, (ArrivingPasses, Epochs))
    in_blocks = cached and not any(kind.ragged for kind in selection.kinds.values())
    source = passes.blocks if isinstance(passes, (ArrivingPasses, Epochs)) and in_blocks else passes

    def arrays() -> Iterator[tuple[Array, ...]]:
        real_only = state_pass()
        for batch in source():
            yield tuple(flat_arrays(selection, real_rows(batch) if real_only else batch))

    def padding() -> Iterator[tuple[Array, ...]]:
        """Yield empty batches up to the declared length, which a pass over the real rows alone does not reach."""
        if state_pass() and isinstance(passes, Epochs) and steps is not None:
            empty = {name: zeros(0, kind) for name, kind in selection.kinds.items()}, np.zeros(0, np.bool_)
            for _ in range(steps - -(-passes.plan.rows // passes.plan.batch_rows)):
                yield tuple(flat_arrays(selection, empty))

    arrays.reads_feed = True  # type: ignore[attr-defined]  # for `keras.provenance`
    # A generator's elements are flat, and structured in the graph, which is cheaper than in Python.
    signature = tuple(flat_specs(selection))
    dataset = tf.data.Dataset.from_generator(arrays, output_signature=signature)
    if in_blocks:
        dataset = dataset.rebatch(batch_rows)
    if steps is not None:
        dataset = dataset.concatenate(tf.data.Dataset.from_generator(padding, output_signature=signature))
    dataset = dataset.map(lambda *tensors: assemble(selection, tensors))
    if steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    dataset = mark_shard(dataset, batch_rows).prefetch(_PREFETCH_BATCHES)
    if length is not None:
        note_length(dataset, length)
    return dataset


def flat_arrays(selection: Selection, batch: Batch) -> Iterator[Array]:
    """Yield a batch's arrays, a ragged column's splits after its values, and last the weights."""
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
    return values if values.flags.writeable or values.dtype.kind == "O" else values.copy()


def flat_specs(selection: Selection) -> Iterator[tf.TensorSpec]:
    """Yield the specs of the arrays that `flat_arrays` yields."""
    for kind in selection.kinds.values():
        inner = [size for size in kind.shape if size is not None]
        yield tf.TensorSpec((None, *inner), _tensor_type(kind))
        yield from (tf.TensorSpec((None,), tf.int64) for size in kind.shape if size is None)
    yield tf.TensorSpec((None,), tf.float32)


def assemble(selection: Selection, tensors: Any) -> Any:
    """Return an element built from the tensors of `flat_arrays`."""
    rest = iter(tensors)
    values = {}
    for name, kind in selection.kinds.items():
        value = next(rest)
        splits = [next(rest) for size in kind.shape if size is None]
        values[name] = tf.RaggedTensor.from_nested_row_splits(value, splits, validate=False) if splits else value
    return selection.arrange(values, next(rest))


def _tensor_type(kind: Kind) -> tf.DType:
    return tf.string if kind.dtype.kind == "O" else tf.as_dtype(kind.dtype)
