"""The callbacks given to ``fit``, and backends on which it needs one that exchanges weights between workers.

With torch each worker would train a model of its own, without an error. A callback that exchanges weights
itself (`LocalSGD`, `DiLoCo`, or another with the attribute ``exchanges_weights = True``) works there as on every
backend.
"""

import inspect
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.workers import roles


def callbacks_in(callbacks: Any) -> list[Any]:
    """Return the callbacks that were given to ``fit``: one, several, in a ``CallbackList``, or none."""
    given = getattr(callbacks, "callbacks", callbacks)
    return [each for each in (given if isinstance(given, (list, tuple)) else [given]) if each is not None]


def replaced(model: Any, callbacks: Any, selected: list[Any]) -> Any:
    """Return the argument for ``fit`` with which it calls only the selected ones of the callbacks it was given."""
    if not hasattr(callbacks, "callbacks"):
        return selected
    for callback in selected:
        callback.set_model(model)
    callbacks.callbacks[:] = selected
    return callbacks


def exchanges_weights(callbacks: Any) -> bool:
    """Return whether one of the callbacks given to ``fit`` exchanges weights with the other workers.

    Parameters
    ----------
    callbacks : keras.callbacks.Callback, CallbackList, sequence of callbacks, or None
        As ``fit`` takes them.
    """
    return any(getattr(each, "exchanges_weights", False) for each in callbacks_in(callbacks))


def refuse_torch(keras: ModuleType) -> None:
    """Refuse ``fit`` on several workers with torch (called after the import of Keras, if torch is its backend)."""

    def fit(wrapped: Any, _model: Any, /, *args: Any, **kwargs: Any) -> Any:
        callbacks = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("callbacks")
        workers = len(roles()[1])
        if workers > 1 and not exchanges_weights(callbacks):
            raise SpecError(
                f"model.fit of Keras 3 with torch exchanges no gradients between the {workers} workers, which would "
                'train separate models: set env={"KERAS_BACKEND": "jax"} or "tensorflow", take one worker, or pass a '
                "callback that exchanges weights (tfos.keras.LocalSGD or DiLoCo)"
            )
        return wrapped(*args, **kwargs)

    wrap(keras, "Model.fit", fit)
