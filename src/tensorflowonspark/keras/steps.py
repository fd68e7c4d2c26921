"""Training and test steps of models with ``jit_compile=True``, on several workers.

Keras compiles a step as a whole, but XLA can't compile the exchange of gradients between workers: TensorFlow aborts.
Here XLA compiles the local part of a worker's step: the model, its loss and its gradients. The optimizer and the
metrics follow. A ``train_step`` of a model's own is compiled so far as it calls Keras's.
"""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.gradients import summed
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.inference import takes_training
from tensorflowonspark.keras.row_kinds import mark_rows
from tensorflowonspark.keras.trackers import track_loss, tracking
from tensorflowonspark.keras.worker_step import current_step
from tensorflowonspark.keras.workers import has_several_workers


def take_steps(keras: ModuleType) -> None:
    """Have Keras's own steps compile the local part of a worker, and track real rows (called after Keras's import)."""
    wrap(keras, "Model.train_step", _stepping(_train_step))
    wrap(keras, "Model.test_step", _stepping(_test_step))


def _stepping(compiled_step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of a step of Keras's models: one for models that are compiled by XLA, or Keras's own."""

    def step(wrapped: Any, model: Any, /, data: Any) -> Any:
        from keras.utils import unpack_x_y_sample_weight  # its import is complete by now

        x, y, sample_weight = unpack_x_y_sample_weight(data)
        with tracking(model, sample_weight):
            if not is_compiled(model):
                return wrapped(data)
            try:
                return compiled_step(model, x, y, sample_weight)
            finally:
                model._losses_override.clear()

    return step


def is_compiled(model: Any) -> bool:
    """Return whether XLA compiles the local part of a model's steps, and not a step as a whole."""
    return bool(model.jit_compile) and has_several_workers(model.distribute_strategy)


def _train_step(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    def compute(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            y_pred, loss = _forward(model, x, y, sample_weight, training=True)
            scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
        return y_pred, loss, tape.gradient(scaled, model.trainable_weights)

    y_pred, loss, gradients = _compiled(model, compute, x, y, sample_weight, training=True)
    track_loss(model, loss, x)
    step = current_step()
    if model.trainable_weights:
        gradients = gradients if step is None else summed(step, gradients)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _test_step(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    def compute(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        return _forward(model, x, y, sample_weight, training=False)

    y_pred, loss = _compiled(model, compute, x, y, sample_weight, training=False)
    track_loss(model, loss, x)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, *, training: bool) -> tuple[Any, Any]:
    y_pred = model(x, training=training) if takes_training(model) else model(x)
    more = {"training": training} if "training" in inspect.signature(model.compute_loss).parameters else {}
    return y_pred, model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)


def _compiled(model: Any, compute: Callable[..., Any], *data: Any, training: bool) -> Any:
    """Return a function's results, of which the first is the model's prediction, compiled by XLA.

    The compiled graph also returns the masks of the prediction and the losses of layers, which Keras keeps beside it.
    What its losses are divided by is exchanged before, by a pass that changes no variable, and whose predictions
    TensorFlow prunes.
    """
    from keras import StatelessScope

    step = current_step()
    if step is not None:
        values = [(each, each.value) for each in model.trainable_weights]  # of which regularizers ask it
        with StatelessScope(values):
            _forward(model, *data, training=training)

    @tf.function(jit_compile=True, autograph=False)
    def inner(*data: Any) -> Any:
        with nullcontext() if step is None else step.compiled():
            results = compute(*data)
        masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten(results[0])]
        return results, masks, model.losses

    results, masks, losses = inner(*data)
    for each in tf.nest.flatten(results[0]):
        mark_rows(each)
    for each, mask in zip(tf.nest.flatten(results[0]), masks, strict=True):
        if mask is not None:
            each._keras_mask = mask
    model._losses_override[:] = losses  # in place of the compiled graph's own
    return results


def can_be_called(model: Any) -> bool:
    """Return whether a model has a ``call``."""
    import keras  # its import is complete by now

    return type(model).call not in (keras.Layer.call, keras.Model.call)


def refuse_float8(model: Any) -> None:
    """Refuse to train layers in float8, whose scales each replica would compute from its own rows.

    The `SpecError` has the path of the first scale.
    """
    scales = [each.path for each in model.trainable_variables if getattr(each, "overwrite_with_gradient", False)]
    if scales:
        raise SpecError(
            f"{scales[0]}: a layer in float8 scales its values by those that it has seen, and each of several workers "
            "or devices would have seen others: train it in another dtype, as mixed_bfloat16, or on one device"
        )
