"""What the workers that train together agree on: one value, made of those of all, by way of the driver."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Workers", "are_several", "combine", "connect"]


class Workers(Protocol):
    """The workers that train together."""

    def combine(self, call: str, value: Any, merge: Callable[[list[Any]], Any]) -> Any:
        """Return what `merge` makes of all workers' values, as the function below."""


_workers: list[Workers] = []  # one in a node that trains with others, else none


def connect(workers: Workers) -> None:
    """Have this process agree with other workers."""
    _workers[:] = [workers]


def are_several() -> bool:
    """Return whether this process trains with others."""
    return bool(_workers)


def combine(call: str, value: Any, merge: Callable[[list[Any]], Any] = list) -> Any:
    """Return what `merge` makes of all workers' values, the same on all of them; all must call it, in the same order.

    Parameters
    ----------
    call : str
        The program's call, for errors; the same on all workers.
    value : object
        This worker's value, which can be pickled.
    merge : callable
        Takes the values in the workers' order, the chief's first; runs on the first worker. By default all are
        returned.

    Examples
    --------
    >>> combine("model.fit", 7, max)  # a process that trains alone
    7
    """
    return _workers[0].combine(call, value, merge) if _workers else merge([value])
