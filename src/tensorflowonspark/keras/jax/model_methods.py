"""The methods of Keras's models on several workers with JAX.

- ``fit`` compares the models of all workers, since workers that begin with different weights would stay different in
  silence; callbacks that write files run on the chief.
- A step on one batch (``train_on_batch``) takes the rows that all workers give.
- ``predict`` waits for no other worker: each predicts all rows that it is given.
"""

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.exchanging_callbacks import callbacks_in, exchanges_weights, replaced
from tensorflowonspark.keras.hooks import is_own, wrap
from tensorflowonspark.keras.jax.agreement import agreeing, announce, checksums, meet_others, state_of
from tensorflowonspark.keras.jax.building import build_without_data
from tensorflowonspark.keras.jax.data_adapters import weighted
from tensorflowonspark.keras.jax.equal_batches import batch_of_all, reads_data_for
from tensorflowonspark.keras.jax.jax_processes import ALONE, JaxCluster, current, trains_together
from tensorflowonspark.keras.jax.short import own_step, take_real_rows
from tensorflowonspark.keras.jax.value_placement import is_sharded, on_this_process, whole_values
from tensorflowonspark.keras.private_names import refuse_replicas
from tensorflowonspark.keras.workers import combine, compared

_WRITING = ("CSVLogger", "ModelCheckpoint", "TensorBoard")  # OrbaxCheckpoint writes one checkpoint with all workers
_PREDICT = "_tensorflowonspark_predict"  # an attribute of models
_STEPS = {"fit": "train_step", "evaluate": "test_step"}


def repair_models(keras: Any) -> None:
    """Have the methods of models work on several workers (called after the import of Keras)."""
    take_real_rows(keras)
    for name in _STEPS:
        wrap(keras, f"Model.{name}", _together(keras, name))
    for name in ("train_on_batch", "test_on_batch"):
        wrap(keras, f"Model.{name}", _on_batch(name))
    for name in ("predict", "predict_on_batch"):
        wrap(keras, f"Model.{name}", _alone)
    wrap(keras, "Model.__call__", _call)
    meet_others(keras)


