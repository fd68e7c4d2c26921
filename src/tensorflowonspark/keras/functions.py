"""The functions with which ``fit``, ``evaluate`` and ``predict`` of Keras 3 run a step, on several replicas.

Keras documents them as those that a model may make by itself (``make_train_function`` and its kin). Its own fail on
several workers (keras-team/keras#20585): they reduce scalars over an axis that these don't have, and loop over steps in
a graph, where workers can't agree whether there is another batch. Here each step is one call of a graph, which takes a
batch from the data and runs a replica's step; the steps of one execution follow each other from Python. Results are
reduced over the workers if each needs the whole, and not for ``predict``, where no worker waits for another.

Keras also builds a model from a batch that it takes from the data, which a stream does not have twice. Here it is built
from zeros with the dataset's element spec.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.global_batch import of_replicas, on_replica
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.session import session
from tensorflowonspark.keras.step_logs import StepLogs
from tensorflowonspark.keras.steps import build_in_advance, can_be_called, refuse_custom_step, refuse_float8
from tensorflowonspark.keras.workers import has_several_workers


def make_functions(keras: ModuleType) -> None:
    """Have Keras's models make these functions, and be built from zeros (called after the import of Keras)."""
    for name in ("train", "test"):
        wrap(keras, f"Model.make_{name}_function", _making(name))
    wrap(keras, "Model.make_predict_function", _make_predict_function)
    wrap(keras, "Model._maybe_symbolic_build", _build)


def _making(name: str) -> Callable[..., Any]:
    """Return a method that makes the function of training or test steps, on several replicas."""

    def make(wrapped: Any, model: Any, /, force: bool = False) -> Any:
        if not of_replicas(model.distribute_strategy):
            return wrapped(force)
        attribute = f"{name}_function"
        if force or getattr(model, attribute) is None:
            refuse_custom_step(model, f"{name}_step")
            if name == "train":
                refuse_float8(model)
            setattr(model, attribute, _function(model, getattr(model, f"{name}_step")))
        return getattr(model, attribute)

    return make


def _function(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that runs the steps of one execution with batches from an iterator."""
    strategy = model.distribute_strategy
    step = _without_optionals(on_replica(model, step))

    @tf.autograph.experimental.do_not_convert
    def one_step(data: Any) -> Any:
        return _reduced(strategy, strategy.run(step, args=(data,)))

    # A graph of its own: in that of the next function, operations that need no data, as the optimizer's count of steps,
    # would run before TensorFlow finds the end of the data.
    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True)

    @tf.autograph.experimental.do_not_convert
    def next_step(iterator: Any) -> Any:
        return one_step(iterator.get_next())

    if not model.run_eagerly:
        next_step = tf.function(next_step, reduce_retracing=True)

    def steps(iterator: Any) -> Any:
        if inspect.isgenerator(iterator):  # of `train_on_batch`, with one batch
            return one_step(next(iterator))
        outputs = None
        try:
            for _ in range(model.steps_per_execution):
                outputs = next_step(iterator)
        except tf.errors.OutOfRangeError:  # an epoch's last execution may have fewer steps, but at least one
            if outputs is None:
                raise
        return outputs

    return steps


def _without_optionals(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step that gets None for each absent part of a batch, which Keras's datasets have as an optional."""

    def run(data: Any) -> Any:
        absent = tf.experimental.Optional
        return step(tf.nest.map_structure(lambda each: None if isinstance(each, absent) else each, data))

    return run


def _reduced(strategy: Any, outputs: Any) -> Any:
    """Return the results of a step: those of all replicas, or their mean."""
    if isinstance(outputs, StepLogs):
        return {name: strategy.experimental_local_results(value)[0] for name, value in outputs.items()}
    return tf.nest.map_structure(partial(_mean, strategy), outputs)


def _mean(strategy: Any, value: Any) -> Any:
    if not isinstance(value, tf.distribute.DistributedValues):
        # The reduction needs the device of a value; a metric that returns a variable has none.
        with tf.device(strategy.extended.worker_devices[0]):
            value = tf.identity(tf.convert_to_tensor(value))
    return strategy.reduce("MEAN", value, axis=None)


def _make_predict_function(wrapped: Any, model: Any, /, force: bool = False) -> Any:
    """Make the function of prediction steps, whose results are those of this worker's replicas."""
    strategy = model.distribute_strategy
    if not has_several_workers(strategy):
        return wrapped(force)
    if model.predict_function is not None and not force:
        return model.predict_function
    step = _without_optionals(model.predict_step)
    if model.jit_compile and not model.run_eagerly:
        step = tf.function(step, reduce_retracing=True, jit_compile=True)

    @tf.autograph.experimental.do_not_convert
    def predict(batches: Any) -> Any:
        outputs = [strategy.run(step, args=(data,)) for data in batches]
        local = [tf.nest.map_structure(partial(_local, strategy), each) for each in outputs]
        return tf.nest.map_structure(lambda *values: _concatenated(values), *local)

    model.predict_function = predict if model.run_eagerly else tf.function(predict, reduce_retracing=True)
    return model.predict_function


def _local(strategy: Any, value: Any) -> Any:
    return _concatenated(strategy.experimental_local_results(value))


def _concatenated(values: Any) -> Any:
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(values))
    return tf.concat(values, 0) if values[0].shape.rank != 0 else tf.stack(values)


