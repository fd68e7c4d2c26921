"""Keras 3's ``fit`` on several workers: runs with the callbacks that let them agree, refuses what can't work."""

import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from tensorflowonspark.errors import SpecError

__all__ = ["wrap_trainer"]


def wrap_trainer(trainer: ModuleType) -> None:
    """Have ``fit`` of Keras's trainer agree with the other workers (called after the trainer's import)."""

    def fit(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Keras warns of its own default whenever the data is a tf.data.Dataset.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        if not trainer._collective_all_reduce_multi_worker(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        if model.jit_compile:
            raise SpecError(
                "jit_compile=True: XLA can't compile the exchange of gradients between workers, and TensorFlow would "
                'abort; compile the model with jit_compile="auto" or False'
            )
        bound = _arguments(wrapped, args, kwargs)
        from tensorflowonspark.keras.callbacks import agreeing  # needs all of Keras, which is there by now

        bound["callbacks"] = agreeing(model, bound.get("callbacks"))
        return wrapped(**bound)

    wrapt.wrap_function_wrapper(trainer, "TensorFlowTrainer.fit", fit)


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
