"""Training and test steps: models compiled with ``jit_compile=True``, and models with steps of their own.

Keras compiles a step as a whole, and XLA can't compile the exchange of gradients between replicas: TensorFlow aborts.
Here XLA compiles what a replica computes by itself, which is the model, its loss and its gradients; the optimizer and
the metrics come after it. (The function that ``predict`` runs on a replica is compiled by Keras itself.)

- One without a ``call``, as Keras's guide writes a GAN, is built in its first step. Several replicas of one worker
  can't make variables there: what such a step uses is made beforehand, by following the step without computing it.
- Keras's losses are divided by the number of replicas, whose gradients are added up. Keras's own steps show a loss as
  it was before that; those of a model's own do so if they give it to a ``Mean`` or return it.
- With ``jit_compile=True`` such a step is refused: only in Keras's own is it known what XLA can compile.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras import wrap
from tensorflowonspark.keras.optimizers import only_building

__all__ = [
    "build_in_advance",
    "can_be_called",
    "compile_steps",
    "is_compiled",
    "note_divided_losses",
    "refuse_own_step",
    "showing_whole_losses",
    "without_compiling",
]


def compile_steps(trainer: ModuleType) -> None:
    """Have the steps of Keras's trainer compile what one replica computes (called after the trainer's import)."""
    trainer.TensorFlowTrainer.train_step = _train_step(trainer)
    trainer.TensorFlowTrainer.test_step = _test_step(trainer)


def is_compiled(model: Any) -> bool:
    """Return whether XLA compiles what a replica computes of a model's steps, rather than a step as a whole."""
    strategy = model.distribute_strategy
    several_devices = isinstance(strategy, tf.distribute.MirroredStrategy) and strategy.num_replicas_in_sync > 1
    several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return bool(model.jit_compile) and (several_workers or several_devices)


@contextmanager
def without_compiling(model: Any) -> Iterator[None]:
    """Have Keras make a function around a step that is not compiled as a whole."""
    if not is_compiled(model):
        yield
        return
    model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = True


