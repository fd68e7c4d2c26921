"""Losses: divided by what all workers have.

In a step (`worker_step`) each loss of Keras is made a value whose mean over the workers, each weighted with its rows,
is the loss of all rows. A mean over rows is one as it is. What is divided by anything else (unmasked time steps, the
sum of weights) is divided by the sum over all workers.

A loss that is one number for a whole batch (a function that returns a mean, or one over a model's output without a
second axis) is averaged over the workers like every other mean, also outside of `fit`. Keras does not divide it: the
sum of all workers' gradients would be too large by the number of workers.
"""

import inspect
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.all_rows import is_own, of_all_rows
from tensorflowonspark.keras.gradients import contribution, refusal
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.row_kinds import MEAN, Found, Of, mark
from tensorflowonspark.keras.row_operations import found_in
from tensorflowonspark.keras.row_weights import AVERAGING
from tensorflowonspark.keras.worker_step import WorkerStep, current_step

_called = ContextVar("the loss that is called", default="given to compile")
_BY_WEIGHT = "mean_with_sample_weight"


def divide_by_all(losses: ModuleType) -> None:
    """Have Keras 3 divide losses by what all workers have (called after the import of its ``loss``)."""

    def reduce_weighted(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        step = current_step()
        if step is None:
            return wrapped(*bound.args)
        if bound.arguments["reduction"] in (None, "none"):
            return _of_rows(step, wrapped(*bound.args), bound.arguments["values"])
        return _marked(_reduced(losses, step, wrapped, *bound.args), MEAN)

    def reduce_values(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        reduced = wrapped(*args, **kwargs)
        single = tuple(bound.arguments["values"].shape) == ()
        averaged = bound.arguments["reduction"] in (*AVERAGING, _BY_WEIGHT)
        return losses.scale_loss_for_distribution(reduced) if single and averaged else reduced

    wrap(losses, "reduce_weighted_values", reduce_weighted)
    wrap(losses, "reduce_values", reduce_values)


def know_losses(keras: ModuleType) -> None:
    """Have losses that layers add, and those of models, be known as means (called after the import of Keras)."""

    def add_loss(wrapped: Any, layer: Any, /, loss: Any) -> None:
        step = current_step()
        wrapped(loss if step is None else [_of_layer(step, layer, each) for each in keras.tree.flatten(loss)])

    def call(wrapped: Any, loss: Any, /, *args: Any, **kwargs: Any) -> Any:
        kind = type(loss).__name__
        of_function = kind == "LossFunctionWrapper" and hasattr(loss, "fn")
        with setting(_called, loss.fn.__name__ if of_function else kind):
            return wrapped(*args, **kwargs)

    def compute_loss(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        loss, step = wrapped(*args, **kwargs), current_step()
        if step is None or loss.shape.rank != 0:
            return loss
        own = [each for each in keras.tree.flatten(model.loss) if not _is_of_keras(keras, each)]
        if not tf.is_symbolic_tensor(loss):  # of Keras's own losses a mean by now; of others nothing is known
            return _marked(loss, Found(Of.OTHER, why="run_eagerly") if own else MEAN)
        name = ", ".join(type(each).__name__ for each in own) or f"{type(model).__name__}.compute_loss"
        return as_mean(step, loss, f"the loss {name}")

    def scale_loss(wrapped: Any, _optimizer: Any, /, loss: Any) -> Any:
        scaled = wrapped(loss)
        is_plain = current_step() is None or tf.is_symbolic_tensor(scaled)  # else no operation shows what it is
        return scaled if is_plain else _marked(scaled, found_in(loss))

    wrap(keras, "Layer.add_loss", add_loss)
    wrap(keras, "Loss.__call__", call)
    wrap(keras, "Model.compute_loss", compute_loss)
    for name in ("Optimizer", "optimizers.LossScaleOptimizer"):
        wrap(keras, f"{name}.scale_loss", scale_loss)


def _is_of_keras(keras: Any, loss: Any) -> bool:
    """Return whether Keras reduces what a loss given to ``compile`` returns."""
    return not isinstance(loss, keras.Loss) or type(loss).__call__ is keras.Loss.__call__


def _of_rows(step: WorkerStep, losses: Any, values: Any) -> Any:
    """Return losses that are not reduced: one of each row."""
    if len(values.shape) == 0:  # one number for the batch, which Keras multiplies by the weights of rows
        if len(losses.shape) == 0:
            return as_mean(step, losses, f"the loss {_called.get()}")
        whole = Found(Of.WHOLE, why="one number for the batch, and reduction='none'")
        raise SpecError(refusal(f"the loss {_called.get()}", whole))
    return _rows_of_all(step, losses) if tf.is_symbolic_tensor(losses) else _marked(losses, Found(Of.ROWS))


def _rows_of_all(step: WorkerStep, losses: Any) -> Any:
    """Return a loss of each row, in which sums and means over rows are those of all workers' rows."""
    if not tf.is_symbolic_tensor(losses):
        return losses
    found = found_in(losses)
    if found.of is Of.WHOLE:
        raise SpecError(refusal(f"the loss {_called.get()}", found))
    return of_all_rows(step, [losses])[0] if is_own(found) else losses


def _marked(value: Any, found: Found) -> Any:
    """Return a tensor that is marked, and that no other function returns."""
    return mark(tf.identity(value), found) if isinstance(value, tf.Tensor) else value


def _of_layer(step: WorkerStep, layer: Any, loss: Any) -> Any:
    """Return a loss that a layer adds as a mean over rows."""
    if not isinstance(loss, tf.Tensor):
        return loss
    return as_mean(step, loss, f"the loss that {layer.name} adds")


def as_mean(step: WorkerStep, value: Any, what: str) -> Any:
    """Return a value so that the mean over all workers, each weighted with its rows, is that of all rows."""
    if found_in(value).of in (Of.MEAN, Of.FREE):
        return value
    share = tf.cast(step.share, value.dtype)
    return mark(tf.math.divide_no_nan(contribution(step, value, what, strict=True), share), MEAN)


def _reduced(
    losses: Any, step: WorkerStep, reduce: Any, values: Any, weights: Any, mask: Any, reduction: str, dtype: Any
) -> Any:
    """Return a worker's loss, in place of Keras's ``reduce_weighted_values``."""
    ops = losses.ops
    values = ops.convert_to_tensor(values, dtype=dtype)
    by_weight = reduction == _BY_WEIGHT and not (weights is None and mask is None)
    if values.shape.rank == 0:  # a function that returns one number for the batch
        value = as_mean(step, values, f"the loss {_called.get()}")
        if weights is None and mask is None:
            return value
        factor = reduce(ops.ones_like(values), weights, mask, reduction, dtype)
        of_rows = step.any if reduction == "sum" else step.share
        return value if by_weight else value * step.of_all(factor * tf.cast(of_rows, factor.dtype))
    values = _rows_of_all(step, values)
    if not by_weight and mask is None and reduction != "sum":  # the mean over this worker's rows
        return reduce(values, weights, mask, reduction, dtype)
    total = reduce(values, weights, mask, "sum", dtype)
    any_rows = tf.cast(step.any, total.dtype)  # a batch of padding alone is kept
    total *= any_rows
    share = tf.cast(step.share, total.dtype)
    if reduction == "sum":
        return tf.math.divide_no_nan(total, share)
    if by_weight:
        weights = None if weights is None else ops.convert_to_tensor(weights, dtype=values.dtype)
        divisor = ops.sum(losses.apply_mask(weights, mask, values.dtype, reduction))
    else:
        valid = ops.cast(mask, values.dtype)
        per_step = tf.size(values) / tf.maximum(tf.size(mask), 1)  # losses of each time step
        divisor = ops.sum(valid) * tf.cast(per_step, values.dtype)
    divisor = step.of_all(tf.cast(divisor, total.dtype) * any_rows)
    return tf.math.divide_no_nan(tf.math.divide_no_nan(total, divisor), share)
