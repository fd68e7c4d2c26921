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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.global_batch import current_step, is_own
from tensorflowonspark.keras.optimizers import only_building


def compile_steps(trainer: ModuleType) -> None:
    """Have the steps of Keras's trainer compile the local part of a replica (called after the trainer's import)."""
    trainer.TensorFlowTrainer.train_step = _train_step(trainer)
    trainer.TensorFlowTrainer.test_step = _test_step(trainer)


def is_compiled(model: Any) -> bool:
    """Return whether XLA compiles the local part of a model's steps, and not a step as a whole."""
    strategy = model.distribute_strategy
    several_devices = isinstance(strategy, tf.distribute.MirroredStrategy) and strategy.num_replicas_in_sync > 1
    several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return bool(model.jit_compile) and (several_workers or several_devices)


@contextmanager
def without_compiling(model: Any) -> Iterator[None]:
    """Have Keras make the function of a step without compiling it as a whole."""
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

        y_pred, loss, gradients = _compiled(self, compute, x, y, sample_weight, training=True)
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

        y_pred, loss = _compiled(self, compute, x, y, sample_weight, training=False)
        _track(trainer, self, loss, x)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return test_step


def _track(trainer: ModuleType, model: Any, loss: Any, x: Any) -> None:
    rows = tf.shape(next(each for each in trainer.tree.flatten(x) if each is not None))[0]
    model._loss_tracker.update_state(trainer.loss_module.unscale_loss_for_distribution(loss), sample_weight=rows)


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, *, training: bool) -> tuple[Any, Any]:
    y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
    return y_pred, model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def _compiled(model: Any, compute: Callable[..., Any], *data: Any, training: bool) -> Any:
    """Return a function's results, of which the first is the model's prediction, compiled by XLA.

    The compiled graph also returns the masks of the prediction and the losses of layers, which Keras keeps beside it.
    What its losses are divided by is exchanged before, by a pass that changes no variable, and whose predictions
    TensorFlow prunes.
    """
    from keras.src.backend.common.stateless_scope import StatelessScope

    step = current_step()
    if step is not None:
        values = [(each, each.value) for each in model.trainable_weights]  # of which regularizers ask it
        with StatelessScope(values), step.rehearsal():
            _forward(model, *data, training=training)
    layers: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)
    def inner(*data: Any) -> Any:
        with nullcontext() if step is None else step.compiled():
            results = compute(*data)
        masks = [getattr(each, "_keras_mask", None) for each in tf.nest.flatten(results[0])]
        layers[:] = [each for each in model._flatten_layers() if each._losses]
        return results, masks, [list(each._losses) for each in layers]

    results, masks, losses = inner(*data)
    for each, mask in zip(tf.nest.flatten(results[0]), masks, strict=True):
        if mask is not None:
            each._keras_mask = mask
    for layer, own in zip(layers, losses, strict=True):
        layer._losses[:] = own
    return results


_log = logging.getLogger(__name__)


def can_be_called(model: Any) -> bool:
    """Return whether a model has a ``call``."""
    import keras  # its import is complete by now

    return type(model).call not in (keras.Layer.call, keras.Model.call)


def build_in_advance(trainer: ModuleType, model: Any, batch: Any) -> None:
    """Make the variables of a custom ``train_step``, if several replicas of this worker run it."""
    strategy = model.distribute_strategy
    if len(strategy.extended.worker_devices) == 1 or not is_own(trainer, model, "train_step"):
        return
    from keras.src import backend

    def symbolic(value: Any) -> Any:
        return None if value is None else backend.KerasTensor(value.shape, backend.standardize_dtype(value.dtype))

    def step(data: Any) -> Any:
        with tf.distribute.ReplicaContext(strategy, 0):  # so that variables have one value to differentiate by
            return model.train_step(data)

    data = trainer.tree.map_structure(symbolic, batch)
    # The first trace builds layers, which allows gradients, which allow the optimizers' variables.
    for _ in range(3):
        try:
            with strategy.scope(), only_building():
                backend.compute_output_spec(step, data)
        except Exception as error:
            _log.debug("tracing the step failed: %s", error)
        else:
            return


def refuse_custom_step(trainer: ModuleType, model: Any, name: str) -> None:
    """Refuse to compile a model with a custom step that does not call Keras's.

    Raises
    ------
    SpecError
        With the name of the step.
    """
    if not is_compiled(model) or not is_own(trainer, model, name):
        return
    code = getattr(inspect.getattr_static(type(model), name), "__code__", None)
    if code is None or name not in code.co_names:  # it does not call super().train_step(data) either
        raise SpecError(
            f"jit_compile=True: {type(model).__name__} has a custom {name}, which exchanges gradients or metrics with "
            "the other workers, and XLA can't compile that; put @tf.function(jit_compile=True) on the functions of its "
            f'local part, and compile the model with jit_compile="auto" or False'
        )
