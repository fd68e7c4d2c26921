"""Errors of functions that run in Spark's Python workers, without the frames of this package."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tensorflowonspark.errors import ClusterError
from tensorflowonspark.node.tracebacks import without_hidden_frames

_Function = TypeVar("_Function", bound=Callable[..., Any])


def short_errors(function: _Function) -> _Function:
    """Return a function of this package whose errors have only the frames of the user's code, and one of this module.

    Spark shows the traceback of a Python worker before the error's text. The function may yield.
    """

    @functools.wraps(function)
    def yielding(*args: Any) -> Iterator[Any]:
        try:
            yield from function(*args)
        except Exception as error:
            raise _shortened(error)  # noqa: B904 - the same error

    @functools.wraps(function)
    def returning(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise _shortened(error)  # noqa: B904 - the same error

    return yielding if inspect.isgeneratorfunction(function) else returning  # type: ignore[return-value]


def _shortened(error: Exception) -> Exception:
    if isinstance(error, ClusterError):
        error.__cause__, error.__suppress_context__ = None, True  # the text has what is of use
    return error.with_traceback(without_hidden_frames(error))
