"""The clusters of a trial: their epochs are reported to Optuna, and they end when the trial is pruned or cancelled."""

import logging
import threading
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING

from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.records import EpochMetrics
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from optuna import Trial

    from tensorflowonspark.driver.cluster_run import ClusterRun

_log = logging.getLogger(__name__)


class Pruning:
    """The metric by which the trials of a study are pruned, if they are.

    By default it is the validation loss, or else the loss, which fits an objective to minimise.
    """

    def __init__(self, metric: str | None, *, active: bool) -> None:
        self.active = active
        self._metric = metric
        self._lock = Lock()
        self._missed = False

    def value(self, values: Mapping[str, float]) -> float | None:
        """Return the metric's value at the end of an epoch; None if the epoch does not have it."""
        if self._metric is None:
            return values.get("val_loss", values.get("loss"))
        if self._metric not in values:
            with self._lock:
                missed, self._missed = self._missed, True
            if not missed:
                known = ", ".join(sorted(values)) or "no metric"
                text = "no trial is pruned: an epoch has reported %s, and not %s (prune_by)"
                CONSOLE.log(_log, logging.WARNING, text, known, self._metric)
        return values.get(self._metric)


class TrialWatch:
    """Follows the clusters that one trial starts."""

    def __init__(self, pruning: Pruning) -> None:
        self.trial: Trial | None = None  # once Optuna was asked for it
        self.error: Exception | None = None  # why the trial was cancelled
        self.pruned = False  # cancelled by Optuna's pruner
        self._pruning = pruning
        self._thread = 0
        self._lock = Lock()
        self._clusters: list[ClusterRun] = []
        self._next_step = 0

    def begin(self) -> None:
        """Note that the present thread is the trial's."""
        self._thread = threading.get_ident()

    def follow(self, cluster: "ClusterRun") -> None:
        """Follow a cluster from its start on; those of other threads, which may run at the same time, only to end."""
        with self._lock:
            self._clusters.append(cluster)
            error = self.error
            own = threading.get_ident() == self._thread
        if own and self._pruning.active:
            cluster.metrics.events.subscribe(_EpochReports(self))
        if error is not None:
            cluster.cancel(error)

    def about(self) -> dict[str, object]:
        """Return what identifies the trial's clusters in the lines of the console."""
        return {} if self.trial is None else {"trial": self.trial.number}

    def check(self) -> None:
        """Raise the reason if the trial is cancelled."""
        if self.error is not None:
            raise self.error

    def cancel(self, error: Exception) -> None:
        """End the trial's clusters, those to come too; who waits for them gets the error."""
        with self._lock:
            if self.error is None:
                self.error = error
            clusters = list(self._clusters)
        for each in clusters:
            each.cancel(self.error)

    def report(self, first_step: int | None, epoch: EpochMetrics) -> int:
        """Report an epoch to Optuna, and end the trial if that is not promising; return the step of its first epoch.

        `first_step` is what an earlier call for this training has returned; None if it begins.
        """
        from optuna import TrialPruned

        with self._lock:
            first = self._next_step if first_step is None else first_step
            step = first + epoch.epoch
            repeated, self._next_step = step < self._next_step, max(self._next_step, step + 1)
        value = self._pruning.value(epoch.values)
        if self.trial is None or self.error is not None or repeated or value is None:
            return first
        self.trial.report(value, step)
        if self.trial.should_prune():
            self.pruned = True
            self.cancel(TrialPruned(f"trial {self.trial.number} was pruned after epoch {epoch.epoch + 1}"))
        return first


class _EpochReports(MetricsListener):
    """Listens to one cluster. Its programs may train several times; after a restart, epochs are repeated."""

    def __init__(self, watch: TrialWatch) -> None:
        self._watch = watch
        self._first_step: int | None = None
        self._last: EpochMetrics | None = None

    def epoch_ended(self, epoch: EpochMetrics) -> None:
        """Report an epoch."""
        last, self._last = self._last, epoch
        if last is not None and epoch.attempt == last.attempt and epoch.epoch <= last.epoch:
            self._first_step = None
        self._first_step = self._watch.report(self._first_step, epoch)
