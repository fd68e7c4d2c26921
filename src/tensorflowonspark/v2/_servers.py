"""A worker that serves a ``ParameterServerStrategy``: its program never returns, and nobody is to wait for it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import wrapt

__all__ = ["tell_of_servers"]

_SERVER = "tensorflow.python.training.server_lib"


def tell_of_servers(serving: Callable[[], None]) -> None:
    """Have a function called when the program joins a ``tf.distribute.Server``, which ends with its process only."""
    wrapt.register_post_import_hook(partial(_wrap, serving), _SERVER)


def _wrap(serving: Callable[[], None], module: Any) -> None:
    def join(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        serving()
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "Server.join", join)
