"""Steps of a model that is compiled with ``jit_compile=True``, on several workers or devices.

Keras compiles a step as a whole, and XLA can't compile the exchange of gradients between replicas: TensorFlow aborts.
Here XLA compiles what a replica computes by itself, which is the model, its loss and its gradients; the optimizer and
the metrics come after it. (The function that ``predict`` runs on a replica is compiled by Keras itself.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import tensorflow as tf

__all__ = ["compile_steps", "is_compiled", "without_compiling"]


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
