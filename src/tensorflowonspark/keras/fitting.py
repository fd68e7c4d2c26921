"""Keras 3's ``fit`` and ``predict`` on several workers, and class weights beside sample weights.

In Keras, each worker predicts a part of every batch, and gathers the results of all workers after each. That waits for
ever if one worker has fewer batches than another, or if the chief predicts alone.

Keras 3 refuses ``class_weight`` for batches with sample weights, as all batches of a feed have: those of padding rows
are -0.0 (see `metrics`). Here both are multiplied, as in tf_keras. A padding row remains one: the product keeps its
sign, whatever the weight of its class.
"""

import inspect
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import DataPath, row_counts
from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.private_names import refuse_replicas
from tensorflowonspark.keras.saving import outside_scope
from tensorflowonspark.keras.shards import fitting, is_fitting, predicting
from tensorflowonspark.keras.step_begin import StepBegin
from tensorflowonspark.keras.worker_step import current_step
from tensorflowonspark.keras.workers import combine, has_several_workers

_log = logging.getLogger(__name__)
_ON_READ = tf.VariableSynchronization.ON_READ
_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def wrap_fit(keras: ModuleType) -> None:
    """Have ``fit`` keep the models of all workers equal (called after the import of Keras)."""

    def fit(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Keras warns of its own default for every tf.data.Dataset.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        bound = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        _take_whole_steps(bound)
        strategy = model.distribute_strategy
        if not has_several_workers(strategy):
            with fitting():
                return wrapped(**bound)
        # These need all of Keras, whose import is complete now.
        from tensorflowonspark.keras.callbacks import callbacks_of_worker
        from tensorflowonspark.keras.row_count import RowCount

        row_counts.data_path = DataPath.UNKNOWN
        added = [RowCount()] if bound.get("steps_per_epoch") is None else []  # else an epoch ends within its data
        bound["callbacks"] = callbacks_of_worker(model, bound.get("callbacks"), *added)
        with outside_scope(), fitting(), _making_variables(strategy):
            return wrapped(**bound)

    def evaluate(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        strategy = model.distribute_strategy
        if not has_several_workers(strategy):
            with fitting():
                return wrapped(*args, **kwargs)
        if is_fitting():  # in a callback, or to validate
            StepBegin(strategy, "test").meet_alone()
            return wrapped(*args, **kwargs)
        combine("model.evaluate", None)  # names a worker that does something else
        with outside_scope(), fitting(), _making_variables(strategy):
            return wrapped(*args, **kwargs)

    def on_batch(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not has_several_workers(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        with outside_scope(), _making_variables(model.distribute_strategy):
            return wrapped(*args, **kwargs)

    wrap(keras, "Model.fit", fit)
    wrap(keras, "Model.evaluate", evaluate)
    for name in ("train_on_batch", "test_on_batch"):
        wrap(keras, f"Model.{name}", on_batch)


@contextmanager
def _making_variables(strategy: Any) -> Iterator[None]:
    """Have variables that a step makes, as those of a model that its first step builds, be equal on all workers.

    A step runs outside of the strategy's scope, in which the chief's initial value is sent to all.
    """
    in_scope = ContextVar("in the strategy's scope", default=False)

    def make(next_creator: Any, **settings: Any) -> Any:
        # Others, as those of a chief that saves in a callback, are of this worker alone.
        is_made = in_scope.get() or tf.distribute.has_strategy()  # by the strategy's own creator
        if is_made or current_step() is None or settings.get("synchronization") == _ON_READ:
            return next_creator(**settings)
        with setting(in_scope, True), strategy.scope():
            return tf.Variable(**{name: value for name, value in settings.items() if value is not None})

    with tf.variable_creator_scope(make):
        yield


def _take_whole_steps(bound: dict[str, Any]) -> None:
    """Round numbers of steps down: Keras 2 took the result of a division, and Keras 3 does not."""
    for name in ("steps_per_epoch", "validation_steps"):
        steps = bound.get(name)
        if isinstance(steps, float) and math.isfinite(steps):
            _log.warning("fit(%s=%s): Keras 3 takes whole steps, here %d", name, steps, int(steps))
            bound[name] = int(steps)


def refuse_without_repairs(keras: ModuleType) -> None:
    """Refuse to train on several replicas with a Keras that can't be repaired (called after its import)."""

    def method(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if model.distribute_strategy.num_replicas_in_sync > 1:
            refuse_replicas()
        return wrapped(*args, **kwargs)

    for name in ("fit", "evaluate", "train_on_batch"):
        wrap(keras, f"Model.{name}", method)


def refuse_parameter_servers(keras: ModuleType) -> None:
    """Refuse methods that fail under a ``ParameterServerStrategy`` (called after the import of Keras)."""

    def refusing(name: str) -> Callable[..., Any]:
        def method(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
                raise SpecError(
                    f"model.{name} of Keras 3 does not work under ParameterServerStrategy: write the loop with "
                    "tf.distribute.coordinator.ClusterCoordinator, or use tf_keras, whose fit works there "
                    '(env={"TF_USE_LEGACY_KERAS": "1"})'
                )
            return wrapped(*args, **kwargs)

        return method

    for name in _METHODS:
        wrap(keras, f"Model.{name}", refusing(name))


def predict_alone(keras: ModuleType) -> None:
    """Have no worker wait for others in ``predict`` (called after the import of Keras)."""

    def predict(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not has_several_workers(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        # A model with divided tables needs the other workers all the same.
        divided = sys.modules.get("tensorflowonspark.keras.embedding.prediction")
        with predicting(), divided.predicting_together(model) if divided else nullcontext():
            return wrapped(*args, **kwargs)

    wrap(keras, "Model.predict", predict)


def multiply_class_weights(adapter: ModuleType) -> None:
    """Accept both kinds of weights in datasets (called after the import of Keras's ``tf_dataset_adapter``)."""

    def make(wrapped: Any, _instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        by_class = wrapped(*args, **kwargs)

        @tf.autograph.experimental.do_not_convert
        def weighted(*data: Any) -> Any:
            from keras.utils import unpack_x_y_sample_weight  # its import is complete by now

            x, y, weights = unpack_x_y_sample_weight(data)
            if weights is None or tf.nest.is_nested(y):  # Keras refuses several outputs by name
                return by_class(*data)
            x, y, of_classes = by_class(x, y)
            return x, y, _product(weights, of_classes)

        return weighted

    wrap(adapter, "make_class_weight_map_fn", make)


def multiply_class_weights_on_batch(keras: ModuleType) -> None:
    """Accept both kinds of weights in ``train_on_batch`` (called after the import of Keras)."""

    def train_on_batch(
        wrapped: Any, _: Any, /, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, *rest: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        if sample_weight is not None and class_weight is not None:
            from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn

            weighted = make_class_weight_map_fn(class_weight)  # as above
            *_, sample_weight = weighted(x, tf.convert_to_tensor(y), tf.convert_to_tensor(sample_weight))
            class_weight = None
        return wrapped(x, y, sample_weight, class_weight, *rest, **options)

    wrap(keras, "Model.train_on_batch", train_on_batch)


def convert_variables(keras: ModuleType) -> None:
    """Have ``int`` and ``float`` take a variable that a strategy mirrors (called after the import of Keras).

    Callbacks do so with the learning rate, and with the number of steps.
    """

    def converting(kind: type) -> Callable[..., Any]:
        def convert(wrapped: Any, variable: Any, /) -> Any:
            value = variable.value
            if not isinstance(value, tf.distribute.DistributedValues) or value.shape.rank != 0:
                return wrapped()
            # Reading one that each worker has for itself waits for all workers.
            on_read = value.synchronization == tf.VariableSynchronization.ON_READ
            return wrapped() if on_read else kind(value.numpy())

        return convert

    for kind in (int, float):
        wrap(keras, f"Variable.__{kind.__name__}__", converting(kind))


def _product(weights: tf.Tensor, of_classes: Any) -> tf.Tensor:
    """Return the product of the weights of rows (or of time steps) and of their classes."""
    if not weights.dtype.is_floating:
        weights = tf.cast(weights, tf.float32)
    of_classes = tf.cast(of_classes, weights.dtype)
    rank = max(weights.shape.rank, of_classes.shape.rank)
    aligned = [
        tf.reshape(each, tf.concat([tf.shape(each), [1] * (rank - each.shape.rank)], 0))
        for each in (weights, of_classes)
    ]
    # A zero keeps its sign, even if the weight of its class is negative.
    zero = tf.equal(aligned[0], 0)
    return tf.where(zero, aligned[0] * tf.abs(aligned[1]), aligned[0] * aligned[1])
