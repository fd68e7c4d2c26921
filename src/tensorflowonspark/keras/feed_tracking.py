"""Tracking of the rows that feeds return, for ``fit`` and for preprocessing layers; feeds need no TensorFlow for it.

Feeds, which run without TensorFlow, record their rows here.

While a layer adapts, a feed returns real rows only: no padding, in no particular order, and without counting as an
epoch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Protocol

_LENGTH, _ROWS = "_tensorflowonspark_length", "_tensorflowonspark_rows"
_EQUAL, _AHEAD = "_tensorflowonspark_equal", "_tensorflowonspark_ahead"
_DROPPING = ("Filter", "IgnoreErrors", "Skip", "Take", "Unique")  # in the names of classes of datasets


class DataPath(Enum):
    """The path of a dataset to a strategy of several workers."""

    WHOLE = "unchanged"
    DIVIDED = "TensorFlow gives each worker a part of it"
    UNKNOWN = "neither is certain, or the program itself selects rows"


class RowCounts:
    """The counts of one process: rows that its feeds returned, and the path of its latest dataset."""

    def __init__(self) -> None:
        self.fed = 0  # training rows, of complete passes
        self.padded = False  # whether a feed has filled up any batch
        self.data_path = DataPath.UNKNOWN  # of the dataset that was distributed last
        self._at_fit = 0

    def add(self, rows: int) -> None:
        """Count the rows of a pass over a feed."""
        self.fed += rows

    def fed_since_fit(self) -> int:
        """Return the rows of feeds since the last ``fit`` ended."""
        return self.fed - self._at_fit

    def end_fit(self) -> None:
        """Begin to count for the next ``fit``."""
        self._at_fit = self.fed

    def note_dataset(self, dataset: Any, data_path: DataPath) -> None:
        """Record the path of a dataset to the strategy."""
        self.data_path = DataPath.UNKNOWN if drops_rows(dataset) else data_path


row_counts = RowCounts()


class PassLength(Protocol):
    """The length of a dataset whose rows arrive while the program takes them."""

    @property
    def known_steps(self) -> int:
        """Number of steps of the current pass that are certain."""

    def has_step(self, step: int) -> bool:
        """Return whether the current pass has a step, above 0; wait until that is certain."""


def note_length(dataset: Any, length: PassLength) -> None:
    """Record the length of a dataset."""
    setattr(dataset, _LENGTH, length)


def pass_length(dataset: Any) -> PassLength | None:
    """Return the length recorded for a dataset, or for one that it was made of by transformations which keep it."""
    length: PassLength | None = _recorded(dataset, _LENGTH)
    return length


def note_equal_steps(dataset: Any) -> None:
    """Record that the datasets of this feed have equally many batches on all workers."""
    setattr(dataset, _EQUAL, True)


RowsAhead = Sequence[tuple[int, int]]  # the real rows of each batch of a pass, which come first, and all of them


def note_rows_ahead(dataset: Any, rows_ahead: Callable[[], RowsAhead | None]) -> None:
    """Record what returns the rows of each batch of the next pass over a dataset, if they are known."""
    setattr(dataset, _AHEAD, rows_ahead)


def planned_rows(dataset: Any) -> RowsAhead | None:
    """Return these of a dataset, or of one that it was made of by transformations which keep its length."""
    rows_ahead = _recorded(dataset, _AHEAD)
    return None if rows_ahead is None else rows_ahead()


def has_equal_steps(dataset: Any) -> bool:
    """Return whether that is recorded for a dataset, or for one that it was made of by transformations that keep it."""
    return bool(_recorded(dataset, _EQUAL))


def _recorded(dataset: Any, name: str) -> Any:
    while not hasattr(dataset, name):
        if type(dataset) not in _of_same_length():
            return None
        (dataset,) = dataset._inputs()
    return getattr(dataset, name)


@cache
def _of_same_length() -> tuple[type, ...]:
    """Return the classes of datasets that are as long as what they are made of."""
    import tensorflow as tf

    one = tf.data.Dataset.range(1)
    maps = [one.map(lambda each: each, num_parallel_calls=calls) for calls in (None, 2)]
    return tuple(type(each) for each in (*maps, one.prefetch(1), one.with_options(tf.data.Options())))


def note_batch_rows(dataset: Any, rows: int) -> None:
    """Record the most rows that a batch of a feed's dataset has."""
    setattr(dataset, _ROWS, rows)


def batch_rows(dataset: Any) -> int:
    """Return how many rows the largest batch of a feed has from which a dataset is made; 0 if it reads no feed."""
    return max([int(getattr(dataset, _ROWS, 0)), *map(batch_rows, _inputs(dataset) or ())])


def drops_rows(dataset: Any) -> bool:
    """Return whether a dataset has a transformation that is meant to drop rows, or has no inputs to inspect."""
    inputs = _inputs(dataset)
    by_name = any(part in type(dataset).__name__ for part in _DROPPING)
    drops = inputs is None or by_name or _drops_remainder(dataset)
    return drops or any(map(drops_rows, inputs or ()))


def _inputs(dataset: Any) -> list[Any] | None:
    """Return the datasets that a dataset is made of directly; None if it has no such list."""
    try:
        return list(dataset._inputs())
    except (AttributeError, NotImplementedError):
        return None


def _drops_remainder(dataset: Any) -> bool:
    """Return whether a dataset has batches of one size only, as its shapes say, or windows, whose shapes say none."""
    name = type(dataset).__name__.strip("_").lower()
    if "batch" not in name or "unbatch" in name:
        return name.startswith("window")
    import tensorflow as tf

    shapes = [getattr(each, "shape", None) for each in tf.nest.flatten(dataset.element_spec)]
    return any(isinstance(each, tf.TensorShape) and each.rank and each[0] is not None for each in shapes)


@dataclass
class StatePass:
    """The ``adapt`` of one layer: whether any feed has returned rows meanwhile."""

    fed: bool = False

    @staticmethod
    @contextmanager
    def begin() -> Iterator["StatePass"]:
        """Have feeds return real rows only for the duration of a context."""
        _state_passes.append(StatePass())
        try:
            yield _state_passes[-1]
        finally:
            _state_passes.pop()


# The layers that adapt at this time, the innermost one last. It is the process's: a feed may return its rows in another
# thread than that in which the layer adapts.
_state_passes: list[StatePass] = []


def state_pass() -> bool:
    """Note that a feed returns rows, or would if it had any; return whether that is for a layer that adapts."""
    for each in _state_passes:
        each.fed = True
    return bool(_state_passes)
