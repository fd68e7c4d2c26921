"""The methods of Keras's models on several workers with JAX.

- ``fit`` compares the models of all workers once, since workers that begin with different weights would stay different
  in silence; callbacks that write files run on the chief.
- ``predict`` waits for no other worker: each predicts all rows that it is given.
- A step of a pass may be skipped, and its length may become known only in it, as on TensorFlow.
"""

import inspect
import warnings
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.exchange import callbacks_in, exchanges_weights, replaced
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.jax.batches import equal_batches_of_all, reads_data_for
from tensorflowonspark.keras.jax.cluster import ALONE, JaxCluster, current
from tensorflowonspark.keras.jax.padding import skip_padding
from tensorflowonspark.keras.jax.placement import is_sharded, local_array, on_this_process, whole_values
from tensorflowonspark.keras.pass_steps import wrap_passes
from tensorflowonspark.keras.private_names import refuse_replicas
from tensorflowonspark.keras.workers import combine, compared

_WRITING = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard")
_COMPARED, _PREDICT = "_tensorflowonspark_compared", "_tensorflowonspark_predict"  # attributes of models
_STEPS = {"fit": "train_step", "evaluate": "test_step"}


def repair_trainer(trainer: ModuleType) -> None:
    """Have the methods of models work on several workers (called after the import of Keras's trainer for JAX)."""
    skip_padding(trainer)
    equal_batches_of_all(trainer)
    wrap_passes(trainer, "JAXEpochIterator")
    _build_without_data(trainer)
    for name in ("fit", "evaluate"):
        wrap(trainer, f"JAXTrainer.{name}", _together(trainer, name))
    for name in ("predict", "predict_on_batch"):
        wrap(trainer, f"JAXTrainer.{name}", _alone)


def _together(trainer: Any, name: str) -> Callable[..., Any]:
    def method(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Keras warns of its own default for every tf.data.Dataset.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        cluster = current()
        if cluster is None or trainer.distribution_lib.distribution() is None:
            return wrapped(*args, **kwargs)
        refuse_replicas()
        bound = dict(inspect.signature(wrapped).bind(*args, **kwargs).arguments)
        extra = bound.pop("kwargs", {})
        if name == "fit":
            bound["callbacks"] = _callbacks_of_worker(trainer, cluster, model, bound.get("callbacks"))
        step = inspect.getattr_static(type(model), _STEPS[name])
        is_custom = step is not inspect.getattr_static(trainer.JAXTrainer, _STEPS[name])
        with reads_data_for(name, adds_weights=not is_custom):
            return wrapped(**bound, **extra)

    return method


def _callbacks_of_worker(trainer: Any, cluster: JaxCluster, model: Any, callbacks: Any) -> Any:
    """Return the callbacks that this worker runs: those that write files are the chief's."""
    if exchanges_weights(callbacks):
        raise SpecError(
            "on JAX the workers are one program, which exchanges gradients in each step. A callback that exchanges "
            f'weights needs workers that train alone: set env={{"{ALONE}": "1"}} on the cluster'
        )
    module = trainer.callbacks_module
    given = callbacks_in(callbacks)
    if any(isinstance(each, module.BackupAndRestore) for each in given):
        raise SpecError(
            "BackupAndRestore restores the chief alone, and on JAX the other workers would begin elsewhere: use "
            "ctx.checkpoint(directory).callback(), which resumes all of them"
        )
    writing = tuple(getattr(module, name) for name in _WRITING)
    kept = [each for each in given if not (cluster.index and isinstance(each, writing))]
    comparing = module.LambdaCallback(on_train_begin=lambda _: _compare(model))
    return replaced(model, callbacks, [comparing, *kept])


def _compare(model: Any) -> None:
    """Refuse to train models that differ from worker to worker, once for each model.

    Raises
    ------
    SpecError
        With the workers whose models differ, and the first variable that does.
    """
    if getattr(model, _COMPARED, False):
        return
    object.__setattr__(model, _COMPARED, True)
    own = [(each.path, False, (tuple(each.shape), _checksum(each.value))) for each in model.variables]
    found = combine("model.fit", own, compared)
    if isinstance(found, tuple):
        worker, path = found
        raise SpecError(
            f"the models of worker 0 and worker {worker} differ before the first step (in {path!r}): all workers must "
            "build the same model, with the same seed. Call keras.utils.set_random_seed with the same number on all "
            "workers, or not at all"
        )


def _checksum(value: Any) -> int:
    """Return a checksum of a value that all workers should have; 0 for one that is divided among them."""
    return 0 if is_sharded(value) else zlib.crc32(np.ascontiguousarray(local_array(value)).tobytes())


def _alone(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Predict on this worker alone."""
    if current() is None or not model.built:
        return wrapped(*args, **kwargs)
    model.jax_state_sync()  # a callback may call it within an epoch
    of_all, model.predict_function = model.predict_function, getattr(model, _PREDICT, None)
    try:
        with on_this_process(model.variables, whole_values(model.variables), copied=True):
            return wrapped(*args, **kwargs)
    finally:
        object.__setattr__(model, _PREDICT, model.predict_function)
        model.predict_function = of_all
        model._jax_state = None


def _build_without_data(trainer: Any) -> None:
    """Have models be built by the shapes of a feed's batches, and not by a batch, which a stream has only once."""

    def symbolic_build(wrapped: Any, model: Any, /, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None and data_batch is None:
            inputs = getattr(model, "inputs", None) or [None]
            rows = getattr(inputs[0], "shape", [None])[0] or 1  # of a model that takes batches of one size
            data_batch = _symbolic_batch(trainer, iterator.data_adapter, rows)
        return wrapped(iterator=iterator, data_batch=data_batch)

    wrap(trainer.base_trainer, "Trainer._symbolic_build", symbolic_build)


class _Symbol:
    """Shape and dtype of an array."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


def _symbolic_batch(trainer: Any, adapter: Any, rows: int) -> Any:
    """Return shapes and dtypes in the structure of a batch; None if only a batch itself can show them."""
    if hasattr(adapter, "symbolic_batch"):  # an adapter of this package
        return adapter.symbolic_batch(_Symbol, rows)
    dataset = getattr(adapter, "_dataset", None)
    spec = getattr(dataset, "element_spec", None)
    if spec is None:
        return None

    def symbol(each: Any) -> Any:
        if type(each).__name__ != "TensorSpec" or each.shape.rank is None:
            raise TypeError
        first, *inner = each.shape
        return _Symbol((rows if first is None else first, *inner), each.dtype.name)

    try:
        return trainer.tree.map_structure(lambda each: None if each is None else symbol(each), spec)
    except (TypeError, ValueError):  # of ragged or sparse values, or of elements without rows
        return None


def multiply_class_weights(adapter: Any) -> None:
    """Accept class weights beside sample weights in datasets (called after the import of ``tf_dataset_adapter``)."""
    original = adapter.make_class_weight_map_fn

    def make_class_weight_map_fn(class_weight: Any) -> Any:
        from tensorflowonspark.keras import fitting  # imports TensorFlow, which programs with such datasets have

        adapter.make_class_weight_map_fn = original
        fitting.multiply_class_weights(adapter)
        return adapter.make_class_weight_map_fn(class_weight)

    adapter.make_class_weight_map_fn = make_class_weight_map_fn
