"""What a meter counts of a training: its time, the rows it takes, its steps, and the reports of its program."""

from collections.abc import Mapping
from typing import Any

from tensorflowonspark.keras.waiting import Stopwatch
from tensorflowonspark.messages import Progress, ReportedMetrics, RowSource

_FEW_READS = 10  # of a loop without ``fit``, in which its step may be traced
_BURST, _PER_SECOND = 100.0, 10.0  # reports of a program's own that are sent at once, and in the long run


class TrainingTime:
    """The time of a training, and the parts of it in which the program waits for rows, or they are read."""

    def __init__(self) -> None:
        self.training = Stopwatch()
        self.waiting = Stopwatch()  # for rows
        self.waiting_known = True
        self.feed, self.saving, self.validating = Stopwatch(), Stopwatch(), Stopwatch()  # beside the training
        self.reading = 0.0  # the seconds in which rows were read, while the program trains
        self._reads = 0  # and how often
        self.source: RowSource | None = None  # of these rows; None: this epoch has read none
        self.reads_ahead = self.traced = False

    def begin_fit(self, now: float) -> None:
        """Note that ``fit`` begins: what a loop of the program's own has waited and traced is another matter."""
        self.waiting_known, self.traced = True, False
        self.stop(now)

    def stop(self, now: float) -> None:
        """Note that the program neither trains nor waits nor validates."""
        for each in (self.training, self.waiting, self.validating):
            each.stop(now)

    def leave(self, watch: Stopwatch, now: float) -> bool:
        """Count the time from now on to something beside the training; return whether the program trained."""
        trains = self.training.runs
        self.stop(now)
        watch.start(now)
        return trains

    def add_read(self, seconds: float, source: RowSource | None, *, ahead: bool, fits: bool) -> None:
        """Note that rows were read."""
        if self.training.runs:  # else it validates
            self.reading += seconds
            self._reads += 1
            self.source, self.reads_ahead = source, ahead
            self.traced = self.traced or (self._reads > _FEW_READS and not fits)


class RowCount:
    """The rows that leave the feed in passes over it, in blocks of many steps."""

    def __init__(self) -> None:
        self.passing = False  # a pass over a feed is in progress
        self.handed = 0  # steps whose rows have left the feed, as far as they count in this epoch
        self.bytes = 0
        self.progress: Progress | None = None  # of the current pass
        self._before = 0  # rows of the passes before the current one

    def take(self, progress: Progress) -> None:
        """Note the progress of a pass."""
        last, self.progress = self.progress, progress
        if last is not None and (progress.epoch != last.epoch or progress.rows < last.rows):
            self._before += last.rows

    def count(self, progress: Progress, done: int | None) -> int:
        """Return the number of rows that the program has taken; of steps that are known, those of so many."""
        taken = 1.0 if done is None or not self.handed else min(1.0, done / self.handed)
        return self._before + round(progress.rows * taken)


class StepCount:
    """The steps of a training, and the epoch of ``fit`` that they are in; without ``fit``, all whose rows are read."""

    def __init__(self) -> None:
        self.of_fit = False  # steps are known from `fit`
        self.epoch = self.in_epoch = 0  # its number, and the number of its steps
        self.began = 0.0  # time of the epoch's begin
        self.done = 0  # steps of this epoch that have ended
        self.total = 0
        self.saved: int | None = None  # as of the totals
        self.restored: int | None = None
        self.logs: Mapping[str, Any] | None = None  # of the last step

    def begin_fit(self) -> None:
        """Note that ``fit`` begins, whose steps alone count."""
        self.of_fit, self.total = True, 0

    def begin_epoch(self, epoch: int, steps: int | None, now: float) -> None:
        """Note that an epoch begins."""
        self.epoch, self.in_epoch, self.done, self.began = epoch, steps or 0, 0, now

    def end_step(self, step: int, logs: Mapping[str, Any] | None) -> None:
        """Note that a step has ended."""
        self.total += step + 1 - self.done
        self.done, self.logs = step + 1, logs

    def take_logs(self) -> Mapping[str, Any] | None:
        """Return the metrics of the last step, once."""
        logs, self.logs = self.logs, None
        return logs


class OwnReports:
    """Reports of the program's own: of very many that name no epoch some wait, of which only the last one is sent."""

    def __init__(self) -> None:
        self.unsent: ReportedMetrics | None = None
        self._number = 0  # of the next one that names no epoch
        self._allowed, self._allowed_at = _BURST, 0.0  # reports that may be sent, and the time of that count

    def add(self, values: Mapping[str, float], epoch: int | None, now: float) -> ReportedMetrics | None:
        """Return a report that is sent now; None if it waits."""
        self._allowed = min(_BURST, self._allowed + _PER_SECOND * (now - self._allowed_at))
        self._allowed_at = now
        report = ReportedMetrics(self._number if epoch is None else epoch, dict(values), ended=True)
        self._number = report.epoch + 1
        if epoch is None and self._allowed < 1.0:
            self.unsent = report
            return None
        self._allowed, self.unsent = self._allowed - 1.0, None
        return report

    def take(self) -> ReportedMetrics | None:
        """Return the report that waits, once."""
        unsent, self.unsent = self.unsent, None
        return unsent
