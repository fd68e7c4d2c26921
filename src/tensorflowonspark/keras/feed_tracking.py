"""Rows that feeds give out, tracked for ``fit`` and for preprocessing layers; imports no TensorFlow.

It stands apart since feeds, which run without TensorFlow, write to it too.

While a layer adapts, a feed hands out the rows that exist and no others: no rows that fill up a batch, in no particular
order, and without counting as an epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["DataPath", "Ledger", "StatePass", "ledger", "note_rows", "state_pass"]

_DROPPING = ("Filter", "IgnoreErrors", "Skip", "Take", "Unique")  # in the names of classes of datasets


class DataPath(Enum):
    """How a dataset came to a strategy of several workers."""

    WHOLE = "as it is"
    DIVIDED = "TensorFlow gives each worker a part of it"
    UNKNOWN = "neither is certain, or its program has chosen which rows it takes"


class Ledger:
    """Counts of one process."""

    def __init__(self) -> None:
        self.given = 0  # rows to train on, in passes that were taken to their end
        self.way = DataPath.UNKNOWN  # of the dataset that was distributed last
        self._at_fit = 0

    def give(self, rows: int) -> None:
        """Count the rows of a pass over a feed."""
        self.given += rows

    def given_since_fit(self) -> int:
        """Return the rows that were given out since the last ``fit`` ended."""
        return self.given - self._at_fit

    def end_fit(self) -> None:
        """Count from here on for the next ``fit``."""
        self._at_fit = self.given

    def note(self, dataset: Any, way: DataPath) -> None:
        """Note how a dataset came to the strategy."""
        self.way = DataPath.UNKNOWN if drops_rows(dataset) else way


ledger = Ledger()


def drops_rows(dataset: Any) -> bool:
    """Return whether a dataset has a transformation whose purpose it is to drop rows, or has no inputs to look at."""
    try:
        inputs = dataset._inputs()
    except (AttributeError, NotImplementedError):
        return True
    by_name = any(part in type(dataset).__name__ for part in _DROPPING)
    return by_name or _is_set(getattr(dataset, "_drop_remainder", False)) or any(map(drops_rows, inputs))


def _is_set(flag: Any) -> bool:
    return bool(flag.numpy() if hasattr(flag, "numpy") else flag)


@dataclass
class StatePass:
    """One layer's ``adapt``: whether any feed has handed out rows meanwhile."""

    fed: bool = False

    @staticmethod
    @contextmanager
    def begin() -> Iterator["StatePass"]:
        """Have feeds hand out real rows only, for as long as the context lasts."""
        _running.append(StatePass())
        try:
            yield _running[-1]
        finally:
            _running.pop()


_running: list[StatePass] = []


def state_pass() -> bool:
    """Whether a layer adapts at this moment."""
    return bool(_running)


def note_rows() -> None:
    """Note that a feed hands out rows (or would, if this worker had any)."""
    for each in _running:
        each.fed = True
