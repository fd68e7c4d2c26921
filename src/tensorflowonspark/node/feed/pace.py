"""The pace of a training: the time that its passes over a feed take, and the time of reading rows within it.

It is measured where rows leave the feed, at one reading of a clock or two for each batch or block of batches. A
``tf.data.Dataset`` reads ahead of the steps until its buffer is full: where reading takes all the time the steps wait
for rows, and where it takes little the steps take the rest.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tensorflowonspark.messages import RowSource, TrainingPace
from tensorflowonspark.node.meter import TrainingMeter

_T = TypeVar("_T")
_FEW_READS = 10  # of a pass whose longest pause may be all of its steps
_REPORT_SECONDS = 1.0  # between two reports


@dataclass
class _Pass:
    """What was measured of one pass; all times in seconds."""

    begin: float
    end: float  # of its last read
    processor_begin: float
    processor_end: float
    reads: int = 0
    steps: int = 0
    reading: float = 0.0
    pause: float = 0.0  # the longest between two reads: in the first pass the step is traced in it
    pause_processor: float = 0.0


class PaceMeter:
    """Measures the passes of a program over one feed, for the meter of its training.

    The first pass counts without its longest pause, in which TensorFlow traces and compiles the step; if it has too few
    reads to tell that pause from the others, it does not count. Neither does the time until the second pass.

    Parameters
    ----------
    feed : int
        The feed's number.
    source : RowSource
        Where the rows are before they are read.
    meter : TrainingMeter
        Counts the rows and the waits for them, and reports the totals of the passes.
    """

    def __init__(self, feed: int, source: RowSource, meter: TrainingMeter) -> None:
        self._meter = meter
        self._pace = TrainingPace(feed, source)  # of the passes that have ended
        self._running: _Pass | None = None
        self._traced = False  # the first pass has ended
        self._end: float | None = None  # of the last pass that counts
        self._before: _Pass | None = None  # the last pass, if the time since then counts too
        self._overlapping = False  # two passes at the same time: neither is the pace of a training
        self._queued_before: float | None = None
        self._reported = 0.0

    def measured(self, batches: Iterator[_T], steps_of: Callable[[_T], int]) -> Iterator[_T]:
        """Yield the elements of a pass, and measure it.

        Parameters
        ----------
        batches : iterator
            The pass.
        steps_of : callable
            Returns the number of steps for which an element has rows.
        """
        clock, processor = time.monotonic, time.process_time
        ahead = threading.current_thread() is not threading.main_thread()  # one of tf.data's
        self._pace = replace(self._pace, reads_ahead=ahead)
        current, meter = self._begin(), self._meter
        asked = current.begin
        meter.pass_began(asked)
        meter.rows_requested(asked, ahead=ahead)
        for element in batches:
            now = clock()
            if current is not self._running:
                self._overlapping = True
            current.reading += now - asked
            current.reads += 1
            steps = steps_of(element)
            current.steps += steps
            current.end, current.processor_end = now, processor()
            meter.rows_read(now, steps, _bytes_of(element), ahead=ahead)
            yield element
            asked = clock()
            meter.rows_requested(asked, ahead=ahead)
            if asked - now > current.pause:
                current.pause, current.pause_processor = asked - now, processor() - current.processor_end
        now = clock()
        current.reading += now - asked
        current.end, current.processor_end = now, processor()
        if current is self._running:
            meter.pass_ended(now)
            self._count(current, complete=True)
            if now - self._reported > _REPORT_SECONDS:
                self._report(0.0)

    def finish(self) -> None:
        """Report the totals for the last time: the program is done with the feed."""
        if self._running is not None:
            self._count(self._running, complete=False)
        if self._end is not None:
            self._report(time.monotonic() - self._end)

    def _begin(self) -> _Pass:
        if self._running is not None:  # it was abandoned, or goes on beside this one
            self._count(self._running, complete=False)
        if self._queued_before is None:
            self._queued_before = _queued_seconds()
        now, processor = time.monotonic(), time.process_time()
        self._running = _Pass(now, now, processor, processor)
        return self._running

    def _count(self, ended: _Pass, *, complete: bool) -> None:
        """Add a pass, and the time since the one before, to the totals."""
        self._running = None
        few = ended.reads < _FEW_READS
        if few and not complete:
            return  # Keras takes a batch to build a model
        is_first, self._traced = not self._traced, True
        if few and is_first:
            return
        seconds, processor = ended.end - ended.begin, ended.processor_end - ended.processor_begin
        between = 0.0
        if is_first:
            seconds, processor = seconds - ended.pause, processor - ended.pause_processor
        elif self._before is not None:
            between = ended.begin - self._before.end
            processor += ended.processor_begin - self._before.processor_end
        before = self._pace
        self._pace = replace(
            before,
            passes=before.passes + 1,
            steps=before.steps + ended.steps,
            seconds=before.seconds + seconds + between,
            between=before.between + between,
            reading=before.reading + ended.reading,
            processor=before.processor + processor,
        )
        self._before = None if is_first else ended
        self._end = ended.end

    def _report(self, after: float) -> None:
        self._reported = time.monotonic()
        if self._overlapping or not self._pace.steps:
            return
        queued = max(0.0, _queued_seconds() - (self._queued_before or 0.0))  # threads that have ended are missing
        self._meter.note_pace(replace(self._pace, queued=queued, after=after))


def _bytes_of(element: Any) -> int:
    """Return the size of the arrays of an element of nested tuples and dicts; of strings that of their pointers."""
    if isinstance(element, Mapping):
        return sum(map(_bytes_of, element.values()))
    if isinstance(element, (tuple, list)):
        return sum(map(_bytes_of, element))
    return int(getattr(element, "nbytes", 0))


def _queued_seconds() -> float:
    """Return the seconds for which threads of this process have waited for a processor (on Linux; 0 elsewhere)."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(path.read_text().split()[1])
    return total / 1e9
