"""Reported losses: the mean over real rows.

Keras divides a batch's loss by the number of its rows, and weights the batch with that number in the epoch's mean. With
padding both numbers are too large. The minimized loss is unchanged, so that each row has the same weight in the
gradients; only the values that Keras's trackers of the loss receive are corrected.

A loss that is one number for a whole batch (a function that returns a mean, or one over a model's output without a
second axis) is averaged over the workers like every other mean. Keras does not divide it: the sum of all workers'
gradients, and the reported loss, would be too large by the number of workers.
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
    """The real rows of a batch, and whether its loss is divided by the number of all rows."""

    real: tf.Tensor
    averaged: bool

    def update(self, update: Any, dtype: Any, loss: Any, additional: Iterable[Any]) -> Any:
        """Update a tracker with this batch's loss, of which `additional` losses do not depend on rows."""
        count = tf.reduce_sum(tf.cast(self.real, dtype))
        rest = tf.add_n([tf.zeros([], dtype), *(tf.reduce_sum(tf.cast(each, dtype)) for each in additional)])
        of_rows = tf.cast(loss, dtype) - rest
        if self.averaged:
            of_rows *= tf.math.divide_no_nan(tf.cast(tf.size(self.real), dtype), count)
        return update(of_rows + rest, sample_weight=count)


def count_real_rows(trainer: ModuleType) -> None:
    """Have Keras 3 report the mean over real rows (called after the import of its TensorFlow trainer)."""
    # The trackers don't receive the batch, so each step records it. Replicas run their steps in interleaved threads.
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
        at_batch = current.get()
        if at_batch is None or not any(mean is each for each in _trackers(at_batch[0])):
            return wrapped(*args, **kwargs)
        model, batch = at_batch
        additional = model.losses if mean is model._loss_tracker else []
        return batch.update(wrapped, mean.dtype, args[0] if args else kwargs["values"], additional)

    for name in ("train_step", "test_step"):
        wrapt.wrap_function_wrapper(trainer, f"TensorFlowTrainer.{name}", step)
    wrapt.wrap_function_wrapper(trainer.metrics_module, "Mean.update_state", update_state)


def average_single_values(losses: ModuleType) -> None:
    """Have Keras 3 divide a mean that is one number by the workers (called after the import of its ``loss``)."""
    if not hasattr(losses, "scale_loss_for_distribution"):
        return  # this version scales no loss in this module

    def reduce_values(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        reduced = wrapped(*args, **kwargs)
        single = tuple(bound.arguments["values"].shape) == ()
        averaged = bound.arguments["reduction"] in (*_AVERAGING, "mean_with_sample_weight")
        return losses.scale_loss_for_distribution(reduced) if single and averaged else reduced

    wrapt.wrap_function_wrapper(losses, "reduce_values", reduce_values)


def _trackers(model: Any) -> list[Any]:
    """Return the metrics of a Keras 3 model that track its loss, and that of each output if there are several."""
    return [model._loss_tracker, *getattr(model._compile_loss, "metrics", [])]


def count_real_rows_in_tf_keras(compile_utils: ModuleType) -> None:
    """Have ``tf_keras`` do the same (called after the import of its ``compile_utils``)."""
    original = compile_utils.LossesContainer.__call__

    # Not a wrapper of wrapt: AutoGraph, which converts the steps of tf_keras, unwraps it up to TensorFlow 2.16.
    @tf.autograph.experimental.do_not_convert
    def call(container: Any, *args: Any, **kwargs: Any) -> Any:
        y_true, y_pred, weights, additional = _arguments(*args, **kwargs)
        real = real_rows(weights)
        if real is None:
            return original(container, y_true, y_pred, weights, additional)
        if not container.built:
            container.build(y_pred)
        batch = _Batch(real, _averaged(container._user_losses))
        own = copy.copy(container)  # Keras's function runs unchanged, with trackers that correct their values
        own._total_loss_mean = _Tracker(container._total_loss_mean, batch, additional or [])
        own._per_output_metrics = [each and _Tracker(each, batch, []) for each in container._per_output_metrics]
        return original(own, y_true, y_pred, weights, additional)

    compile_utils.LossesContainer.__call__ = call


@dataclass(frozen=True)
class _Tracker:
    """A tracker of ``tf_keras`` at one batch."""

    mean: Any
    batch: _Batch
    additional: Iterable[Any]

    def update_state(self, loss: Any, sample_weight: Any = None) -> Any:  # noqa: ARG002 - Keras counts all rows
        return self.batch.update(self.mean.update_state, self.mean.dtype, loss, self.additional)


def _arguments(
    y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None
) -> tuple[Any, Any, Any, Any]:
    return y_true, y_pred, sample_weight, regularization_losses


def _averaged(losses: Any) -> bool:
    """Return whether all losses given to ``compile`` are divided by the number of rows, as they are by default."""
    return all(getattr(each, "reduction", "auto") in _AVERAGING for each in tf.nest.flatten(losses))
