"""Batches of numpy arrays as a ``tf.data.Dataset``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.columns import Array, Kind, Ragged, zeros
from tensorflowonspark.keras.feed_tracking import state_pass
from tensorflowonspark.keras.shards import mark_shard
from tensorflowonspark.node.feed.epochs import Epochs
from tensorflowonspark.node.feed.selection import Batch, Selection, real_part

__all__ = ["assembled", "flat_arrays", "flat_specs", "make_dataset"]

_PREFETCH_BATCHES = 2


def make_dataset(
    passes: Callable[[], Iterator[Batch]], selection: Selection, batch_rows: int, steps: int | None
) -> tf.data.Dataset:
    """Return batches as a data set.

    Parameters
    ----------
    passes : Epochs or callable
        Starts a new pass.
    selection : Selection
        The columns, and the structure of an element.
    batch_rows : int
        Rows in a batch.
    steps : int or None
        The length of a pass, where it is known.
    """
    # A call into Python costs as much as the rows of a batch. Rows that are kept come in blocks of several batches,
    # which tf.data cuts by itself; it can't cut ragged ones.
    in_blocks = isinstance(passes, Epochs) and not any(kind.ragged for kind in selection.kinds.values())
    source = passes.blocks if isinstance(passes, Epochs) and in_blocks else passes

    def arrays() -> Iterator[tuple[Array, ...]]:
        real_only = state_pass()
        for batch in source():
            yield tuple(flat_arrays(selection, real_part(batch) if real_only else batch))

    def missing() -> Iterator[tuple[Array, ...]]:
        """Yield the batches that a pass over the real rows alone has too few, without rows: the length is promised."""
        if state_pass() and isinstance(passes, Epochs) and steps is not None:
            none = {name: zeros(0, kind) for name, kind in selection.kinds.items()}, np.zeros(0, np.bool_)
            for _ in range(steps - -(-passes.plan.rows // passes.plan.batch_rows)):
                yield tuple(flat_arrays(selection, none))

    arrays.reads_feed = True  # type: ignore[attr-defined]  # known to `keras.provenance`
    # A generator's elements are flat, and put together in the graph: that is cheaper than in Python.
    signature = tuple(flat_specs(selection))
    dataset = tf.data.Dataset.from_generator(arrays, output_signature=signature)
    if in_blocks:
        dataset = dataset.rebatch(batch_rows)
    if steps is not None:
        dataset = dataset.concatenate(tf.data.Dataset.from_generator(missing, output_signature=signature))
    dataset = dataset.map(lambda *tensors: assembled(selection, tensors))
    if steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return mark_shard(dataset, batch_rows).prefetch(_PREFETCH_BATCHES)


def flat_arrays(selection: Selection, batch: Batch) -> Iterator[Array]:
    """Yield a batch's arrays, a ragged column's splits after its values, and at the end the weights."""
    for values in batch[0].values():
        if isinstance(values, Ragged):
            yield _own(values.values)
            yield from values.splits
        else:
            yield _own(values)
    yield selection.weights(batch)


def _own(values: Array) -> Array:
    """Return an array that TensorFlow may write to.

    It takes over the memory of what Python gives to its graph, and an operation whose input nobody else needs (as the
    multiplication in a `Rescaling`) puts its result there. That must not be the rows that are kept.
    """
    return values if values.flags.writeable or values.dtype.kind == "O" else values.copy()


def flat_specs(selection: Selection) -> Iterator[tf.TensorSpec]:
    """Yield what `flat_arrays` yields, as specs."""
    for kind in selection.kinds.values():
        inner = [size for size in kind.shape if size is not None]
        yield tf.TensorSpec((None, *inner), _tensor_type(kind))
        yield from (tf.TensorSpec((None,), tf.int64) for size in kind.shape if size is None)
    yield tf.TensorSpec((None,), tf.float32)


def assembled(selection: Selection, tensors: Any) -> Any:
    """Return an element made of what `flat_arrays` gave."""
    rest = iter(tensors)
    values = {}
    for name, kind in selection.kinds.items():
        value = next(rest)
        splits = [next(rest) for size in kind.shape if size is None]
        values[name] = tf.RaggedTensor.from_nested_row_splits(value, splits, validate=False) if splits else value
    return selection.arrange(values, next(rest))


def _tensor_type(kind: Kind) -> tf.DType:
    return tf.string if kind.dtype.kind == "O" else tf.as_dtype(kind.dtype)
