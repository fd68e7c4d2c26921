"""Deprecation warnings for names of 2.x, and errors for those without an equivalent."""

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

_warned: set[str] = set()


def warn_deprecated(name: str, replacement: str) -> None:
    """Give one `DeprecationWarning` for a name of 2.x, at the line of the program that uses it.

    Call it from the function of that name itself, which the stack level assumes.

    Parameters
    ----------
    name : str
        The name of 2.x; each warns once per process.
    replacement : str
        The code that replaces it.
    """
    if name not in _warned:
        _warned.add(name)
        message = f"{name} works as in TensorFlowOnSpark 2.x; the new way is {replacement}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


def removed(name: str, replacement: str) -> Callable[..., NoReturn]:
    """Return a function that raises `NotImplementedError` and names its replacement.

    Examples
    --------
    >>> removed("TFNode.next_batch", "ctx.get_data_feed().next_batch")()
    Traceback (most recent call last):
    NotImplementedError: TFNode.next_batch is gone: use ctx.get_data_feed().next_batch instead
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is gone: use {replacement} instead")

    return refuse


def removed_names(module: str, replacement: str) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module whose other names were internals of 2.x."""

    def refuse(name: str) -> NoReturn:
        hint = "" if name.startswith("__") else f", an internal of TensorFlowOnSpark 2.x: use {replacement} instead"
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return refuse
