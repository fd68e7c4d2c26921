"""Passes over a worker's rows in which a preprocessing layer computes its state, and not a model its gradients.

While a layer adapts, a feed hands out the rows that exist and no others: no rows that fill up a batch, in no particular
order, and without counting as an epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["StatePass", "note_rows", "state_pass"]


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
