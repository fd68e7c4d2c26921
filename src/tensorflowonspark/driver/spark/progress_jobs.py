"""The progress of a training in Spark's UI: at the end of epochs, a job without tasks whose description is the news.

Spark does not change the description of a job that has started. A job without partitions needs no slot, takes
milliseconds, and is on the page of jobs, on its time axis, and in the event log that the history server reads.
"""

import logging
import math
import time
from typing import TYPE_CHECKING

from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.driver.spark.jobs import first_cause
from tensorflowonspark.driver.spark.naming import describe_job, job_group

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)
_LEAST_SECONDS = 10.0  # between two jobs of epochs
_JOBS_PER_AGE = 50  # Spark keeps 1,000 jobs by default: a day of short epochs takes 300 of them
_METRICS = 4
_DIGITS = 4
_TEXT = 300  # characters of a failure


class ProgressJobs(MetricsListener):
    """Shows the epochs and failures of a cluster in Spark's UI.

    Of epochs that follow each other within ten seconds some are left out; the longer the training, the longer the time
    between two that are shown. The last one is always shown, when the cluster ends if not before.
    """

    def __init__(self, context: "SparkContext", store: MetricsStore) -> None:
        self._context = context
        self._store = store
        self._began = time.monotonic()
        self._shown = -math.inf
        self._pending: EpochMetrics | None = None

    def epoch_ended(self, epoch: EpochMetrics) -> None:
        """Show an epoch, unless another one was shown just now."""
        self._pending = epoch
        now = time.monotonic()
        if now - self._shown >= max(_LEAST_SECONDS, (now - self._began) / _JOBS_PER_AGE):
            self._show_pending()

    def happened(self, event: ClusterEvent) -> None:
        """Show a failure, and before it or the end the last epoch."""
        if event.kind in ("failure", "restart", "ended"):
            self._show_pending()
        if event.kind == "failure":
            self._show(f"failed: {event.text[:_TEXT]}")

    def _show_pending(self) -> None:
        epoch, self._pending = self._pending, None
        if epoch is not None:
            self._shown = time.monotonic()
            now = self._store.snapshot()
            workers = sum(each.rows_per_second is not None for each in now.nodes)
            self._show(describe_epoch(epoch, workers, now.rows_per_second))

    def _show(self, what: str) -> None:
        description = describe_job(self._store.name, self._store.cluster, what)
        try:
            self._context.setJobGroup(job_group(description), description)
            self._context.runJob(self._context.emptyRDD(), list)
        except Exception as error:  # the application has ended, or is about to
            _log.debug("%s is not shown in Spark's UI: %s", what, first_cause(error))


def describe_epoch(epoch: EpochMetrics, workers: int, rows_per_second: float | None) -> str:
    """Return an epoch and its metrics as text.

    Examples
    --------
    >>> describe_epoch(EpochMetrics(2, 0.0, 4.2, {"loss": 0.12345, "val_loss": 0.2}), 2, 4510.3)
    'epoch 3, loss 0.1235, val_loss 0.2 (2 workers, 4,510 rows/s)'
    >>> describe_epoch(EpochMetrics(0, 0.0, None, {"loss": float("nan")}), 0, None)
    'epoch 1, loss nan'
    """
    metrics = [f"{name} {value:.{_DIGITS}g}" for name, value in list(epoch.values.items())[:_METRICS]]
    pace = ""
    if workers and rows_per_second is not None:
        pace = f" ({workers} {'worker' if workers == 1 else 'workers'}, {rows_per_second:,.0f} rows/s)"
    return ", ".join([f"epoch {epoch.epoch + 1}", *metrics]) + pace
