"""Keras 3's ``fit`` on several workers: runs with the callbacks that let them agree, refuses what can't work."""

import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.ledger import Way, ledger
from tensorflowonspark.keras.own_steps import refuse_own_step

__all__ = ["refuse_parameter_servers", "skip_steps", "wrap_trainer"]

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
        from tensorflowonspark.keras.counting import RowCount

        ledger.way = Way.UNKNOWN
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
                    '(environment={"TF_USE_LEGACY_KERAS": "1"})'
                )
            return wrapped(*args, **kwargs)

        return method

    for name in _METHODS:
        wrapt.wrap_function_wrapper(trainer, f"TensorFlowTrainer.{name}", refusing(name))


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
