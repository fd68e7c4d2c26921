"""The loss that is shown is the mean over real rows.

Keras divides a batch's loss by the number of its rows, and counts the batch with that number of rows when it takes the
mean over an epoch. With padding both numbers are too large. What is minimized is left as it is, so that each row has
the same weight in the gradients; only what Keras's trackers of the loss are told is put right.

A loss that is one number for a whole batch (a function that returns a mean, or one over a model's output without a
second axis) is averaged over the workers as every other mean is. Keras leaves it as it is: the gradients of all workers
add up to as many times the right ones as there are workers, and so does the loss that is shown.
"""

import copy
import inspect
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf
import wrapt

from tensorflowonspark.keras.metrics import real_rows

__all__ = ["average_single_values", "count_real_rows", "count_real_rows_in_tf_keras"]

_AVERAGING = ("auto", "mean", "sum_over_batch_size")  # reductions that divide by the number of rows


@dataclass(frozen=True)
class _Batch:
    """Which rows of a batch are real, and whether the loss was divided by the number of all of them."""

    real: tf.Tensor
    averaged: bool

    def update(self, update: Any, dtype: Any, loss: Any, additional: Iterable[Any]) -> Any:
        """Tell a tracker, by its `update`, of this batch's loss; in it may be `additional` losses, not made of rows."""
        count = tf.reduce_sum(tf.cast(self.real, dtype))
        rest = tf.add_n([tf.zeros([], dtype), *(tf.reduce_sum(tf.cast(each, dtype)) for each in additional)])
        of_rows = tf.cast(loss, dtype) - rest
        if self.averaged:
            of_rows *= tf.math.divide_no_nan(tf.cast(tf.size(self.real), dtype), count)
        return update(of_rows + rest, sample_weight=count)


def count_real_rows(trainer: ModuleType) -> None:
    """Have Keras 3 show the mean over real rows (called after the import of its TensorFlow trainer)."""
    # The trackers don't know the batch, and the steps that do are not ours: so they say which batch they are at.
    # (Replicas take their steps in threads of their own, one in the midst of another.)
    current: ContextVar[tuple[Any, _Batch] | None] = ContextVar("model and batch", default=None)

    def step(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        data = args[0] if args else kwargs["data"]
        real = real_rows(trainer.data_adapter_utils.unpack_x_y_sample_weight(data)[2])
        if real is None:
            return wrapped(data)
        token = current.set((model, _Batch(real, _averaged(model.loss))))
        try:
            return wrapped(data)
        finally:
            current.reset(token)

    def update_state(wrapped: Any, mean: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = current.get()
        if at is None or not any(mean is each for each in _trackers(at[0])):
            return wrapped(*args, **kwargs)
        model, batch = at
        additional = model.losses if mean is model._loss_tracker else []
        return batch.update(wrapped, mean.dtype, args[0] if args else kwargs["values"], additional)

    for name in ("train_step", "test_step"):
        wrapt.wrap_function_wrapper(trainer, f"TensorFlowTrainer.{name}", step)
    wrapt.wrap_function_wrapper(trainer.metrics_module, "Mean.update_state", update_state)


def average_single_values(losses: ModuleType) -> None:
    """Have Keras 3 divide a mean that is one number by the workers, too (called after the import of its ``loss``)."""
    if not hasattr(losses, "scale_loss_for_distribution"):
        return  # a version that scales no loss in this module

    def reduce_values(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        reduced = wrapped(*args, **kwargs)
        single = tuple(bound.arguments["values"].shape) == ()
        averaged = bound.arguments["reduction"] in (*_AVERAGING, "mean_with_sample_weight")
        return losses.scale_loss_for_distribution(reduced) if single and averaged else reduced

    wrapt.wrap_function_wrapper(losses, "reduce_values", reduce_values)


def _trackers(model: Any) -> list[Any]:
    """Return the metrics of a model of Keras 3 that keep its loss, and that of each output if there are several."""
    return [model._loss_tracker, *getattr(model._compile_loss, "metrics", [])]


def count_real_rows_in_tf_keras(compile_utils: ModuleType) -> None:
    """Have Keras 2 do the same (called after the import of its ``compile_utils``)."""
    original = compile_utils.LossesContainer.__call__

    # No wrapper of wrapt's: AutoGraph, which Keras 2 runs its steps through, looked through it up to TensorFlow 2.16.
    @tf.autograph.experimental.do_not_convert
    def call(container: Any, *args: Any, **kwargs: Any) -> Any:
        y_true, y_pred, weights, additional = _arguments(*args, **kwargs)
        real = real_rows(weights)
        if real is None:
            return original(container, y_true, y_pred, weights, additional)
        if not container.built:
            container.build(y_pred)
        batch = _Batch(real, _averaged(container._user_losses))
        own = copy.copy(container)  # Keras's function runs as it is, with trackers that correct what they are told
        own._total_loss_mean = _Tracker(container._total_loss_mean, batch, additional or [])
        own._per_output_metrics = [each and _Tracker(each, batch, []) for each in container._per_output_metrics]
        return original(own, y_true, y_pred, weights, additional)

    compile_utils.LossesContainer.__call__ = call


@dataclass(frozen=True)
class _Tracker:
    """A tracker of Keras 2 at one batch."""

    mean: Any
    batch: _Batch
    additional: Iterable[Any]

    def update_state(self, loss: Any, sample_weight: Any = None) -> Any:  # noqa: ARG002 - Keras's count of rows
        return self.batch.update(self.mean.update_state, self.mean.dtype, loss, self.additional)


def _arguments(
    y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None
) -> tuple[Any, Any, Any, Any]:
    return y_true, y_pred, sample_weight, regularization_losses


def _averaged(losses: Any) -> bool:
    """Tell whether all losses given to ``compile`` are divided by the number of rows, as they are by default."""
    return all(getattr(each, "reduction", "auto") in _AVERAGING for each in tf.nest.flatten(losses))
