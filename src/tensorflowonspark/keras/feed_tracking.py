"""Tracking of the rows that feeds return, for ``fit`` and for preprocessing layers; feeds need no TensorFlow for it.

Feeds, which run without TensorFlow, record their rows here.

While a layer adapts, a feed returns real rows only: no padding, in no particular order, and without counting as an
epoch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Protocol

_PASSES = "_tensorflowonspark_passes"  # attribute of a dataset
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
        self.first_features: Any = None  # of the first rows of the latest dataset, as the feed hands them out
        self._at_fit = 0

    def add(self, rows: int) -> None:
        """Count the rows of a pass over a feed."""
        self.fed += rows

    def note_first(self, features: Any) -> None:
        """Note the features of the first rows of a pass."""
        self.first_features = features

    def note_padding(self) -> None:
        """Note that a feed has filled up a batch."""
        self.padded = True

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


class FedPasses(Protocol):
    """The passes over one worker's rows of a feed, as far as ``fit`` has to know them."""

    @property
    def batch_rows(self) -> int:
        """The most rows that a batch has."""

    @property
    def arrive(self) -> bool:
        """Whether rows arrive while the program takes them, so that nobody knows the number of steps."""

    @property
    def steps(self) -> int | None:
        """The number of steps of each pass, if it is known."""

    @property
    def equal_steps(self) -> bool:
        """Whether all workers take as many."""

    @property
    def known_steps(self) -> int:
        """Number of steps of the current pass that are certain."""

    def has_step(self, step: int) -> bool:
        """Return whether the current pass has a step, above 0; wait until that is certain."""

    def steps_ahead(self) -> "StepsAhead | None":
        """Return the real rows of each batch of the next pass, which come first, and all; None if nobody knows."""


StepsAhead = Sequence[tuple[int, int]]


def note_passes(dataset: Any, passes: FedPasses) -> None:
    """Record the passes of a dataset; those that are made of it know them."""
    setattr(dataset, _PASSES, passes)


def pass_length(dataset: Any) -> FedPasses | None:
    """Return the passes of a dataset whose length becomes known while the program takes its rows."""
    passes = _passes(dataset)
    return passes if passes is not None and passes.arrive else None


def planned_rows(dataset: Any) -> StepsAhead | None:
    """Return the real rows of each batch of the next pass over a dataset, and all; None if nobody knows."""
    passes = _passes(dataset)
    return None if passes is None else passes.steps_ahead()


def has_equal_steps(dataset: Any) -> bool:
    """Return whether a dataset has equally many batches on all workers."""
    passes = _passes(dataset)
    return passes is not None and passes.equal_steps


def _passes(dataset: Any) -> FedPasses | None:
    """Return those recorded for a dataset, or for one that it was made of by transformations that keep its length."""
    while not hasattr(dataset, _PASSES):
        if type(dataset) not in _of_same_length():
            return None
        (dataset,) = dataset._inputs()
    passes: FedPasses = getattr(dataset, _PASSES)
    return passes


@cache
def _of_same_length() -> tuple[type, ...]:
    """Return the classes of datasets that are as long as what they are made of."""
    import tensorflow as tf

    one = tf.data.Dataset.range(1)
    maps = [one.map(lambda each: each, num_parallel_calls=calls) for calls in (None, 2)]
    return tuple(type(each) for each in (*maps, one.prefetch(1), one.with_options(tf.data.Options())))


def batch_rows(dataset: Any) -> int:
    """Return how many rows the largest batch of a feed has from which a dataset is made; 0 if it reads no feed."""
    own = getattr(dataset, _PASSES, None)
    return max([0 if own is None else int(own.batch_rows), *map(batch_rows, _inputs(dataset) or ())])


def has_arriving_rows(dataset: Any) -> bool:
    """Return whether rows of a feed from which a dataset is made arrive while the program takes them."""
    own = getattr(dataset, _PASSES, None)
    return (own is not None and bool(own.arrive)) or any(map(has_arriving_rows, _inputs(dataset) or ()))


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
