"""Losses: divided by what all replicas have.

In a step of one of several replicas (`global_batch`) a mean over rows counts by the replica's share of them, and what
is divided by anything else (unmasked time steps, the sum of weights) is divided by the sum over all replicas.

A loss that is one number for a whole batch (a function that returns a mean, or one over a model's output without a
second axis) is averaged over the workers like every other mean, also outside of `fit`. Keras does not divide it: the
sum of all workers' gradients would be too large by the number of workers.
"""

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.global_batch import GlobalStep, current_step
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.loss_terms import KERAS, MEAN, SUM, mark, terms
from tensorflowonspark.keras.own_losses import is_sum
from tensorflowonspark.keras.row_weights import AVERAGING

_BY_WEIGHT = "mean_with_sample_weight"


def divide_by_all(losses: ModuleType) -> None:
    """Have Keras 3 divide losses by what all replicas have (called after the import of its ``loss``)."""

    def reduce_weighted(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        step = current_step()
        if step is None or bound.arguments["reduction"] in (None, "none"):
            return wrapped(*bound.args)
        return _reduced(losses, step, wrapped, *bound.args)

    def reduce_values(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        reduced = wrapped(*args, **kwargs)
        single = tuple(bound.arguments["values"].shape) == ()
        averaged = bound.arguments["reduction"] in (*AVERAGING, _BY_WEIGHT)
        return losses.scale_loss_for_distribution(reduced) if single and averaged else reduced

    def scale(wrapped: Any, _: Any, /, value: Any) -> Any:
        step = current_step()
        return wrapped(value) if step is None else _scaled(step, value)

    def unscale(wrapped: Any, _: Any, /, value: Any) -> Any:
        step = current_step()
        if step is None or value.shape.rank != 0:  # no loss of a single row is divided
            return value if step else wrapped(value)
        return step.shown(value) if step.here else wrapped(value)

    wrap(losses, "reduce_weighted_values", reduce_weighted)
    wrap(losses, "reduce_values", reduce_values)
    wrap(losses, "scale_loss_for_distribution", scale)
    wrap(losses, "unscale_loss_for_distribution", unscale)


def _scaled(step: GlobalStep, loss: Any) -> Any:
    """Return a replica's additional loss, in place of Keras's ``scale_loss_for_distribution``."""
    if not step.here:  # a graph that outlives this step's tensors
        return loss / (step.divisor if step.name else tf.distribute.get_strategy().num_replicas_in_sync)
    if terms(loss) == {KERAS}:  # given to `add_loss`
        return loss
    return step.part(loss, SUM if is_sum(step, loss, strict=False) else MEAN)


def _reduced(
    losses: Any, step: GlobalStep, reduce: Any, values: Any, weights: Any, mask: Any, reduction: str, dtype: Any
) -> Any:
    """Return a replica's loss, in place of Keras's ``reduce_weighted_values``."""
    ops = losses.ops
    by_weight = reduction == _BY_WEIGHT and not (weights is None and mask is None)
    if not step.here:
        if by_weight or mask is not None:
            raise SpecError(
                "a loss with a mask, or with reduction='mean_with_sample_weight', is divided by what all workers have, "
                "which a tf.function within a step can't learn: compute this loss outside of that function"
            )
        loss = reduce(values, weights, mask, reduction, dtype)
        return mark(loss, SUM if reduction == "sum" else KERAS)
    values = ops.convert_to_tensor(values, dtype=dtype)
    is_one = values.shape.rank == 0
    kind = SUM if is_one and is_sum(step, values, strict=False) else MEAN
    if is_one and weights is None and mask is None:
        return step.part(values, kind)
    total = reduce(values, weights, mask, "sum", dtype)
    if weights is None:  # which exclude padding
        total *= tf.cast(step.any, total.dtype)
    if reduction == "sum":
        return step.part(total, SUM)
    if by_weight:
        weights = None if weights is None else ops.convert_to_tensor(weights, dtype=values.dtype)
        divisor = ops.sum(losses.apply_mask(weights, mask, values.dtype, reduction))
    elif mask is not None:
        valid = ops.cast(mask, values.dtype)
        if step.real is not None:
            valid *= tf.reshape(tf.cast(step.real, valid.dtype), [-1, *[1] * (valid.shape.rank - 1)])
        per_step = tf.size(values) / tf.maximum(tf.size(mask), 1)  # losses of each time step
        divisor = ops.sum(valid) * tf.cast(per_step, values.dtype)
    else:  # the mean over this replica's rows
        size = tf.size(values) if weights is None else tf.maximum(tf.size(values), tf.size(weights))
        divisor = tf.cast(size, tf.float32)
        if weights is not None and step.real is not None:
            divisor *= step.own / tf.maximum(tf.cast(tf.size(step.real), tf.float32), 1.0)
        return step.part(tf.math.divide_no_nan(total, tf.cast(divisor, total.dtype)), kind)
    divisor = step.of_all(tf.cast(divisor, total.dtype))
    return step.part(tf.math.divide_no_nan(total, divisor), SUM)
