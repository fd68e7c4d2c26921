"""The functions with which ``fit``, ``evaluate`` and ``predict`` of Keras 3 run a step, on several workers.

Keras documents them as those that a model may make by itself (``make_train_function`` and its kin). Its own fail on
several workers (keras-team/keras#20585): they reduce scalars over an axis that these don't have, and loop over steps in
a graph, where workers can't agree whether there is another batch. Here a step is two graphs: one begins with a batch of
the data and a message of all workers (`step_begin`), the other is this worker's step (`worker_step`), of which nothing
runs, and no message has its number, before all take it. The steps of one execution follow each other from Python.
``predict`` waits for no other worker.

Keras also builds a model from a batch that it takes from the data, which a stream does not have twice. Here it is built
from zeros with the dataset's element spec.
"""

import inspect
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.metric_sums import StepLogs
from tensorflowonspark.keras.shards import PlannedIterator
from tensorflowonspark.keras.step_begin import StepBegin
from tensorflowonspark.keras.steps import can_be_called, refuse_float8
from tensorflowonspark.keras.sublayers import all_sublayers
from tensorflowonspark.keras.worker_step import (
    WorkerStep,
    building,
    of_any_size,
    prepared,
    taking,
    within,
)
from tensorflowonspark.keras.workers import has_several_workers


def make_functions(keras: ModuleType) -> None:
    """Have Keras's models make these functions, and be built from zeros (called after the import of Keras)."""
    for name in ("train", "test"):
        wrap(keras, f"Model.make_{name}_function", _making(name))
    wrap(keras, "Model.make_predict_function", _make_predict_function)
    wrap(keras, "Model._maybe_symbolic_build", _build)


def _making(name: str) -> Callable[..., Any]:
    """Return a method that makes the function of training or test steps, on several workers."""

    def make(wrapped: Any, model: Any, /, force: bool = False) -> Any:
        if not has_several_workers(model.distribute_strategy):
            return wrapped(force)
        attribute = f"{name}_function"
        if force or getattr(model, attribute) is None:
            if name == "train":
                refuse_float8(model)
            setattr(model, attribute, _function(model, getattr(model, f"{name}_step"), name))
        return getattr(model, attribute)

    return make


