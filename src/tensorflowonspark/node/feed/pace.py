"""Passes over a feed, as the meter of a training sees them: when rows are asked for, and when they leave the feed.

The clock is read twice for each batch or block of batches. A ``tf.data.Dataset`` reads ahead of the steps until its
buffer is full: where reading takes all the time the steps wait for rows, and where it takes little the steps take the
rest.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorflowonspark.messages import RowSource
from tensorflowonspark.node.meter import TrainingMeter

# Takes the elements of a pass, and what returns the number of steps for which an element has rows; yields them.
Measure = Callable[[Iterator[Any], Callable[[Any], int]], Iterator[Any]]


def measuring(meter: TrainingMeter, source: RowSource) -> Measure:
    """Return a function that has a meter measure the passes over one feed."""
    latest: object = None

    def measured(batches: Iterator[Any], steps_of: Callable[[Any], int]) -> Iterator[Any]:
        nonlocal latest
        ahead = threading.current_thread() is not threading.main_thread()  # one of tf.data's
        own = latest = object()
        asked = time.monotonic()
        meter.pass_began(asked)
        meter.rows_requested(asked, ahead=ahead)
        for element in batches:
            now = time.monotonic()
            steps, size = steps_of(element), _bytes_of(element)
            meter.rows_read(now, steps, size, ahead=ahead, seconds=now - asked, source=source)
            yield element
            asked = time.monotonic()
            meter.rows_requested(asked, ahead=ahead)
        if own is latest:  # else another pass goes on
            meter.pass_ended(time.monotonic())

    return measured


def _bytes_of(element: Any) -> int:
    """Return the size of the arrays of an element of nested tuples and dicts; of strings that of their pointers."""
    if isinstance(element, Mapping):
        return sum(map(_bytes_of, element.values()))
    if isinstance(element, (tuple, list)):
        return sum(map(_bytes_of, element))
    return int(getattr(element, "nbytes", 0))
