"""Training and test steps of models with ``jit_compile=True``, and of models with custom steps.

Keras compiles a step as a whole, but XLA can't compile the exchange of gradients between replicas: TensorFlow aborts.
Here XLA compiles the local part of a replica's step: the model, its loss and its gradients. The optimizer and the
metrics follow. (Keras itself compiles the function that ``predict`` runs on a replica.)

Models with a custom ``train_step`` or ``test_step``:

- A model without a ``call``, as the GAN of Keras's guide, is built in its first step, where several replicas of one
  worker can't make variables. They are made before, by tracing the step.
- With ``jit_compile=True`` a custom step is refused, since XLA may not be able to compile it.
"""

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.global_batch import current_step, of_replicas
from tensorflowonspark.keras.hooks import is_own, wrap
from tensorflowonspark.keras.saving import takes_training
from tensorflowonspark.keras.trackers import track_loss, tracking

_log = logging.getLogger(__name__)


def take_steps(keras: ModuleType) -> None:
    """Have Keras's own steps compile the local part of a replica, and track real rows (called after Keras's import)."""
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
    return bool(model.jit_compile) and of_replicas(model.distribute_strategy)


def _train_step(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    def compute(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            y_pred, loss = _forward(model, x, y, sample_weight, training=True)
            scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
        return y_pred, loss, tape.gradient(scaled, model.trainable_weights)

    y_pred, loss, gradients = _compiled(model, compute, x, y, sample_weight, training=True)
    track_loss(model, loss, x)
    if model.trainable_weights:
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
        with StatelessScope(values), step.rehearsal():
            _forward(model, *data, training=training)

    @tf.function(jit_compile=True, autograph=False)
    def inner(*data: Any) -> Any:
        with nullcontext() if step is None else step.compiled():
            results = compute(*data)
        masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten(results[0])]
        return results, masks, model.losses

    results, masks, losses = inner(*data)
    for each, mask in zip(tf.nest.flatten(results[0]), masks, strict=True):
        if mask is not None:
            each._keras_mask = mask
    model._losses_override[:] = losses  # in place of the compiled graph's own
    return results


def can_be_called(model: Any) -> bool:
    """Return whether a model has a ``call``."""
    import keras  # its import is complete by now

    return type(model).call not in (keras.Layer.call, keras.Model.call)


def build_in_advance(model: Any, batch: Any) -> None:
    """Make the variables of a custom ``train_step``, if several replicas of this worker run it."""
    strategy = model.distribute_strategy
    if len(strategy.extended.worker_devices) == 1 or not is_own(model, "train_step"):
        return
    from keras import KerasTensor, Operation

    def symbolic(value: Any) -> Any:
        return None if value is None else KerasTensor(value.shape, tf.as_dtype(value.dtype).name)

    class Step(Operation):
        def call(self, data: Any) -> Any:
            with tf.distribute.ReplicaContext(strategy, 0):  # so that variables have one value to differentiate by
                return model.train_step(data)

    data = tf.nest.map_structure(symbolic, batch)
    # The first trace builds layers, which allows gradients, which allow the optimizers' variables.
    for _ in range(3):
        try:
            with strategy.scope():
                Step().compute_output_spec(data)
        except Exception as error:
            _log.debug("tracing the step failed: %s", error)
        else:
            return


def refuse_custom_step(model: Any, name: str) -> None:
    """Refuse to compile a model with a custom step that does not call Keras's.

    Raises
    ------
    SpecError
        With the name of the step.
    """
    if not is_compiled(model) or not is_own(model, name):
        return
    code = getattr(inspect.getattr_static(type(model), name), "__code__", None)
    if code is None or name not in code.co_names:  # it does not call super().train_step(data) either
        raise SpecError(
            f"jit_compile=True: {type(model).__name__} has a custom {name}, which exchanges gradients or metrics with "
            "the other workers, and XLA can't compile that; put @tf.function(jit_compile=True) on the functions of its "
            f'local part, and compile the model with jit_compile="auto" or False'
        )


def refuse_float8(model: Any) -> None:
    """Refuse to train layers in float8, whose scales each replica would compute from its own rows.

    Raises
    ------
    SpecError
        With the path of the first scale.
    """
    scales = [each.path for each in model.trainable_variables if getattr(each, "overwrite_with_gradient", False)]
    if scales and model.distribute_strategy.num_replicas_in_sync > 1:
        raise SpecError(
            f"{scales[0]}: a layer in float8 scales its values by those that it has seen, and each of several workers "
            "or devices would have seen others: train it in another dtype, as mixed_bfloat16, or on one device"
        )
