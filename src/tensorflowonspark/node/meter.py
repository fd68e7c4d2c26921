"""The meter of a node's training: steps, rows, waits, used processors and metrics, in one message to the driver.

Rows are counted where they leave a feed (`feed.pace`); steps and epochs come from ``fit`` (`keras.training_events`),
waits for other workers from `keras.waiting`. The totals are sent with the progress of a pass, five times a second, with
the metrics of each epoch, and else once a second by a thread, while there is something new.

A program waits for rows from the end of its last step whose rows the feed has given out until the feed gives out the
next ones. A loop without ``fit`` that reads batches itself waits while it reads; where TensorFlow reads ahead in such a
loop, the wait is unknown.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tensorflowonspark.config import report_seconds
from tensorflowonspark.keras.waiting import Stopwatch, waiting_seconds
from tensorflowonspark.messages import Progress, ReportedMetrics, RowSource, TrainingTotals
from tensorflowonspark.node.metric_values import numbers_in

_TOTALS_SECONDS = 1.0  # between two messages
_PROGRESS_SECONDS = 0.2  # while a pass goes on: frequent enough for a progress bar, and cheap
_FEW_READS = 10  # of a loop without ``fit``, in which its step may be traced
_BURST, _PER_SECOND = 100.0, 10.0  # reports of a program's own that are sent at once, and in the long run


class TrainingMeter:
    """Measures the training of this process.

    A node that is `alone` waits for no other. In a cluster of many nodes each sends less often.
    """

    def __init__(self, send: Callable[[TrainingTotals], None], *, alone: bool, nodes: int = 1) -> None:
        self._link_send = send
        self._alone = alone
        self._seconds = report_seconds(_TOTALS_SECONDS, nodes)
        self._progress_seconds = report_seconds(_PROGRESS_SECONDS, nodes)
        self._training = Stopwatch()
        self._waiting = Stopwatch()  # for rows
        self._waiting_known = True
        self._fits = False  # steps are known from `fit`
        self._handed = 0  # steps whose rows have left the feed, as far as they count in this epoch
        self._done = 0  # steps of this epoch that have ended
        self._passing = False  # a pass over a feed is in progress
        self._total_steps = self._rows_before = self._bytes = 0  # rows: of the passes before the current one
        self._progress: Progress | None = None  # of the current pass
        self._progress_sent = 0.0  # its time
        self._reading, self._reads = 0.0, 0  # of rows, while the program trains: the seconds, and how often
        self._source: RowSource | None = None  # of these rows; None: this epoch has read none
        self._reads_ahead = self._traced = False
        self._queued = _queued_seconds()
        self._epoch = self._steps = 0
        self._began = 0.0  # time of the epoch's begin
        self._logs: Mapping[str, Any] | None = None  # of the last step
        self._reports = 0
        self._allowed, self._allowed_at = _BURST, 0.0  # reports that may be sent, and the time of that count
        self._unsent: ReportedMetrics | None = None
        self._sending = Lock()
        self._version = 0
        self._thread: Thread | None = None

    # ---- rows (in the thread that reads the feed, which has read the clock)

    def pass_began(self, now: float) -> None:
        """Note that a pass over a feed begins."""
        if self._passing or not self._done:
            self._handed = 0
        self._passing = True
        if not self._fits:
            self._training.start(now)
        self._find_wait(now)
        self._note_change()

    def rows_requested(self, now: float, *, ahead: bool) -> None:
        """Note that the next rows are read: ahead of the steps, or while the program waits."""
        if not ahead:
            self._waiting.start(now)
        elif not self._fits:
            self._waiting_known = False

    def rows_read(
        self, now: float, steps: int, size: int, *, ahead: bool, seconds: float = 0.0, source: RowSource | None = None
    ) -> None:
        """Note that the rows of some steps, of so many bytes, leave the feed; how long they were read, and where."""
        if self._training.runs:  # else it validates
            self._reading += seconds
            self._reads += 1
            self._source, self._reads_ahead = source, ahead
            self._traced = self._traced or (self._reads > _FEW_READS and not self._fits)
        self._handed += steps
        self._bytes += size
        if not self._fits:
            self._total_steps += steps
        if not ahead or self._fits:
            self._waiting.stop(now)
        self._note_change()
        self._send_progress(now)

    def rows_taken(self, progress: Progress) -> None:
        """Note the progress of a pass."""
        last, self._progress = self._progress, progress
        if last is not None and (progress.epoch != last.epoch or progress.rows < last.rows):
            self._rows_before += last.rows
        if not self._passing:  # else their steps are counted first
            self._send_progress(time.monotonic())

    def _send_progress(self, now: float) -> None:
        progress = self._progress
        if progress is not None and (
            now - self._progress_sent > self._progress_seconds or progress.step == progress.steps
        ):
            self._progress_sent = now
            self._send()

    def pass_ended(self, now: float) -> None:
        """Note that a pass has ended."""
        self._passing = False
        self._waiting.stop(now)
        if not self._fits:
            self._training.stop(now)
        self._note_change()

    def _find_wait(self, now: float) -> None:
        """Begin to count a wait for rows, if the steps of ``fit`` have none left."""
        if self._fits and self._training.runs and self._passing and self._done >= self._handed:
            self._waiting_known = self._waiting_known and self._done == self._handed  # else it takes rows of its own
            self._waiting.start(now)

    # ---- events of `fit`, and the program's own metrics (`keras.training_events.TrainingListener`)

    def epoch_began(self, epoch: int, steps: int | None) -> None:
        """Note that an epoch begins."""
        now = time.monotonic()
        if not self._fits:
            self._fits, self._waiting_known, self._traced, self._total_steps = True, True, False, 0
            self._waiting.stop(now)
            self._training.stop(now)
        self._handed = max(0, self._handed - self._done) if self._passing else 0
        self._epoch, self._steps, self._done, self._began, self._source = epoch, steps or 0, 0, now, None
        self._training.start(now)
        self._note_change()

    def step_ended(self, step: int, logs: Mapping[str, Any] | None) -> None:
        """Note that a step has ended."""
        self._traced = True
        self._total_steps += step + 1 - self._done
        self._done, self._logs = step + 1, logs
        if self._done >= self._handed:
            self._find_wait(time.monotonic())
        self._version += 1

    def pause(self) -> None:
        """Note that the steps of the epoch have ended, and the program evaluates."""
        now = time.monotonic()
        self._training.stop(now)
        self._waiting.stop(now)

    def epoch_ended(self, epoch: int, logs: Mapping[str, Any] | None, *, shown: bool) -> None:
        """Note that an epoch has ended, and report its metrics."""
        now = time.monotonic()
        self.pause()
        self._logs = None
        self._note_change()
        self._unsent = None
        self._send(ReportedMetrics(epoch, numbers_in(logs), ended=True, seconds=now - self._began, shown=shown))

    def report(self, values: Mapping[str, float], epoch: int | None) -> None:
        """Report metrics of the program's own; of very many reports those that name their epoch, and some others."""
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _PER_SECOND * (now - self._allowed_at))
        self._allowed_at = now
        message = ReportedMetrics(self._reports if epoch is None else epoch, dict(values), ended=True)
        self._reports = message.epoch + 1
        if epoch is None and self._allowed < 1.0:
            self._unsent = message
            self._note_change()
            return
        self._allowed, self._unsent = self._allowed - 1.0, None
        self._send(message)

    # ---- reports

    def _note_change(self) -> None:
        self._version += 1
        if self._thread is None:
            self._thread = Thread(target=self._report, daemon=True, name="training-meter")
            self._thread.start()

    def _report(self) -> None:
        sent = -1
        while True:
            time.sleep(self._seconds)
            if self._version != sent or self._training.runs:
                sent = self._version
                self.flush()

    def flush(self) -> None:
        """Send what has not been sent yet."""
        self._queued = _queued_seconds()
        unsent, self._unsent = self._unsent, None
        logs, self._logs = self._logs, None
        if unsent is not None:
            self._send(unsent)
        elif values := numbers_in(logs):
            self._send(ReportedMetrics(self._epoch, values, ended=False))
        elif self._version:
            self._send()

    def _send(self, *metrics: ReportedMetrics) -> None:
        with self._sending, suppress(OSError):
            self._link_send(self._totals(metrics))

    def _totals(self, metrics: tuple[ReportedMetrics, ...]) -> TrainingTotals:
        now, progress = time.monotonic(), self._progress
        # Rows leave the feed in blocks of many steps: those of steps to come do not count yet.
        taken = min(1.0, self._done / self._handed) if self._fits and self._handed else 1.0
        pass_epoch, pass_step, pass_steps, rows = astuple(progress) if progress else (None, 0, 0, 0)
        return TrainingTotals(
            time=now,
            epoch=self._epoch if self._fits else pass_epoch,
            step=self._done if self._fits else pass_step,
            steps=self._steps if self._fits else pass_steps,
            total_steps=self._total_steps,
            rows=self._rows_before + round(rows * taken) if progress else None,
            bytes=self._bytes if progress else None,
            waiting_for_rows=self._waiting.read(now) if self._waiting_known else None,
            waiting_for_workers=0.0 if self._alone else waiting_seconds(),
            training=self._training.read(now),
            reading=self._reading,
            processor=time.process_time(),
            queued=self._queued,
            source=self._source,
            reads_ahead=self._reads_ahead,
            traced=self._traced,
            progress=progress,
            metrics=metrics,
        )


def _queued_seconds() -> float:
    """Return the seconds for which threads of this process have waited for a processor (on Linux; 0 elsewhere)."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(path.read_text().split()[1])
    return total / 1e9
