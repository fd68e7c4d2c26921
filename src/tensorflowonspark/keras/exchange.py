"""Backends of Keras 3 on which ``fit`` exchanges nothing between workers, and callbacks that do it in its place.

With torch each worker would train a model of its own, and nothing would say so. A callback that exchanges weights
itself (`LocalSGD`, `DiLoCo`, or another with the attribute ``exchanges_weights = True``) works there as on every
backend.
"""

import inspect
import json
import os
from types import ModuleType
from typing import Any

import wrapt

from tensorflowonspark.errors import SpecError

__all__ = ["exchanges_weights", "refuse_torch"]


def exchanges_weights(callbacks: Any) -> bool:
    """Return whether one of the callbacks given to ``fit`` exchanges weights with the other workers.

    Parameters
    ----------
    callbacks : keras.callbacks.Callback, CallbackList, sequence of callbacks, or None
        As ``fit`` takes them.
    """
    given = getattr(callbacks, "callbacks", callbacks)
    return any(
        getattr(each, "exchanges_weights", False) for each in (given if isinstance(given, (list, tuple)) else [given])
    )


def refuse_torch(trainer: ModuleType) -> None:
    """Refuse ``fit`` on several workers with torch (called after the import of Keras's trainer for torch)."""

    def fit(wrapped: Any, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        callbacks = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("callbacks")
        workers = _workers()
        if workers > 1 and not exchanges_weights(callbacks):
            raise SpecError(
                f"model.fit of Keras 3 with torch exchanges no gradients between the {workers} workers, which would "
                'train separate models: set env={"KERAS_BACKEND": "jax"} or "tensorflow", take one worker, or pass a '
                "callback that exchanges weights (tfos.keras.LocalSGD or DiLoCo)"
            )
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(trainer, "TorchTrainer.fit", fit)


def _workers() -> int:
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return sum(len(cluster.get(job, [])) for job in ("chief", "worker"))
