"""The Spark job that places the nodes: one barrier stage with a task for each."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.feeding import first_cause, not_computed
from tensorflowonspark.driver.job import SparkJob
from tensorflowonspark.driver.slots import DYNAMIC_ALLOCATION
from tensorflowonspark.errors import ClusterError, FeedError
from tensorflowonspark.task.place import PROBLEM_SCHEMA, place
from tensorflowonspark.task.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkStage", "stage_error"]


class SparkStage:
    """The stage on a Spark cluster.

    Parameters
    ----------
    spark : SparkSession
        Where it runs.
    plan : Plan
        What its tasks do.
    data : DataFrame or None
        What a held stage feeds: it is divided evenly over the nodes.
    on_end : callable
        Called when it has ended.
    """

    def __init__(self, spark: "SparkSession", plan: Plan, data: "DataFrame | None", on_end: Callable[[], None]) -> None:
        size = len(plan.spec.roles) - plan.first
        frame = spark.range(0, size, 1, size) if data is None else data.repartition(size)
        placed = map_in_arrow(frame, partial(place, plan), PROBLEM_SCHEMA, barrier=True)
        self._plan = plan
        self._feeds = data is not None
        self._job = SparkJob(spark, f"TensorFlow cluster of {plan.spec}", placed.collect, on_end)

    @property
    def ended(self) -> bool:
        """Whether all its tasks have ended."""
        return self._job.ended

    def problems(self) -> list[str]:
        """Return why nodes could not be placed, once it has ended; empty if all were."""
        if self._job.error is not None:
            return [str(stage_error(self._job.error, feeds=False))]
        return [f"{self._plan.spec.roles[row.node]} on {row.host}: {row.problem}" for row in self._rows()]

    def data_problem(self) -> FeedError | None:
        """Return that Spark could not compute the rows which the stage feeds, if that is why it failed."""
        if self._job.error is None:
            return None
        error = stage_error(self._job.error, self._feeds)
        return error if isinstance(error, FeedError) else None

    def cancel(self) -> None:
        """End its tasks now."""
        self._job.cancel()

    def wait(self, seconds: float) -> None:
        """Wait for its end, but not longer than asked."""
        self._job.wait(seconds)

    def _rows(self) -> Iterator[Any]:
        return iter(self._job.result or ())


def stage_error(error: BaseException, feeds: bool) -> ClusterError:
    """Return the error of a stage that Spark could not run.

    Parameters
    ----------
    error : BaseException
        What Spark raised.
    feeds : bool
        Whether the stage's tasks feed rows. Our own part of a task returns what fails: so it is the rows, or the start
        of Python, or of a barrier stage at all.
    """
    text = str(error)
    if "No module named 'tensorflowonspark'" in text:
        return ClusterError(
            "the executors' Python has no tensorflowonspark: install it there, set PYSPARK_PYTHON to a Python that has "
            "it, or ship an environment with --archives"
        )
    if "SPARK-24942" in text:
        return ClusterError(DYNAMIC_ALLOCATION)
    if feeds and not re.search(r"[Bb]arrier execution mode|BarrierJob", text):
        return not_computed(first_cause(error))
    return ClusterError(f"Spark's barrier stage failed: {text.strip() or type(error).__name__}")
