"""What others have to do with a program's passes over its feeds: in a node, Keras's side of this package."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observer:
    """Functions that the passes call; by default nobody has to do with them."""

    # Notes that a pass begins; returns whether that is for a layer that adapts: over real rows only, and no epoch.
    adapts: Callable[[], bool] = lambda: False
    # Returns whether all batches of all workers must have the same number of rows.
    equal_batches: Callable[[], bool] = lambda: False
    # Notes that the thread that calls it takes rows of this worker.
    note_read: Callable[[], object] = lambda: None
    # Notes that a batch was filled up.
    note_padding: Callable[[], object] = lambda: None
    # Takes the number of rows of a pass over the rows to train on, at its end.
    note_rows: Callable[[int], object] = lambda _rows: None
    # Takes the features of the first rows that a dataset of the rows to train on hands out.
    note_first: Callable[[Any], object] = lambda _features: None
    # Takes a `tf.data.Dataset` and its `Passes`; returns it as one that is known to have this worker's rows.
    of_feed: Callable[[Any, Any], Any] = lambda dataset, _passes: dataset


NOBODY = Observer()
