"""Names of earlier releases of version 3, which work for one more release, with a warning that has the new name."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tensorflowonspark.errors import SpecError

Item = TypeVar("Item", bound=Callable[..., Any])


def warn_renamed(old: str, new: str) -> None:
    """Give a `DeprecationWarning` for an old name, at the line of the program that uses it.

    `new` is the code that replaces it.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(f"{__package__}."):
        level, frame = level + 1, frame.f_back
    message = f"{old} is the old name, which 3.1 will not have: write {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def takes_old_keywords(
    values: Mapping[str, Mapping[Any, Any]] | None = None, /, **renamed: str
) -> Callable[[Item], Item]:
    """Return a decorator of a function that takes some keywords by their old names too.

    Keywords are the new names by the old ones; `values` has, by old name, what old values are now, where they differ.

    Examples
    --------
    >>> @takes_old_keywords(df="data")
    ... def rows_of(data):
    ...     return data
    >>> rows_of(data=1)
    1
    >>> rows_of(1, df=2)
    Traceback (most recent call last):
    tensorflowonspark.errors.SpecError: rows_of(df=...) and rows_of(data=...) are the same: give one of them
    """

    def decorate(function: Item) -> Item:
        signature = inspect.signature(function)
        places = {new: list(signature.parameters).index(new) for new in renamed.values()}

        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            for old, new in renamed.items():
                if old not in given:
                    continue
                name = function.__name__
                if new in given or places[new] < len(args):
                    raise SpecError(f"{name}({old}=...) and {name}({new}=...) are the same: give one of them")
                warn_renamed(f"{name}({old}=...)", f"{name}({new}=...)")
                value = given.pop(old)
                given[new] = values[old].get(value, value) if values and old in values else value
            return function(*args, **given)

        return called  # type: ignore[return-value]

    return decorate
