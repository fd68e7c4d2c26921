"""Keras 3's ``fit`` and ``predict`` on several workers, and class weights beside sample weights.

Keras would have each worker predict a part of every batch, and gather the results of all workers after each one. That
waits for ever when one worker has fewer batches than another, or when the chief predicts alone.

Keras 3 refuses ``class_weight`` where a batch has weights of its own, as all batches of a feed have: those of rows that
fill up are -0.0 (see `padding`). Here both are multiplied, as tf_keras does it. A row that fills up stays one: the
product keeps its sign, whatever the weight of its class.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf
import wrapt

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras import wrap
from tensorflowonspark.keras.feed_tracking import DataPath, ledger
from tensorflowonspark.keras.steps import refuse_own_step

__all__ = [
    "multiply_class_weights",
    "multiply_class_weights_on_batch",
    "predict_alone",
    "predicts",
    "refuse_parameter_servers",
    "skip_steps",
    "wrap_trainer",
]

_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_to_skip = [0]  # steps of the next pass that Keras begins


def wrap_trainer(trainer: ModuleType) -> None:
    """Have ``fit`` of Keras's trainer agree with the other workers (called after the trainer's import)."""

    def fit(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Keras warns of its own default whenever the data is a tf.data.Dataset.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        if not trainer._collective_all_reduce_multi_worker(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        bound = _arguments(wrapped, args, kwargs)
        refuse_own_step(trainer, model, "train_step")
        if bound.get("validation_data") is not None or bound.get("validation_split"):
            refuse_own_step(trainer, model, "test_step")  # now, not after the first epoch
        from tensorflowonspark.keras.callbacks import agreeing  # needs all of Keras, which is there by now
        from tensorflowonspark.keras.row_count import RowCount

        ledger.way = DataPath.UNKNOWN
        added = [RowCount()] if bound.get("steps_per_epoch") is None else []  # else an epoch ends in the midst of data
        bound["callbacks"] = agreeing(model, bound.get("callbacks"), *added)
        return wrapped(**bound)

    wrapt.wrap_function_wrapper(trainer, "TensorFlowTrainer.fit", fit)
    wrap_passes(trainer)


def skip_steps(steps: int) -> None:
    """Have the next pass of Keras 3's ``fit`` begin with this step: its data set has the rest of the epoch."""
    _to_skip[0] = steps


def wrap_passes(trainer: ModuleType) -> None:
    """Teach Keras's trainer to begin a pass in the midst of an epoch (called after the trainer's import)."""

    def steps(wrapped: Any, _iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first, _to_skip[0] = _to_skip[0], 0
        # Keras's generator yields numbers and the data set's iterator: what it does not hand on takes no batch.
        return (each for each in wrapped(*args, **kwargs) if each[0] >= first)

    wrapt.wrap_function_wrapper(trainer, "TFEpochIterator._enumerate_iterator", steps)


def refuse_parameter_servers(trainer: ModuleType) -> None:
    """Refuse what Keras 3 can't do under a ``ParameterServerStrategy`` (called after its trainer's import)."""

    def refusing(name: str) -> Callable[..., Any]:
        def method(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if isinstance(model.distribute_strategy, trainer.tf.distribute.ParameterServerStrategy):
                raise SpecError(
                    f"model.{name} of Keras 3 does not work under ParameterServerStrategy: write the loop with "
                    "tf.distribute.coordinator.ClusterCoordinator, or use tf_keras, whose fit works there "
                    '(env={"TF_USE_LEGACY_KERAS": "1"})'
                )
            return wrapped(*args, **kwargs)

        return method

    for name in _METHODS:
        wrapt.wrap_function_wrapper(trainer, f"TensorFlowTrainer.{name}", refusing(name))


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)


_predicts = ContextVar("predicts", default=False)


def predicts() -> bool:
    """Return whether ``predict`` runs here: a dataset is not distributed for it."""
    return _predicts.get()


@contextmanager
def _predicting() -> Iterator[None]:
    token = _predicts.set(True)
    try:
        yield
    finally:
        _predicts.reset(token)


def predict_alone(trainer: ModuleType) -> None:
    """Have no worker wait for others in ``predict`` (called after the import of Keras's trainer)."""

    def predict(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not trainer._collective_all_reduce_multi_worker(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        with _predicting():
            return wrapped(*args, **kwargs)

    def reduce_per_replica(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def reduced(values: Any, strategy: Any, reduction: str) -> Any:
            if reduction != "concat" or not trainer._collective_all_reduce_multi_worker(strategy):
                return wrapped(values, strategy, reduction)
            return trainer.tree.map_structure(lambda value: of_worker(strategy, value), values)

        return reduced(*args, **kwargs)

    def of_worker(strategy: Any, value: Any) -> Any:
        replicas = strategy.experimental_local_results(value)
        return replicas[0] if len(replicas) == 1 else trainer.concat(replicas)

    wrapt.wrap_function_wrapper(trainer, "TensorFlowTrainer.predict", predict)
    wrapt.wrap_function_wrapper(trainer, "reduce_per_replica", reduce_per_replica)


def multiply_class_weights(adapter: ModuleType) -> None:
    """Have data sets take both kinds of weights (called after the import of Keras's ``tf_dataset_adapter``)."""

    def make(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        by_class = wrapped(*args, **kwargs)

        @tf.autograph.experimental.do_not_convert
        def weighted(*data: Any) -> Any:
            x, y, weights = adapter.data_adapter_utils.unpack_x_y_sample_weight(data)
            if weights is None or tf.nest.is_nested(y):  # Keras refuses several outputs by name
                return by_class(*data)
            x, y, of_classes = by_class(x, y)
            return x, y, _product(weights, of_classes)

        return weighted

    wrap(adapter, "make_class_weight_map_fn", make)


def multiply_class_weights_on_batch(trainer: ModuleType) -> None:
    """Have ``train_on_batch`` take both kinds of weights (called after the import of Keras's trainer)."""

    def train_on_batch(wrapped: Any, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def arguments(
            x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
        ) -> Any:
            if sample_weight is not None and class_weight is not None:
                of_classes = trainer.data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
                sample_weight, class_weight = _product(tf.convert_to_tensor(sample_weight), of_classes), None
            return wrapped(x, y, sample_weight, class_weight, return_dict)

        return arguments(*args, **kwargs)

    wrap(trainer, "TensorFlowTrainer.train_on_batch", train_on_batch)


def _product(weights: tf.Tensor, of_classes: Any) -> tf.Tensor:
    """Return the product of weights of rows (or of time steps) with those of their classes."""
    if not weights.dtype.is_floating:
        weights = tf.cast(weights, tf.float32)
    of_classes = tf.cast(of_classes, weights.dtype)
    rank = max(weights.shape.rank, of_classes.shape.rank)
    aligned = [
        tf.reshape(each, tf.concat([tf.shape(each), [1] * (rank - each.shape.rank)], 0))
        for each in (weights, of_classes)
    ]
    # The sign of a zero is kept, even beside a class whose weight is negative.
    zero = tf.equal(aligned[0], 0)
    return tf.where(zero, aligned[0] * tf.abs(aligned[1]), aligned[0] * aligned[1])