def _together(keras: Any, name: str) -> Callable[..., Any]:
    def method(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Keras warns of its own default for every tf.data.Dataset.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        bound = dict(inspect.signature(wrapped).bind(*args, **kwargs).arguments)
        build_without_data(model, bound.get("x"))
        cluster = current()
        if cluster is None or not trains_together():
            return wrapped(*args, **kwargs)
        refuse_replicas()
        extra = bound.pop("kwargs", {})
        if name == "fit":
            bound["callbacks"] = _callbacks_of_worker(keras, cluster, model, bound.get("callbacks"))
        step = _STEPS[name]
        is_custom = is_own(model, step)
        with (
            agreeing(model, name, bound.get("callbacks")),
            reads_data_for(name, needs_weights=not is_custom),
            own_step(model, step) if is_custom else nullcontext(),
        ):
            return wrapped(**bound, **extra)

    return method


def _callbacks_of_worker(keras: Any, cluster: JaxCluster, model: Any, callbacks: Any) -> Any:
    """Return the callbacks that this worker runs: those that write files are the chief's."""
    if exchanges_weights(callbacks):
        raise SpecError(
            "on JAX the workers are one program, which exchanges gradients in each step. A callback that exchanges "
            f'weights needs workers that train alone: set env={{"{ALONE}": "1"}} on the cluster'
        )
    module = keras.callbacks
    writing = tuple(getattr(module, name) for name in _WRITING)
    kept = [each for each in callbacks_in(callbacks) if not (cluster.index and isinstance(each, writing))]
    if cluster.index:
        kept = [_restoring(module, each) if isinstance(each, module.BackupAndRestore) else each for each in kept]
    restored = any(isinstance(each, module.BackupAndRestore) for each in callbacks_in(callbacks))
    comparing = module.LambdaCallback(on_train_begin=lambda _: _compare(model, restored=restored))
    # The weights that a backup restores are compared too.
    return replaced(model, callbacks, [*kept, comparing] if restored else [comparing, *kept])


def _restoring(module: Any, backup: Any) -> Any:
    """Return a callback that restores what ``BackupAndRestore`` of the chief has written, and writes nothing."""

    class Restoring(module.Callback):
        def set_model(self, model: Any) -> None:
            super().set_model(model)
            backup.set_model(model)

        def on_train_begin(self, logs: Any = None) -> None:
            backup.on_train_begin(logs)

    return Restoring()


def _compare(model: Any, *, restored: bool) -> None:
    """Refuse to train models that differ from worker to worker.

    The `SpecError` has the workers whose models differ, and the first variable that does.
    """
    found = combine("model.fit (the training begins)", checksums(state_of(model)), compared)
    if isinstance(found, tuple):
        worker, path = found
        if restored:
            raise SpecError(
                f"the models of worker 0 and worker {worker} differ (in {path!r}) after BackupAndRestore: give it a "
                "directory that all workers see, or use ctx.checkpoint(directory).callback()"
            )
        raise SpecError(
            f"the models of worker 0 and worker {worker} differ before the first step (in {path!r}): all workers must "
            "build the same model, with the same seed. Call keras.utils.set_random_seed with the same number on all "
            "workers, or not at all"
        )


def _on_batch(name: str) -> Callable[..., Any]:
    """Take a step with the rows that all workers give, each its own."""
    step = {"train_on_batch": "train_step", "test_on_batch": "test_step"}[name]

    def method(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = dict(inspect.signature(wrapped).bind(*args, **kwargs).arguments)
        if not trains_together():
            return wrapped(**bound)
        announce(name)
        class_weight = bound.pop("class_weight", None)
        batch = bound["x"], bound.get("y"), bound.get("sample_weight")
        if class_weight is not None and batch[2] is None:
            batch = weighted(batch, class_weight)
        bound.update(zip(("x", "y", "sample_weight"), batch_of_all(name, batch), strict=True))
        with own_step(model, step) if is_own(model, step) else nullcontext():
            return wrapped(**bound)

    return method


def _call(wrapped: Any, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a layer with this worker's own arrays on this worker alone; JAX can't combine them with weights of all."""
    import jax
    import keras

    if not trains_together() or not layer.built:
        return wrapped(*args, **kwargs)
    arrays = jax.tree.leaves((args, kwargs))
    traced = any(isinstance(each, (jax.core.Tracer, keras.KerasTensor)) for each in arrays)
    if traced or not all(getattr(each, "is_fully_addressable", True) for each in arrays):
        return wrapped(*args, **kwargs)
    if isinstance(layer, keras.Model):
        return _alone(wrapped, layer, *args, **kwargs)
    with _of_this_process(layer):  # also of a tf.data.Dataset's map, where TensorFlow computes it
        return wrapped(*args, **kwargs)


def _alone(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Predict on this worker alone."""
    if current() is None or not model.built:
        return wrapped(*args, **kwargs)
    model.jax_state_sync()  # a callback may call it within an epoch
    of_all, model.predict_function = model.predict_function, getattr(model, _PREDICT, None)
    try:
        with _of_this_process(model):
            try:
                return wrapped(*args, **kwargs)
            finally:
                model.jax_state_sync()  # also after an error: what it assigns is dropped here
    finally:
        object.__setattr__(model, _PREDICT, model.predict_function)
        model.predict_function = of_all


def _of_this_process(layer: Any) -> AbstractContextManager[None]:
    """Have the variables of a layer be of this process alone; if they are divided, all workers must call it."""
    if any(is_sharded(each.value) for each in layer.variables):
        announce("predict")
        combine("model.predict of a model whose variables are divided among the workers", None)
    return on_this_process(layer.variables, whole_values(layer.variables))
