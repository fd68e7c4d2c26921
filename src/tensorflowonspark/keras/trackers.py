"""The losses that Keras 3's steps report: means over real rows, of all workers.

Keras's steps give the values of losses to metrics, its own and those of a ``train_step`` of the program's, which keep
means over an epoch. On one of several workers each value is of its own rows (`worker_step`), and counts by them.

In a process that trains alone a batch's padding would count: Keras divides a batch's loss by the number of its rows,
and weights the batch with that number in the epoch's mean. With padding both numbers are too large. The minimized loss
is unchanged, so that each row has the same weight in the gradients; only the values that Keras's trackers of the loss
receive are corrected.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.gradients import contribution
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.metrics import real_rows
from tensorflowonspark.keras.row_weights import is_averaged
from tensorflowonspark.keras.worker_step import WorkerStep, current_step


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
    """Have a model's trackers count the real rows of a batch, for the duration of a step of a process alone."""
    real = None if current_step() else real_rows(sample_weight)
    current = None
    if real is not None:
        current = model, TrackedBatch(real, is_averaged(tf.nest.flatten(model.loss)))
    with setting(_current, current):
        yield


def track_losses(keras: ModuleType) -> None:
    """Have metrics track losses of real rows, and of all workers (called after the import of Keras)."""

    def update_mean(wrapped: Any, mean: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step, at_batch = current_step(), _current.get()
        if step is not None:
            return wrapped(*_of_all_rows(keras, step, mean, values, sample_weight))
        if at_batch is None:
            return wrapped(values, sample_weight)
        model, batch = at_batch
        of_model = mean is _of_model(model)
        if not of_model and not any(mean is each for each in _of_outputs(model)):
            return wrapped(values, sample_weight)
        return batch.update(wrapped, mean.dtype, values, model.losses if of_model else [])

    def update_sum(wrapped: Any, _sum: Any, /, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        of_batch = step is not None and sample_weight is None and _is_number(values)
        return wrapped(contribution(step, values) if step and of_batch else values, sample_weight)

    wrap(keras, "metrics.Mean.update_state", update_mean)
    wrap(keras, "metrics.Sum.update_state", update_sum)


def track_loss(model: Any, loss: Any, x: Any) -> None:
    """Update a model's tracker with its loss, as Keras's own steps do."""
    rows = tf.shape(next(each for each in tf.nest.flatten(x) if each is not None))[0]
    _of_model(model).update_state(loss, sample_weight=rows)


def _of_model(model: Any) -> Any:
    """Return the metric of a Keras 3 model that tracks its loss."""
    return model._loss_tracker


def _of_outputs(model: Any) -> list[Any]:
    """Return the metrics of a Keras 3 model that track the loss of each output, if there are several."""
    return list(getattr(model._compile_loss, "metrics", []))


def _is_number(value: Any) -> bool:
    """Return whether a value is a tensor of one float; a variable, as a metric may return it, is none."""
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def _of_all_rows(keras: Any, step: WorkerStep, mean: Any, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the arguments of a ``Mean`` in place of a worker's own values and their weights."""
    is_output = any(mean is each for each in _of_outputs(step.model))  # with weights, if Keras knows a number of rows
    if is_output or (mean is _of_model(step.model) and sample_weight is not None):
        if _is_number(values) and tf.is_symbolic_tensor(values):  # that of a compute_loss of one's own may be a sum
            values = tf.math.divide_no_nan(contribution(step, values), tf.cast(step.share, values.dtype))
        return values, step.own  # each row counts once
    if not _is_number(values):
        return values, sample_weight
    given = isinstance(mean, keras.metrics.MeanMetricWrapper)  # a function in compile
    own = contribution(step, values, f"the metric {mean.name!r}" if given else "", strict=given)
    if sample_weight is not None:
        return step.of_all(own), sample_weight
    share = tf.cast(step.share, own.dtype)
    return tf.math.divide_no_nan(own, share), share  # each step counts once
