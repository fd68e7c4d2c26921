"""What is said to users of old names: the new way, once; or, of names that are gone, what stands in their place."""

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["gone", "gone_names", "show_new_way"]

_shown: set[str] = set()


def show_new_way(name: str, new: str) -> None:
    """Give one `DeprecationWarning` for a name of 2.x, at the line of the program that uses it.

    Called by the function of that name itself.
    """
    if name not in _shown:
        _shown.add(name)
        message = f"{name} works as in TensorFlowOnSpark 2.x; the new way is {new} (docs/migrating.md)"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


def gone(name: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that raises: there is nothing to translate its name into.

    Examples
    --------
    >>> gone("TFNode.next_batch", "ctx.get_data_feed().next_batch")()
    Traceback (most recent call last):
    NotImplementedError: TFNode.next_batch is gone: use ctx.get_data_feed().next_batch instead
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is gone: use {instead} instead")

    return refuse


def gone_names(module: str, instead: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, for one whose other names were internals of 2.x."""

    def refuse(name: str) -> NoReturn:
        hint = "" if name.startswith("__") else f", an internal of TensorFlowOnSpark 2.x: use {instead} instead"
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return refuse
