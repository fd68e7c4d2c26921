"""The arguments of a program, from whatever they were made of. The nodes read it too: nothing of Spark belongs here."""

from argparse import Namespace as Arguments
from collections.abc import Iterator, Mapping
from typing import Any

from tensorflowonspark.errors import SpecError

__all__ = ["Namespace"]


class Namespace(Arguments):
    """Arguments by name; or, made of a list, the command line ``argv``.

    Parameters
    ----------
    d : mapping, list, argparse.Namespace or Namespace
        What it is made of; it is copied.

    Raises
    ------
    SpecError
        If it is anything else.

    Examples
    --------
    >>> args = Namespace({"epochs": 3, "lr": 0.1})
    >>> args, list(args), "lr" in args, args == Namespace(args)
    (Namespace(epochs=3, lr=0.1), ['epochs', 'lr'], True, True)
    >>> Namespace(["--epochs", "3"]).argv
    ['--epochs', '3']
    """

    argv: list[Any] | None = None

    def __init__(self, d: Any) -> None:
        super().__init__()
        if isinstance(d, (list, tuple)):
            self.argv = list(d)
        elif isinstance(d, (Mapping, Arguments)):
            vars(self).update(d if isinstance(d, Mapping) else vars(d))
        else:
            raise SpecError(f"{d!r}: arguments are a dict, a list, or what argparse returns; {{}} are none")

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the names; over the command line, if it is one."""
        return iter(vars(self) if self.argv is None else self.argv)

    def __repr__(self) -> str:
        return super().__repr__() if self.argv is None else repr(self.argv)
