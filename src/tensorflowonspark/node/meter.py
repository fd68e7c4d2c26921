"""The meter of a node's training: steps, rows, waits, used processors and metrics, in one message to the driver.

Rows are counted where they leave a feed (`feed.pace`); steps and epochs come from ``fit`` (`keras.training_events`),
waits for other workers from `keras.waiting`. The totals are sent with the progress of a pass, five times a second, with
the metrics of each epoch, and else once a second by a thread, while there is something new.

A program waits for rows from the end of its last step whose rows the feed has given out until the feed gives out the
next ones. A loop without ``fit`` that reads batches itself waits while it reads; where TensorFlow reads ahead in such a
loop, the wait is unknown.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from tensorflowonspark.config import report_seconds
from tensorflowonspark.keras.waiting import Stopwatch, waiting_seconds
from tensorflowonspark.messages import Progress, ReportedMetrics, RowSource, TrainingTotals
from tensorflowonspark.node.import_time import import_seconds
from tensorflowonspark.node.metric_values import numbers_in
from tensorflowonspark.node.training_counts import OwnReports, RowCount, StepCount, TrainingTime

_TOTALS_SECONDS = 1.0  # between two messages
_PROGRESS_SECONDS = 0.2  # while a pass goes on: frequent enough for a progress bar, and cheap


class TrainingMeter:
    """Measures the training of this process.

    A node that is `alone` waits for no other. In a cluster of many nodes each sends less often.
    """

    def __init__(self, send: Callable[[TrainingTotals], None], *, alone: bool, nodes: int = 1) -> None:
        self._link_send = send
        self._alone = alone
        self._seconds = report_seconds(_TOTALS_SECONDS, nodes)
        self._progress_seconds = report_seconds(_PROGRESS_SECONDS, nodes)
        self._progress_sent = 0.0  # the time of the last progress that was sent
        self._times = TrainingTime()
        self._rows = RowCount()
        self._steps = StepCount()
        self._reports = OwnReports()
        self._queued = _queued_seconds()
        self._resumes = False  # training goes on after a validation in its midst
        self._sending = Lock()
        self._version = 0
        self._thread: Thread | None = None
        self._closed = Event()

    # ---- rows (in the thread that reads the feed, which has read the clock)

    def pass_began(self, now: float) -> None:
        """Note that a pass over a feed begins."""
        if self._rows.passing or not self._steps.done:
            self._rows.handed = 0
        self._rows.passing = True
        if not self._steps.of_fit:
            self._times.training.start(now)
        self._find_wait(now)
        self._note_change()

    def rows_requested(self, now: float, *, ahead: bool) -> None:
        """Note that the next rows are read: ahead of the steps, or while the program waits."""
        if not ahead:
            self._times.waiting.start(now)
        elif not self._steps.of_fit:
            self._times.waiting_known = False

    def rows_read(
        self, now: float, steps: int, size: int, *, ahead: bool, seconds: float = 0.0, source: RowSource | None = None
    ) -> None:
        """Note that the rows of some steps, of so many bytes, leave the feed; how long they were read, and where."""
        of_fit = self._steps.of_fit
        self._times.add_read(seconds, source, ahead=ahead, fits=of_fit)
        self._rows.handed += steps
        self._rows.bytes += size
        if not of_fit:
            self._steps.total += steps
        if not ahead or of_fit:
            self._times.waiting.stop(now)
        self._note_change()
        self._send_progress(now)

    def rows_taken(self, progress: Progress) -> None:
        """Note the progress of a pass."""
        self._rows.take(progress)
        if not self._rows.passing:  # else their steps are counted first
            self._send_progress(time.monotonic())

    def _send_progress(self, now: float) -> None:
        progress = self._rows.progress
        if progress is not None and (
            now - self._progress_sent > self._progress_seconds or progress.step == progress.steps
        ):
            self._progress_sent = now
            self._send()

    def pass_ended(self, now: float) -> None:
        """Note that a pass has ended."""
        self._rows.passing = False
        self._times.waiting.stop(now)
        if not self._steps.of_fit:
            self._times.training.stop(now)
        self._note_change()

    def _find_wait(self, now: float) -> None:
        """Begin to count a wait for rows, if the steps of ``fit`` have none left."""
        steps, rows, times = self._steps, self._rows, self._times
        if steps.of_fit and times.training.runs and rows.passing and steps.done >= rows.handed:
            times.waiting_known = times.waiting_known and steps.done == rows.handed  # else it takes rows of its own
            times.waiting.start(now)

    # ---- events of `fit`, and the program's own metrics (`keras.training_events.TrainingListener`)

    def epoch_began(self, epoch: int, steps: int | None) -> None:
        """Note that an epoch begins."""
        now = time.monotonic()
        if not self._steps.of_fit:
            self._steps.begin_fit()
            self._times.begin_fit(now)
        self._rows.handed = max(0, self._rows.handed - self._steps.done) if self._rows.passing else 0
        self._steps.begin_epoch(epoch, steps, now)
        self._times.source = None
        self._times.training.start(now)
        self._note_change()

    def step_ended(self, step: int, logs: Mapping[str, Any] | None) -> None:
        """Note that a step has ended."""
        self._times.traced = True
        self._steps.end_step(step, logs)
        if self._steps.done >= self._rows.handed:
            self._find_wait(time.monotonic())
        self._version += 1

    def pause(self) -> None:
        """Note that the program evaluates."""
        self._resumes = self._times.leave(self._times.validating, time.monotonic())

    def evaluated(self) -> None:
        """Note that the program has evaluated."""
        self._come_back(self._times.validating, trains=self._resumes)

    def epoch_ended(self, epoch: int, logs: Mapping[str, Any] | None, *, shown: bool) -> None:
        """Note that an epoch has ended, and report its metrics."""
        now = time.monotonic()
        self._times.stop(now)
        self._steps.logs = None
        self._note_change()
        self._reports.unsent = None
        seconds = now - self._steps.began
        self._send(ReportedMetrics(epoch, numbers_in(logs), ended=True, seconds=seconds, shown=shown))

    def report(self, values: Mapping[str, float], epoch: int | None) -> None:
        """Report metrics of the program's own; of very many reports those that name their epoch, and some others."""
        report = self._reports.add(values, epoch, time.monotonic())
        if report is None:
            self._note_change()
        else:
            self._send(report)

    # ---- beside the training

    @contextmanager
    def waiting_for_feed(self) -> Iterator[None]:
        """Count the time of a block as waiting for rows that no step takes yet."""
        self._note_change()
        with self._beside(self._times.feed):
            yield

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Count the time of a block as saving the checkpoint of a step."""
        with self._beside(self._times.saving):
            yield
        self._steps.saved = step
        self._send()

    def restored(self, step: int) -> None:
        """Note that the program has restored the checkpoint of a step; it resumes there if it has not trained."""
        if not self._steps.total:
            self._steps.restored = step

    @contextmanager
    def _beside(self, watch: Stopwatch) -> Iterator[None]:
        trains = self._times.leave(watch, time.monotonic())
        try:
            yield
        finally:
            self._come_back(watch, trains=trains)

    def _come_back(self, watch: Stopwatch, *, trains: bool) -> None:
        now = time.monotonic()
        watch.stop(now)
        if trains:
            self._times.training.start(now)
            self._find_wait(now)

    # ---- messages

    def _note_change(self) -> None:
        self._version += 1
        if self._thread is None:
            self._thread = Thread(target=self._report, daemon=True, name="training-meter")
            self._thread.start()

    def _report(self) -> None:
        sent = -1
        while not self._closed.wait(self._seconds):
            if self._version != sent or self._times.training.runs or self._times.feed.runs:
                sent = self._version
                self.flush()

    def close(self) -> None:
        """Send the last of the training, when the program has ended."""
        self._closed.set()
        self.flush()

    def flush(self) -> None:
        """Send what has not been sent yet."""
        self._queued = _queued_seconds()
        unsent, logs = self._reports.take(), self._steps.take_logs()
        if unsent is not None:
            self._send(unsent)
        elif values := numbers_in(logs):
            self._send(ReportedMetrics(self._steps.epoch, values, ended=False))
        elif self._version:
            self._send()

    def _send(self, *metrics: ReportedMetrics) -> None:
        with self._sending, suppress(OSError):
            self._link_send(self._totals(metrics))

    def _totals(self, metrics: tuple[ReportedMetrics, ...]) -> TrainingTotals:
        now, steps, rows, times = time.monotonic(), self._steps, self._rows, self._times
        at = rows.progress
        epoch, step, in_epoch = (None, 0, 0) if at is None else (at.epoch, at.step, at.steps)
        if steps.of_fit:
            epoch, step, in_epoch = steps.epoch, steps.done, steps.in_epoch
        return TrainingTotals(
            time=now,
            epoch=epoch,
            step=step,
            steps=in_epoch,
            total_steps=steps.total,
            # Rows leave the feed in blocks of many steps: those of steps to come do not count yet.
            rows=None if at is None else rows.count(at, steps.done if steps.of_fit else None),
            bytes=None if at is None else rows.bytes,
            waiting_for_rows=times.waiting.read(now) if times.waiting_known else None,
            waiting_for_workers=0.0 if self._alone else waiting_seconds(),
            training=times.training.read(now),
            reading=times.reading,
            processor=time.process_time(),
            queued=self._queued,
            waiting_for_feed=times.feed.read(now),
            importing=import_seconds(),
            saving=times.saving.read(now),
            validating=times.validating.read(now),
            saved=steps.saved,
            restored=steps.restored,
            source=times.source,
            reads_ahead=times.reads_ahead,
            traced=times.traced,
            progress=at,
            metrics=metrics,
        )


def _queued_seconds() -> float:
    """Return the seconds for which threads of this process have waited for a processor (on Linux; 0 elsewhere)."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(path.read_text().split()[1])
    return total / 1e9
