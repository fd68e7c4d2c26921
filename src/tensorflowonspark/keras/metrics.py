"""Metrics over real rows only, without the padding rows of a batch.

Padding rows have the weight -0.0. To a loss that is a zero like any other; the sign distinguishes padding from a real
row to which the user gives no weight. It survives the operations on weights before they get here: casts between float
types, and products with numbers that are not negative.

Keras passes sample weights to the ``weighted_metrics`` of ``compile`` but not to its ``metrics``, which would count
padding like any other row. So metrics are updated with the real rows of a batch only. (A mask as weights would fail:
some metrics ignore weights, and others fail with them, such as a function that returns one number for the batch, or
``MeanIoU`` on images.)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

_MINUS_ZERO = -(2**31)  # the bits of -0.0, read as an int32


def real_rows(weights: Any) -> tf.Tensor | None:
    """Return a mask of the real rows of a batch by its sample weights; None if none can mark padding: all are real.

    A row is padding if its weight for any output is -0.0; a row with several weights (one for each time step) is
    padding if all of them are.

    Examples
    --------
    >>> real_rows(np.array([1.0, 0.0, -0.0], np.float32)).numpy().tolist()
    [True, True, False]
    """
    padding = [_padding(each) for each in tf.nest.flatten(weights) if _can_mark(each)]
    return tf.logical_not(tf.reduce_any(padding, axis=0)) if padding else None


def have_weight(weights: Any) -> tf.Tensor:
    """Return a mask of the rows of which any weight is not zero; `weights` as above, some of which can mark padding.

    Examples
    --------
    >>> have_weight(np.array([[1.0, 0.0], [0.0, -0.0]], np.float32)).numpy().tolist()
    [True, False]
    """
    found = [
        tf.reduce_any(tf.not_equal(each, 0), axis=list(range(1, len(each.shape))))
        for each in map(tf.convert_to_tensor, filter(_can_mark, tf.nest.flatten(weights)))
    ]
    return tf.reduce_any(found, axis=0)


def _can_mark(weight: Any) -> bool:
    """Return whether a weight is a dense tensor of floats with at least one axis (of TensorFlow's backend)."""
    if not isinstance(weight, (tf.Tensor, np.ndarray)):
        return False
    return tf.as_dtype(weight.dtype).is_floating and bool(tf.TensorShape(weight.shape).rank)


def _padding(weight: Any) -> tf.Tensor:
    marked = tf.equal(tf.bitcast(tf.cast(weight, tf.float32), tf.int32), _MINUS_ZERO)
    return tf.reduce_all(marked, axis=list(range(1, len(weight.shape))))


def update_on(real: tf.Tensor, update: Callable[..., Any], *values: Any, at_once: bool) -> None:
    """Call `update` with the real rows of the values of a batch, if there are any.

    Without the test for any, a custom metric that averages over the batch would be NaN after a batch of padding only.
    `at_once` leaves it out, where a branch of a graph must not assign values.
    """

    def on_real_rows() -> None:
        update(*tf.nest.map_structure(lambda each: _kept(each, real), values))

    if at_once:
        on_real_rows()
    else:
        tf.cond(tf.reduce_any(real), on_real_rows, lambda: None)


def _kept(values: Any, real: tf.Tensor) -> Any:
    if values is None or tf.TensorShape(values.shape).rank == 0:  # an output without labels, a weight of all rows
        return values
    kept = (tf.ragged if isinstance(values, tf.RaggedTensor) else tf).boolean_mask(values, real)
    mask = getattr(values, "_keras_mask", None)  # of time steps; Keras keeps it on the tensor
    if mask is not None:
        kept._keras_mask = tf.boolean_mask(mask, real)
    return kept


def have_rows(*values: Any) -> bool:
    """Return whether rows can be selected from all of the values (they can't from sparse tensors)."""
    kinds = (tf.Tensor, tf.RaggedTensor, np.ndarray)
    return all(each is None or isinstance(each, kinds) for each in tf.nest.flatten(values))