def _build(wrapped: Any, model: Any, /, iterator: Any = None, data_batch: Any = None) -> None:
    """Build a model, in place of Keras's ``_maybe_symbolic_build``."""
    if not _made_under_strategy(model):
        wrapped(iterator=iterator, data_batch=data_batch)
        return
    if iterator is not None:
        try:
            spec = iterator.data_adapter.get_tf_dataset().element_spec
            data_batch = tf.nest.map_structure(partial(_zeros, _batch_rows(model)), spec)
            iterator = None
        except TypeError:  # Keras may still build it
            pass
    with setting(session.building, True):
        if can_be_called(model):
            with _ragged_kept(data_batch):
                wrapped(iterator=iterator, data_batch=data_batch)
        if data_batch is not None:
            build_in_advance(model, data_batch)


def _made_under_strategy(model: Any) -> bool:
    """Return whether a model was made in the scope of a strategy; any other has TensorFlow's default one."""
    with model.distribute_strategy.scope():
        return bool(tf.distribute.has_strategy())


def _zeros(rows: int, spec: Any) -> Any:
    """Return zeros with a dataset's element spec and a number of rows."""
    if isinstance(spec, tf.OptionalSpec):
        return None
    if isinstance(spec, tf.TensorSpec):
        shape = [1 if size is None else size for size in spec.shape]
        if shape and spec.shape[0] is None:
            shape[0] = rows
        return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        dense = _zeros(rows, tf.TensorSpec(spec.shape, spec.dtype))
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.sparse.from_dense(dense)
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank) if spec.ragged_rank else dense
    values = getattr(spec, "_value_specs", None)  # one for each replica, in the spec of a distributed dataset
    if values is None:
        raise TypeError(f"no zeros of {spec}")
    return _zeros(rows, values[0])


def _batch_rows(model: Any) -> int:
    """Return the fixed batch size of a model, as one with a stateful layer has, or 1 if it takes any."""
    inputs = getattr(model, "inputs", None) or [None]
    return getattr(inputs[0], "shape", [None])[0] or 1


@contextmanager
def _ragged_kept(batch: Any) -> Iterator[None]:
    """Have Keras build with the ragged values of a batch, of which it would make dense symbols."""
    pending = deque(each for each in tf.nest.flatten(batch) if each is not None)
    if not any(isinstance(each, tf.RaggedTensor) for each in pending):
        yield
        return
    from keras.src import backend

    plain = backend.KerasTensor

    def symbol(shape: Any, dtype: Any) -> Any:
        value = pending.popleft()
        if not pending:
            backend.KerasTensor = plain
        return value if isinstance(value, tf.RaggedTensor) else plain(shape, dtype)

    backend.KerasTensor = symbol
    try:
        yield
    finally:
        backend.KerasTensor = plain