def _train_step(trainer: ModuleType) -> Callable[[Any, Any], Any]:
    original = trainer.TensorFlowTrainer.train_step

    def train_step(self: Any, data: Any) -> Any:
        if not is_compiled(self):
            return original(self, data)
        x, y, sample_weight = trainer.data_adapter_utils.unpack_x_y_sample_weight(data)

        def compute(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
            with tf.GradientTape() as tape:
                y_pred, loss = _forward(self, x, y, sample_weight, training=True)
                scaled = loss if self.optimizer is None else self.optimizer.scale_loss(loss)
            return y_pred, loss, tape.gradient(scaled, self.trainable_weights)

        y_pred, loss, gradients = _compiled(self, compute)(x, y, sample_weight)
        _track(trainer, self, loss, x)
        if self.trainable_weights:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return train_step


def _test_step(trainer: ModuleType) -> Callable[[Any, Any], Any]:
    original = trainer.TensorFlowTrainer.test_step

    def test_step(self: Any, data: Any) -> Any:
        if not is_compiled(self):
            return original(self, data)
        x, y, sample_weight = trainer.data_adapter_utils.unpack_x_y_sample_weight(data)

        def compute(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
            return _forward(self, x, y, sample_weight, training=False)

        y_pred, loss = _compiled(self, compute)(x, y, sample_weight)
        _track(trainer, self, loss, x)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return test_step


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, *, training: bool) -> tuple[Any, Any]:
    y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
    return y_pred, model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def _track(trainer: ModuleType, model: Any, loss: Any, x: Any) -> None:
    rows = tf.shape(next(each for each in trainer.tree.flatten(x) if each is not None))[0]
    model._loss_tracker.update_state(trainer.loss_module.unscale_loss_for_distribution(loss), sample_weight=rows)


def _compiled(model: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose first result is the model's prediction, compiled by XLA.

    What Keras keeps beside it, the masks of its results and the losses of layers, comes out of the compiled graph too.
    """
    layers: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)
    def inner(*args: Any) -> Any:
        results = compute(*args)
        masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten(results[0])]
        layers[:] = [each for each in model._flatten_layers() if each._losses]
        return results, masks, [list(each._losses) for each in layers]

    def outer(*args: Any) -> Any:
        results, masks, losses = inner(*args)
        for each, mask in zip(tf.nest.flatten(results[0]), masks, strict=True):
            if mask is not None:
                each._keras_mask = mask
        for layer, own in zip(layers, losses, strict=True):
            layer._losses[:] = own
        return results

    return outer


_log = logging.getLogger(__name__)
_DIVIDED = "_tfos_divided"  # an attribute of tensors: a loss that is divided by the number of replicas


def can_be_called(model: Any) -> bool:
    """Return whether a model has a ``call``."""
    import keras  # it is complete by now

    return type(model).call not in (keras.Layer.call, keras.Model.call)


def build_in_advance(trainer: ModuleType, model: Any, batch: Any) -> None:
    """Make the variables that a model's own ``train_step`` makes, if several replicas of this worker take it."""
    strategy = model.distribute_strategy
    if len(strategy.extended.worker_devices) == 1 or not _has_own(trainer, model, "train_step"):
        return
    from keras.src import backend

    def symbolic(value: Any) -> Any:
        return None if value is None else backend.KerasTensor(value.shape, backend.standardize_dtype(value.dtype))

    def step(data: Any) -> Any:
        with tf.distribute.ReplicaContext(strategy, 0):  # else variables have no one value to take gradients of
            return model.train_step(data)

    data = trainer.tree.map_structure(symbolic, batch)
    # Layers come first; with them, gradients; and with these, optimizers.
    for _ in range(3):
        try:
            with strategy.scope(), only_building():
                backend.compute_output_spec(step, data)
        except Exception as error:
            _log.debug("the step could not be followed to its end: %s", error)
        else:
            return


def _has_own(trainer: ModuleType, model: Any, name: str) -> bool:
    return inspect.getattr_static(type(model), name) is not inspect.getattr_static(trainer.TensorFlowTrainer, name)


def refuse_own_step(trainer: ModuleType, model: Any, name: str) -> None:
    """Refuse a model that is to be compiled and whose step is its own and does not call Keras's.

    Raises
    ------
    SpecError
        It names the step.
    """
    if not is_compiled(model) or not _has_own(trainer, model, name):
        return
    code = getattr(inspect.getattr_static(type(model), name), "__code__", None)
    if code is None or name not in code.co_names:  # it does not call super().train_step(data) either
        raise SpecError(
            f"jit_compile=True: {type(model).__name__} has a {name} of its own, which exchanges gradients or metrics "
            "with the other workers, and XLA can't compile that; put @tf.function(jit_compile=True) on what it "
            f'computes by itself, and compile the model with jit_compile="auto" or False'
        )


def note_divided_losses(trainer: ModuleType) -> None:
    """Have each ``Mean`` show whole losses (called after the import of Keras's TensorFlow trainer)."""

    def divided(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loss = wrapped(*args, **kwargs)
        if tf.is_tensor(loss) and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            setattr(loss, _DIVIDED, True)
        return loss

    def update_state(wrapped: Any, _mean: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def arguments(values: Any, *rest: Any, **more: Any) -> Any:
            return wrapped(_whole(trainer, values), *rest, **more)

        return arguments(*args, **kwargs)

    wrap(trainer.loss_module, "scale_loss_for_distribution", divided)
    wrap(trainer.base_trainer, "Trainer.compute_loss", divided)  # a sum of such
    wrap(trainer.metrics_module, "Mean.update_state", update_state)


def showing_whole_losses(trainer: ModuleType, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step that returns losses as they were before they were divided."""

    def whole(data: Any) -> Any:
        return trainer.tree.map_structure(lambda each: _whole(trainer, each), step(data))

    return whole


def _whole(trainer: ModuleType, loss: Any) -> Any:
    return trainer.loss_module.unscale_loss_for_distribution(loss) if getattr(loss, _DIVIDED, False) else loss
