"""Clusters under dynamic allocation: executors that are requested, kept, and given back.

Spark refuses a barrier stage while ``spark.dynamicAllocation.enabled`` is true (SPARK-24942), since executors may go
between two of its tasks' starts. The refusal looks at the setting alone; what adds and removes executors runs on
without it. So the executors are here first, and the setting is false while the stage runs.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.spark.naming import name_stages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_SETTING = "spark.dynamicAllocation.enabled"
_CACHED_TIMEOUT = "spark.dynamicAllocation.cachedExecutorIdleTimeout"  # infinite by default
_lock = Lock()
_suspended: dict[str, tuple[int, str]] = {}  # barrier stages of an application at this time; the setting before


@contextmanager
def allow_barrier_stages(context: "SparkContext") -> Iterator[None]:
    """Set ``spark.dynamicAllocation.enabled`` to false in the block, also for others that are in such a block."""
    application, conf = str(context.applicationId), context._jsc.sc().conf()
    with _lock:
        stages, before = _suspended.get(application) or (0, conf.get(_SETTING, "false"))
        _suspended[application] = stages + 1, before
        conf.set(_SETTING, "false")
    try:
        yield
    finally:
        with _lock:
            stages, before = _suspended.pop(application)
            if stages > 1:
                _suspended[application] = stages - 1, before
            else:
                with suppress(Exception):  # the application has ended
                    conf.set(_SETTING, before)


def occupy_slots(spark: "SparkSession", count: int, profile: "ResourceProfile | None", seconds: float) -> Any:
    """Run tasks that only sleep, so that Spark allocates executors for them and removes none; cancel their job.

    They end by themselves after so many seconds.
    """
    sleep = f"java_method('java.lang.Thread', 'sleep', {int(seconds * 1000)}L)"  # ends at once when it is cancelled
    return collect_with(spark.range(0, count, 1, count).selectExpr(sleep), "request executors", profile)


def collect_with(
    frame: "DataFrame",
    description: str,
    profile: "ResourceProfile | None",
    keep: "Callable[[RDD[Any]], object] | None" = None,
) -> list[Any]:
    """Return the rows of a DataFrame whose last stage has a profile; pass its RDD to a function before it runs."""
    context = frame.sparkSession.sparkContext
    if profile is None and keep is None:
        return list(name_stages(context, frame, description).collect())
    rows: RDD[Any] = frame.rdd
    if profile is not None:
        rows = rows.withResources(profile)
    if keep is not None:
        keep(rows)
    return list(name_stages(context, rows, description).collect())


class Retention:
    """Executors that Spark does not remove for being idle, because they hold cached rows."""

    def __init__(self, context: "SparkContext") -> None:
        self._context = context
        self._kept: list[RDD[Any]] = []

    def keep(self, rows: "RDD[Any]") -> None:
        """Cache an RDD, which keeps the executors that compute it."""
        from pyspark import StorageLevel

        limit = self._context.getConf().get(_CACHED_TIMEOUT)
        if limit and limit != "infinity":
            text = "%s=%s: an executor without Spark tasks for that long is removed, with its nodes; leave it unset"
            _log.warning(text, _CACHED_TIMEOUT, limit)
        self._kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))

    def keep_slots(self, spark: "SparkSession", count: int, profile: "ResourceProfile | None") -> None:
        """Keep executors with so many slots, by a barrier stage: its tasks run at the same time."""
        frame = spark.range(0, count, 1, count)
        collect_with(map_in_arrow(frame, _pass_on, "id long", barrier=True), "keep slots", profile, self.keep)

    def release(self) -> None:
        """Leave the executors to dynamic allocation again."""
        while self._kept:
            with suppress(Exception):  # the application has ended
                self._kept.pop().unpersist()


def _pass_on(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    return batches
