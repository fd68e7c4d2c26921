"""The meter of a node's training: steps, rows, waits and metrics, reported to the driver about once a second.

Rows are counted where they leave a feed; steps and epochs come from ``fit`` (`keras.training_events`), waits for other
workers from `keras.waiting`. A thread sends the totals while there is something new.

A program waits for rows from the end of its last step whose rows the feed has given out until the feed gives out the
next ones. A loop without ``fit`` that reads batches itself waits while it reads; where TensorFlow reads ahead in such a
loop, the wait is unknown.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from threading import Lock, Thread
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.waiting import Stopwatch, waiting_seconds
from tensorflowonspark.messages import MetricsReported, Progress, TrainingTotals

__all__ = ["TrainingMeter", "check_metrics"]

_BURST, _PER_SECOND = 100.0, 10.0  # reports of a program's own that are sent at once, and in the long run


class TrainingMeter:
    """Measures the training of this process.

    Parameters
    ----------
    send : callable
        Sends a message to the driver.
    alone : bool
        Whether this node trains without others, and waits for none.
    interval : float
        Seconds between two reports of the totals.
    """

    def __init__(self, send: Callable[[object], None], *, alone: bool, interval: float = 1.0) -> None:
        self._send = send
        self._alone = alone
        self._interval = interval
        self._training = Stopwatch()
        self._waiting = Stopwatch()  # for rows
        self._waiting_known = True
        self._fits = False  # steps are known from `fit`
        self._handed = 0  # steps whose rows have left the feed, as far as they count in this epoch
        self._done = 0  # steps of this epoch that have ended
        self._passing = False  # a pass over a feed is in progress
        self._total_steps = self._rows_before = self._bytes = 0  # rows: of the passes before the current one
        self._progress = Progress(0, 0, 0, 0)  # of the current pass
        self._epoch = self._steps = 0
        self._began = 0.0  # time of the epoch's begin
        self._logs: Mapping[str, Any] | None = None  # of the last step
        self._reports = 0
        self._allowed, self._allowed_at = _BURST, 0.0  # reports that may be sent, and the time of that count
        self._unsent: MetricsReported | None = None
        self._sending = Lock()
        self._version = 0
        self._thread: Thread | None = None

    # ---- rows (in the thread that reads the feed)

    def pass_began(self) -> None:
        """Note that a pass over a feed begins."""
        now = time.monotonic()
        if self._passing or not self._done:
            self._handed = 0
        self._passing = True
        if not self._fits:
            self._training.start(now)
        self._find_wait(now)
        self._note_change()

    def rows_requested(self, *, ahead: bool) -> None:
        """Note that the next rows are read: ahead of the steps, or while the program waits."""
        if not ahead:
            self._waiting.start(time.monotonic())
        elif not self._fits:
            self._waiting_known = False

    def rows_read(self, steps: int, size: int, *, ahead: bool) -> None:
        """Note that the rows of some steps, of so many bytes, leave the feed."""
        self._handed += steps
        self._bytes += size
        if not self._fits:
            self._total_steps += steps
        if not ahead or self._fits:
            self._waiting.stop(time.monotonic())
        self._note_change()

    def rows_taken(self, progress: Progress) -> None:
        """Note the progress of a pass."""
        if progress.epoch != self._progress.epoch or progress.rows < self._progress.rows:
            self._rows_before += self._progress.rows
        self._progress = progress

    def pass_ended(self) -> None:
        """Note that a pass has ended, or that the program has abandoned it."""
        now = time.monotonic()
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
            self._fits, self._waiting_known, self._total_steps = True, True, 0
            self._waiting.stop(now)
            self._training.stop(now)
        self._handed = max(0, self._handed - self._done) if self._passing else 0
        self._epoch, self._steps, self._done, self._began = epoch, steps or 0, 0, now
        self._training.start(now)
        self._note_change()

    def step_ended(self, step: int, logs: Mapping[str, Any] | None) -> None:
        """Note that a step has ended."""
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
        self._send(MetricsReported(epoch, _numbers(logs), ended=True, seconds=now - self._began, shown=shown))
        self._unsent = None
        self._note_change()

    def report(self, values: Mapping[str, float], epoch: int | None) -> None:
        """Report metrics of the program's own; of very many reports those that name their epoch, and some others."""
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _PER_SECOND * (now - self._allowed_at))
        self._allowed_at = now
        message = MetricsReported(self._reports if epoch is None else epoch, dict(values), ended=True)
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
            time.sleep(self._interval)
            if self._version != sent or self._training.runs:
                sent = self._version
                self.flush()

    def flush(self) -> None:
        """Send what has not been sent yet."""
        with self._sending, suppress(OSError):
            unsent, self._unsent = self._unsent, None
            logs, self._logs = self._logs, None
            if unsent is not None:
                self._send(unsent)
            elif values := _numbers(logs):
                self._send(MetricsReported(self._epoch, values, ended=False))
            if self._version:
                self._send(self._totals())

    def _totals(self) -> TrainingTotals:
        now, progress = time.monotonic(), self._progress
        # Rows leave the feed in blocks of many steps: those of steps to come do not count yet.
        taken = min(1.0, self._done / self._handed) if self._fits and self._handed else 1.0
        return TrainingTotals(
            time=now,
            epoch=self._epoch if self._fits else progress.epoch,
            step=self._done if self._fits else progress.step,
            steps=self._steps if self._fits else progress.steps,
            total_steps=self._total_steps,
            rows=self._rows_before + round(progress.rows * taken),
            bytes=self._bytes,
            waiting_for_rows=self._waiting.read(now) if self._waiting_known else None,
            waiting_for_workers=0.0 if self._alone else waiting_seconds(),
            training=self._training.read(now),
        )


def check_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers.

    Parameters
    ----------
    values : mapping
        Numbers, NumPy scalars or tensors without dimensions, by name.

    Raises
    ------
    SpecError
        If one is none of these.

    Examples
    --------
    >>> check_metrics({"loss": np.float32(0.5), "rows": 3})
    {'loss': 0.5, 'rows': 3.0}
    """
    if not values:
        raise SpecError("ctx.report() has no metric: pass some by name, as in ctx.report(loss=0.5)")
    return {name: _checked(name, value) for name, value in values.items()}


def _checked(name: str, value: Any) -> float:
    number = None if isinstance(value, (str, bytes)) else _number(value)
    if number is not None:
        return number
    shape = getattr(value, "shape", None)
    if type(value).__name__ in ("SymbolicTensor", "KerasTensor") or not _is_eager(value):
        what = "a tensor of a graph, which has no value yet: call ctx.report outside of tf.function, with its result"
    elif shape is not None and len(shape):
        what = f"of shape {tuple(shape)}: report a number of it, as its mean"
    else:
        what = f"a {type(value).__name__}: expected a number, or a tensor without dimensions"
    raise SpecError(f"ctx.report: the metric {name!r} is {what}")


def _is_eager(value: Any) -> bool:
    return not hasattr(value, "graph") or hasattr(value, "numpy")


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return those of Keras's logs that are numbers."""
    found = {str(name): _number(value) for name, value in (logs or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return a number, an array or a tensor without dimensions as a float; None if it is something else."""
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "detach"):  # of torch
        value = value.detach().cpu()
    with suppress(Exception):  # whatever an object of the program's raises
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind in "biufV":  # V: floats that numpy does not have, as bfloat16
            return float(array.astype(np.float64))
    return None
