"""The callbacks given to ``fit``, and backends on which it needs one that exchanges weights between workers.

With torch each worker would train a model of its own, without an error, up to Keras 3.15. Later ones can exchange
gradients there, which is not tested here. A callback that exchanges weights itself (`LocalSGD`, `DiLoCo`, or another
with the attribute ``exchanges_weights = True``) works there as on every backend.
"""

import inspect
import os
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.private_names import numbers_of
from tensorflowonspark.keras.workers import roles

TORCH = "TFOS_KERAS_TORCH"  # an environment variable: several workers may train with torch, which is not tested
_DISTRIBUTES_TORCH = (3, 16)  # the first version of Keras that has DataParallel for torch


def callbacks_in(callbacks: Any) -> list[Any]:
    """Return the callbacks that were given to ``fit``: one, several, nested, in a ``CallbackList``, or none."""
    from keras import tree  # its import is complete by now

    return [each for each in tree.flatten(getattr(callbacks, "callbacks", callbacks)) if each is not None]


def replaced(model: Any, callbacks: Any, selected: list[Any]) -> Any:
    """Return the argument for ``fit`` with which it calls only the selected ones of the callbacks it was given."""
    if not hasattr(callbacks, "callbacks"):
        return selected
    for callback in selected:
        callback.set_model(model)
    callbacks.callbacks[:] = selected
    return callbacks


def exchanges_weights(callbacks: Any) -> bool:
    """Return whether one of the callbacks, as ``fit`` takes them, exchanges weights with the other workers."""
    return any(getattr(each, "exchanges_weights", False) for each in callbacks_in(callbacks))


def refuse_torch(keras: ModuleType) -> None:
    """Refuse ``fit`` on several workers with torch (called after the import of Keras, if torch is its backend)."""

    def fit(wrapped: Any, _model: Any, /, *args: Any, **kwargs: Any) -> Any:
        callbacks = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("callbacks")
        workers = len(roles()[1])
        if workers > 1 and not exchanges_weights(callbacks) and (problem := _torch_problem(keras, workers)):
            raise SpecError(
                f'{problem}. Or set env={{"KERAS_BACKEND": "jax"}} or "tensorflow", take one worker, or pass a '
                "callback that exchanges weights (tfos.keras.LocalSGD or DiLoCo)"
            )
        return wrapped(*args, **kwargs)

    wrap(keras, "Model.fit", fit)


def _torch_problem(keras: Any, workers: int) -> str:
    """Return why ``fit`` with torch is refused on several workers; empty if the program has chosen to try it."""
    version = keras.__version__
    if numbers_of(version) < _DISTRIBUTES_TORCH:
        return (
            f"model.fit of Keras {version} with torch exchanges no gradients between the {workers} workers, which "
            "would train separate models"
        )
    if os.environ.get(TORCH, "0") in ("", "0"):
        return (
            f"model.fit of Keras {version} with torch is not tested on several workers, and there are {workers}: to "
            f'try it, set env={{"KERAS_BACKEND": "torch", "{TORCH}": "1"}}, and connect the workers: '
            "keras.distribution.initialize on each before its model is made"
        )
    from torch import distributed

    connected = distributed.get_world_size() if distributed.is_initialized() else 1
    if connected == workers:
        return ""
    return (
        f"torch.distributed connects {connected} of {workers} workers, which would train separate models: call "
        "keras.distribution.initialize on each before its model is made"
    )
