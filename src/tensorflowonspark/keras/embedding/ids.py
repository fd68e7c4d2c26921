"""Ids as a ``ShardedEmbedding`` takes them: dense, ragged or sparse, of integers or strings; and their combination."""

from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.errors import FeedError, SpecError

COMBINERS = ("sum", "mean", "sqrtn")


def hashed(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Return ids from 0 to `rows` - 1: those outside of it, and strings, by their hash; int64."""
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, rows)
    ids = tf.cast(ids, tf.int64)
    return tf.where(_inside(ids, rows), ids, tf.strings.to_hash_bucket_fast(tf.as_string(ids), rows))


def checked(ids: Any, rows: int, name: str) -> Any:
    """Return ids as int64; those that are no integers are a `SpecError` with the layer's name.

    A step with an id that is not from 0 to `rows` - 1 fails with a `FeedError` in the program's traceback, which has
    the id and its row in the batch.
    """
    if not ids.dtype.is_integer:
        raise SpecError(
            f"ShardedEmbedding {name!r}: ids of type {ids.dtype.name}; "
            + (
                "set hash=True for strings"
                if ids.dtype == tf.string
                else 'they must be integers: declare keras.Input(..., dtype="int64"), or cast them'
            )
        )
    ids = tf.cast(ids, tf.int64)
    values = ids.flat_values if isinstance(ids, tf.RaggedTensor) else tf.reshape(ids, [-1])
    starts = _starts(ids)

    def fail(values: Any, starts: Any) -> Any:
        position = int(np.argmax((values < 0) | (values >= rows)))
        row = int(np.searchsorted(starts, position, side="right")) - 1
        raise FeedError(
            f"ShardedEmbedding {name!r}: id {values[position]} in row {row} of the batch is not from 0 to {rows - 1}: "
            "give the layer more rows, or set hash=True"
        )

    good = tf.reduce_all(_inside(values, rows))
    check = tf.cond(
        good,
        lambda: tf.constant(True),
        lambda: tf.ensure_shape(tf.numpy_function(fail, [values, starts], tf.bool), []),
    )
    with tf.control_dependencies([check]):
        values = tf.identity(values)
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(values)
    shape = ids.shape
    values = tf.reshape(values, tf.shape(ids))
    return values if shape.rank is None else tf.ensure_shape(values, shape)


def _inside(ids: tf.Tensor, rows: int) -> tf.Tensor:
    return tf.logical_and(ids >= 0, ids < rows)


def _starts(ids: Any) -> tf.Tensor:
    """Return the position at which each row of a batch begins in the flat ids."""
    if not isinstance(ids, tf.RaggedTensor):
        shape = tf.shape(ids, tf.int64)
        return tf.range(shape[0]) * tf.reduce_prod(shape[1:]) if ids.shape.rank else tf.constant([0], tf.int64)
    first, *others = ids.nested_row_splits
    starts = first[:-1]
    for splits in others:
        starts = tf.gather(splits, starts)
    return tf.cast(starts, tf.int64)


def combined(ids: Any, rows: tf.Tensor, combiner: str) -> tf.Tensor:
    """Return one row for each list of ids along the last axis; zeros for an empty one.

    `rows` are those of the flat ids, with shape ``(ids, dim)``: the result has the shape of `ids`, with `dim` in place
    of the last axis. The combiner ``sqrtn`` is the sum by the root of the number of ids.
    """
    dim = rows.shape[-1]
    if not isinstance(ids, tf.RaggedTensor):
        shape = tf.shape(ids)
        sums = tf.reduce_sum(tf.reshape(rows, tf.concat([shape, [dim]], 0)), axis=-2)
        counts = tf.cast(shape[-1], rows.dtype)
        return _scaled(sums, counts, combiner)
    inner = ids
    while isinstance(inner.values, tf.RaggedTensor):
        inner = inner.values
    sums = tf.math.unsorted_segment_sum(rows, inner.value_rowids(), inner.nrows())
    sums = _scaled(sums, tf.cast(inner.row_lengths(), rows.dtype)[:, None], combiner)
    sums = tf.ensure_shape(sums, [None, dim])
    if inner is ids:
        return sums
    return tf.RaggedTensor.from_nested_row_splits(sums, ids.nested_row_splits[:-1], validate=False)


def _scaled(sums: tf.Tensor, counts: tf.Tensor, combiner: str) -> tf.Tensor:
    if combiner == "sum":
        return sums
    return tf.math.divide_no_nan(sums, counts if combiner == "mean" else tf.sqrt(counts))
