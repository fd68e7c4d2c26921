"""The losses that Keras 3's steps report: means over real rows, of all replicas.

Keras's steps give the values of losses to metrics, its own and those of a ``train_step`` of the program's, which keep
means over an epoch. A batch's padding would count there, and on one of several replicas each value is of its own rows
(`global_batch`).

Without several replicas Keras divides a batch's loss by the number of its rows, and weights the batch with that number
in the epoch's mean. With padding both numbers are too large. The minimized loss is unchanged, so that each row has the
same weight in the gradients; only the values that Keras's trackers of the loss receive are corrected.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.global_batch import GlobalStep, current_step
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.loss_terms import is_of_keras, may_be_loss
from tensorflowonspark.keras.metrics import real_rows
from tensorflowonspark.keras.row_weights import is_averaged


@dataclass(frozen=True)
class TrackedBatch:
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


# The trackers don't receive the batch, so each step records it. Replicas run their steps in interleaved threads.
_current: ContextVar[tuple[Any, TrackedBatch] | None] = ContextVar("model and batch", default=None)


@contextmanager
def tracking(model: Any, sample_weight: Any) -> Iterator[None]:
    """Have a model's trackers count the real rows of a batch, for the duration of a step of its only replica."""
    real = None if current_step() else real_rows(sample_weight)
    current = None
    if real is not None:
        current = model, TrackedBatch(real, is_averaged(tf.nest.flatten(model.loss)))
    with setting(_current, current):
        yield


def track_losses(keras: ModuleType) -> None:
    """Have metrics track losses of real rows, and of all replicas (called after the import of Keras)."""

    def update_mean(wrapped: Any, mean: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step, at_batch = current_step(), _current.get()
        if step is not None and step.here:
            return wrapped(*_of_all_rows(step, mean, values, sample_weight))
        if at_batch is None:  # as within such a step
            return wrapped(values, sample_weight)
        model, batch = at_batch
        of_model = mean is _of_model(model)
        if not of_model and not any(mean is each for each in _of_outputs(model)):
            return wrapped(values, sample_weight)
        return batch.update(wrapped, mean.dtype, values, model.losses if of_model else [])

    def update_sum(wrapped: Any, _sum: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        own = step is not None and step.name and step.here and may_be_loss(values)
        return wrapped(step.contribution(values) if step and own else values, sample_weight)

    def compute_loss(wrapped: Any, _model: Any, /, *args: Any, **kwargs: Any) -> Any:
        loss, step = wrapped(*args, **kwargs), current_step()
        return step.total(loss) if step and step.here and loss.shape.rank == 0 else loss

    wrap(keras, "metrics.Mean.update_state", update_mean)
    wrap(keras, "metrics.Sum.update_state", update_sum)
    wrap(keras, "Model.compute_loss", compute_loss)


def track_loss(model: Any, loss: Any, x: Any) -> None:
    """Update a model's tracker with its loss, as Keras's own steps do."""
    step = current_step()
    shown = loss if step is None or loss.shape.rank != 0 or not step.here else step.shown(loss)
    rows = tf.shape(next(each for each in tf.nest.flatten(x) if each is not None))[0]
    _of_model(model).update_state(shown, sample_weight=rows)


def _of_model(model: Any) -> Any:
    """Return the metric of a Keras 3 model that tracks its loss."""
    return model._loss_tracker


def _of_outputs(model: Any) -> list[Any]:
    """Return the metrics of a Keras 3 model that track the loss of each output, if there are several."""
    return list(getattr(model._compile_loss, "metrics", []))


def _of_all_rows(step: GlobalStep, mean: Any, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the arguments of a ``Mean`` in place of a replica's own values and their weights."""
    is_output = any(mean is each for each in _of_outputs(step.model))  # with weights, if Keras knows a number of rows
    if is_output or (mean is _of_model(step.model) and sample_weight is not None):
        sample_weight = step.own  # each row counts once
    elif sample_weight is None:
        if not may_be_loss(values):
            return values, None
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return step.contribution(values) * tf.cast(replicas, values.dtype), None  # each step counts once
    return (step.shown(values) if is_of_keras(values) else values), sample_weight
