"""Rows that fill up a worker's batches, and how Keras tells them from real ones.

The feed gives them the weight -0.0. To a loss that is a zero like any other; the sign says that the row is not only
without weight, as a user may want a real row to be, but does not exist at all. It outlives what happens to weights on
their way to here: casts between float types, and products with what is not negative.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["real_rows", "update_on"]

_MINUS_ZERO = -(2**31)  # the bits of -0.0, read as an int32


def real_rows(weights: Any) -> tf.Tensor | None:
    """Tell which rows of a batch are real.

    Parameters
    ----------
    weights : tensor, array, nested structure of them, or None
        A batch's sample weights, as Keras has them. A row is padding if one of several outputs' weights says so;
        where a row has several weights (one for each time step), all of them must be -0.0.

    Returns
    -------
    tf.Tensor or None
        Of bool, shape ``(rows,)``; None if there are no weights that could tell: then all rows are real.

    Examples
    --------
    >>> real_rows(np.array([1.0, 0.0, -0.0], np.float32)).numpy().tolist()
    [True, True, False]
    """
    padding = [_padding(each) for each in tf.nest.flatten(weights) if _can_tell(each)]
    return tf.logical_not(tf.reduce_any(padding, axis=0)) if padding else None


def _can_tell(weight: Any) -> bool:
    """Tell whether it is a dense tensor of floats with at least one axis (and not of another backend of Keras's)."""
    if not isinstance(weight, (tf.Tensor, np.ndarray)):
        return False
    return tf.as_dtype(weight.dtype).is_floating and bool(tf.TensorShape(weight.shape).rank)


def _padding(weight: Any) -> tf.Tensor:
    marked = tf.equal(tf.bitcast(tf.cast(weight, tf.float32), tf.int32), _MINUS_ZERO)
    return tf.reduce_all(marked, axis=list(range(1, len(weight.shape))))


def update_on(real: tf.Tensor, update: Callable[[Any, Any], Any], y_true: Any, y_pred: Any, *, at_once: bool) -> None:
    """Call `update` with the real rows of labels and predictions, if there are any.

    Without the test for any, a metric of the user's own that averages over the batch would become NaN for good in the
    first batch that is nothing but padding.

    Parameters
    ----------
    real : tf.Tensor
        Which rows are real.
    update : callable
        Takes labels and predictions.
    y_true, y_pred : nested structure of tensors
        Of the whole batch.
    at_once : bool
        Without the test: where values must not come from within a branch of a graph.
    """

    def on_real_rows() -> None:
        update(*tf.nest.map_structure(lambda values: _kept(values, real), (y_true, y_pred)))

    if at_once:
        on_real_rows()
    else:
        tf.cond(tf.reduce_any(real), on_real_rows, lambda: None)


def _kept(values: Any, real: tf.Tensor) -> Any:
    if values is None:  # an output without labels
        return None
    kept = (tf.ragged if isinstance(values, tf.RaggedTensor) else tf).boolean_mask(values, real)
    mask = getattr(values, "_keras_mask", None)  # which time steps count; Keras has it on the tensor
    if mask is not None:
        kept._keras_mask = tf.boolean_mask(mask, real)
    return kept