def _function(model: Any, step: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Return a function that runs the steps of one execution with batches from an iterator."""
    strategy, eager = model.distribute_strategy, model.run_eagerly
    begin = StepBegin(strategy, name)
    in_graph = (lambda function: function) if eager else partial(tf.function, reduce_retracing=True)

    @in_graph
    @tf.autograph.experimental.do_not_convert
    def begun(data: Any, planned: Any, own_weights: Any) -> Any:
        absent = tf.experimental.Optional  # as Keras's datasets have it for each absent part of a batch
        data = tf.nest.map_structure(lambda each: None if isinstance(each, absent) else each, data)
        data, own, own_weights = prepared(data, planned, own_weights)
        return (data, begin.meet(own)), own_weights

    @in_graph
    @tf.autograph.experimental.do_not_convert
    def one_step(data: Any, rows: tf.Tensor) -> Any:
        known = WorkerStep(model, strategy, rows, begin.rows, begin.rank)
        with taking(known):
            logs = StepLogs.of_worker(known, step(of_any_size(data)))
        with within(known):
            return logs.of_all_workers(known)

    def take(iterator: Any) -> Any:
        try:
            try:
                batch = _with_next_batch(begun, strategy, iterator)
            except tf.errors.OutOfRangeError:  # of this worker
                rows = begin.meet_without_batch()
                batch = prepared(tf.nest.map_structure(partial(_zeros, 0), iterator.element_spec))[0], rows
        except tf.errors.InvalidArgumentError as error:
            begin.explain(error)
            model.stop_training = True
            warnings.filterwarnings("ignore", message="Your input ran out of data", category=UserWarning)
            raise StopIteration from None  # ends the epoch
        with _explaining_size(model, batch[0]):
            return one_step(*batch)

    def steps(iterator: Any) -> Any:
        outputs = None
        is_one = inspect.isgenerator(iterator)  # of `train_on_batch`, with one batch
        try:
            for _ in range(1 if is_one else model.steps_per_execution):
                outputs = take(iterator)
        except tf.errors.OutOfRangeError:  # an epoch's last execution may have fewer steps, but at least one
            if outputs is None:
                raise
        return outputs

    steps.begin = begin  # type: ignore[attr-defined]
    return steps


@contextmanager
def _explaining_size(model: Any, data: Any) -> Iterator[None]:
    """Raise a `SpecError` if a step fails that has other rows than the state of a layer, one for each row, is for."""
    try:
        yield
        return
    except Exception as error:
        failure = error
    stated = {each.shape[0] for each in tf.nest.flatten(getattr(model, "inputs", None) or []) if each.shape} - {None}
    rows = {int(each.shape[0]) for each in tf.nest.flatten(data) if isinstance(each, tf.Tensor) and each.shape.rank}
    if stated and rows - stated and any(getattr(each, "stateful", False) for each in all_sublayers(model)):
        raise SpecError(
            f"a step failed with a batch of {min(rows - stated)} rows on this worker, where the input of {model.name} "
            f"has batch_size={min(stated)}: a layer that keeps a state for each row needs as many in every batch. Give "
            "the workers rows that their batches divide, or leave batch_size out of the input"
        ) from failure
    raise failure


def _with_next_batch(begun: Callable[..., Any], strategy: Any, iterator: Any) -> Any:
    """Return what the begin of a step makes of the next batch of this worker.

    The batch is taken before the graph of the step runs, in which operations that need no data, as the optimizer's
    count of steps, would run before TensorFlow finds the end of the data. Each worker takes its own: where TensorFlow
    divides a dataset, it would ask all workers whether they have another batch, by a message of its own.
    """
    if inspect.isgenerator(iterator):
        return begun(next(iterator), None, None)[0]
    if isinstance(iterator, tf.distribute.DistributedIterator):
        iterator._enable_get_next_as_optional = False
    data = tf.nest.map_structure(partial(_local, strategy), iterator.get_next())
    planned = iterator.rows_of_batch() if isinstance(iterator, PlannedIterator) else None
    if planned is None:
        return begun(data, None, None)[0]
    batch, iterator.own_weights = begun(data, tf.constant(planned, tf.int32), tf.cast(iterator.own_weights, tf.bool))
    return batch


def _make_predict_function(wrapped: Any, model: Any, /, force: bool = False) -> Any:
    """Make the function of prediction steps, whose results are those of this worker."""
    if not has_several_workers(model.distribute_strategy):
        return wrapped(force)
    if model.predict_function is not None and not force:
        return model.predict_function
    step = model.predict_step
    if model.jit_compile and not model.run_eagerly:
        step = tf.function(step, reduce_retracing=True, jit_compile=True)

    @tf.autograph.experimental.do_not_convert
    def predict(batches: Any) -> Any:
        absent = tf.experimental.Optional
        data = tf.nest.map_structure(lambda each: None if isinstance(each, absent) else each, batches)
        outputs = [step(tf.nest.map_structure(partial(_local, model.distribute_strategy), each)) for each in data]
        return tf.nest.map_structure(lambda *values: _concatenated(values), *outputs)

    model.predict_function = predict if model.run_eagerly else tf.function(predict, reduce_retracing=True)
    return model.predict_function


def _local(strategy: Any, value: Any) -> Any:
    """Return the value of this worker, of one that Keras has distributed."""
    if isinstance(value, tf.distribute.DistributedValues):
        (value,) = strategy.experimental_local_results(value)
    return value


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
    if can_be_called(model):
        with building(), _ragged_kept(data_batch):
            wrapped(iterator=iterator, data_batch=data_batch)


def _made_under_strategy(model: Any) -> bool:
    """Return whether a model was made in the scope of a strategy; any other has TensorFlow's default one."""
    with model.distribute_strategy.scope():
        return bool(tf.distribute.has_strategy())


def _zeros(rows: int, spec: Any) -> Any:
    """Return zeros with a dataset's element spec: with its own number of rows, or else this one, or none at all."""
    if isinstance(spec, tf.OptionalSpec):
        return None
    if isinstance(spec, tf.TensorSpec):
        shape = [1 if size is None else size for size in spec.shape]
        if shape and (spec.shape[0] is None or not rows):
            shape[0] = rows
        return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        dense = _zeros(rows, tf.TensorSpec(spec.shape, spec.dtype))
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.sparse.from_dense(dense)
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank) if spec.ragged_rank else dense
    if issubclass(spec.value_type, tf.distribute.DistributedValues):  # of a dataset that the program has distributed
        of_worker = tf.nest.flatten(spec, expand_composites=True)
        if len(of_worker) == 1:
            return _zeros(rows, of_worker[0])
    raise TypeError(f"no zeros of {spec}")


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
