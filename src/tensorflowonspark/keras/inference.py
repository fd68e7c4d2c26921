"""Calls of a Keras model as ``predict`` makes them."""

import inspect
from collections.abc import Callable
from typing import Any


def inference_call(model: Any) -> Callable[..., Any]:
    """Return the function of its inputs with which ``predict`` calls a Keras model (or layer)."""
    if not takes_training(model):
        return model.__call__  # type: ignore[no-any-return]
    return lambda *args, **kwargs: model(*args, training=False, **kwargs)


def takes_training(model: Any) -> bool:
    """Return whether Keras passes ``training`` to the ``call`` of a model (or layer): if that names it."""
    return "training" in inspect.signature(model.call).parameters
