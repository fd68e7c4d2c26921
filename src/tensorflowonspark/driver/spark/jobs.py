"""Spark jobs and the barrier stage: run in the background, named in Spark's UI, cancelled when no longer needed."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.spark.dynamic import Retention, allow_barrier_stages, collect_with
from tensorflowonspark.driver.spark.lost_executors import names_lost_executor
from tensorflowonspark.driver.spark.naming import describe_job, job_group, name_stages
from tensorflowonspark.driver.spark.repartition import repartitioned, round_robin
from tensorflowonspark.driver.spark.resources import DYNAMIC_ALLOCATION, allocates_dynamically
from tensorflowonspark.errors import ClusterError, FeedError
from tensorflowonspark.task.launch import PROBLEM_SCHEMA, LaunchPlan, launch_node

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_SUBMISSION_SECONDS = 0.05  # between two looks at whether Spark has the stage
_CANCEL_SECONDS = 0.2  # between two requests to cancel a job that Spark may not have known at the first

# Matched against the message of a failed job, best first: our own error, another Python error at the end of a
# traceback, the last of Java's causes.
_FEED_ERROR = re.compile(r"^ *tensorflowonspark\.errors\.FeedError: (.+)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^ *((?:\w+\.)*(?!Py4J|Python)\w+(?:Error|Exception): .+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CANCELLED = re.compile(r"\bJob \d+ cancelled\b")  # with its group, by its tag, or in Spark's UI
_JAVA_ERROR = re.compile(r"^: (.+)$", re.MULTILINE)  # below "An error occurred while calling o151.collectToPython."


class Stage:
    """What launches the nodes of a plan: of itself something that succeeds, and ends with the nodes."""

    @property
    def ended(self) -> bool:
        """Whether all its tasks have ended."""
        return True

    def problems(self) -> list[str]:
        """Return, once it has ended, why nodes could not be launched; an empty list if all were."""
        return []

    def data_problem(self) -> FeedError | None:
        """Return the error of the rows that it feeds, if it has failed because Spark could not compute them."""
        return None

    def cancelled(self) -> str:
        """Return, once it has ended, how another than this driver has cancelled it; empty if nobody has."""
        return ""

    def cancel(self) -> None:
        """Cancel its tasks."""

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for its end."""


class PartitionFunction(Protocol):
    """A function of the number of a partition, that of the attempt at it, and its rows; it returns rows of `schema`."""

    @property
    def schema(self) -> str: ...  # noqa: D102
    def __call__(  # noqa: D102
        self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]: ...


def run_in_task(function: PartitionFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply a function to the partition of this Spark task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return function(task.partitionId(), task.taskAttemptId(), batches)


def not_computed(why: str) -> FeedError:
    """Return the error for a DataFrame that Spark could not compute, or that could not be fed."""
    return FeedError(f"Spark could not compute and feed the DataFrame: {why}")


def first_cause(error: BaseException) -> str:
    r"""Return the line of Spark's long message that names the cause.

    Examples
    --------
    >>> first_cause(RuntimeError("Job aborted.\nCaused by: java.io.IOException: no disk\n\tat x.y(Z.java)"))
    'java.io.IOException: no disk'
    >>> first_cause(RuntimeError("An error occurred while calling o1.x.\n: a.b.SparkException: Job 3 cancelled"))
    'a.b.SparkException: Job 3 cancelled'
    """
    text = str(error)
    for pattern in (_FEED_ERROR, _PYTHON_ERROR, _JAVA_CAUSE, _JAVA_ERROR):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    return (text.strip().splitlines() or [type(error).__name__])[0]


def collect_rows(
    context: "SparkContext",
    rows: "DataFrame | RDD[Any]",
    description: str,
    chosen: Callable[[int], bool] | None,
) -> list[Any]:
    """Return the rows of the chosen partitions, which alone are computed; by default of all."""
    if chosen is None:
        return list(name_stages(context, rows, description).collect())
    rdd: RDD[Any] = getattr(rows, "rdd", rows)
    name_stages(context, None, description)
    numbers = [number for number in range(rdd.getNumPartitions()) if chosen(number)]
    return list(context.runJob(rdd, list, numbers)) if numbers else []


class SparkJob:
    """Runs an action that starts Spark jobs, in a separate thread.

    `on_end` is called in that thread when the action has ended, with or without an error. The description is its name
    in Spark's UI (`describe_job`).
    """

    def __init__(
        self, spark: "SparkSession", description: str, action: Callable[[], Any], on_end: Callable[[], None]
    ) -> None:
        from pyspark import InheritableThread

        self._context = spark.sparkContext
        self._own = job_group(description)  # the group of its jobs, unless the caller has one; and their tag
        self._description = description
        self._action = action
        self._on_end = on_end
        self.ended = False
        self._cancelled = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            group = self._context.getLocalProperty("spark.jobGroup.id")  # whose end is to end these jobs too
            self._context.setJobGroup(group or self._own, self._description, interruptOnCancel=True)
            self._context.addJobTag(self._own)
            if not self._cancelled:
                self.result = self._action()
        except BaseException as error:  # raised where the job is waited for
            self.error = error
        finally:
            self.ended = True
            self._on_end()

    def tasks(self) -> tuple[int, int, int]:
        """Return how many Spark tasks are done, how many are running, and how many are known in all."""
        done = running = total = 0
        with suppress(Exception):  # the application or its JVM has ended, which the job's own error shows
            tracker = self._context.statusTracker()
            for job in self._context._jsc.sc().statusTracker().getJobIdsForTag(self._own):
                found = tracker.getJobInfo(job)
                for stage in (tracker.getStageInfo(number) for number in (found.stageIds if found else ())):
                    if stage is not None:
                        done += stage.numCompletedTasks
                        running += stage.numActiveTasks
                        total += stage.numTasks
        return done, running, total

    @property
    def cancelled(self) -> str:
        """How another than this object has cancelled its Spark jobs; empty if nobody has."""
        error, text = self.error, first_cause(self.error) if self.error is not None else ""
        return text if error is not None and not self._cancelled and _CANCELLED.search(text) else ""

    def cancel(self) -> None:
        """Cancel its Spark jobs; `wait` repeats that until they have ended."""
        if not self._cancelled:
            self._cancelled = True
            self._cancel_group()

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for its end."""
        end = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < end:
            self._thread.join(_CANCEL_SECONDS)
            if self._cancelled:
                self._cancel_group()  # a job that Spark did not know yet when it was cancelled

    def _cancel_group(self) -> None:
        if self.ended:
            return
        try:
            self._context.cancelJobsWithTag(self._own)
        except Exception as error:  # the application or its JVM has ended, and the jobs with it
            _log.debug("cancelling %r: %s", self._description, error)


class Job(Protocol):
    """Spark jobs that an action starts: those of a `SparkJob`, or of a client of Spark Connect."""

    ended: bool
    result: Any
    error: BaseException | None

    @property
    def cancelled(self) -> str: ...  # noqa: D102
    def tasks(self) -> tuple[int, int, int]: ...  # noqa: D102
    def cancel(self) -> None: ...  # noqa: D102
    def wait(self, seconds: float) -> None: ...  # noqa: D102


class LaunchStage(Stage):
    """The barrier stage that launches the nodes of a plan, one in each task, as a job runs it.

    A held stage feeds its nodes, if it `feeds`.
    """

    def __init__(self, job: Job, plan: LaunchPlan, *, feeds: bool) -> None:
        self._job = job
        self._plan = plan
        self._feeds = feeds

    @property
    def ended(self) -> bool:
        """Whether all its tasks have ended."""
        return self._job.ended

    def problems(self) -> list[str]:
        """Return, once it has ended, why nodes could not be launched; an empty list if all were."""
        if self._job.error is not None:
            return [str(stage_error(self._job.error, feeds=False))]
        rows = self._job.result or ()
        return [f"{self._plan.config.spec.roles[row.node]} on {row.host}: {row.problem}" for row in rows]

    def data_problem(self) -> FeedError | None:
        """Return the error of the rows that the stage feeds, if it has failed because Spark could not compute them."""
        if self._job.error is None:
            return None
        error = stage_error(self._job.error, self._feeds)
        return error if isinstance(error, FeedError) else None

    def cancelled(self) -> str:
        """Return, once it has ended, how another than this driver has cancelled it; empty if nobody has."""
        return self._job.cancelled

    def cancel(self) -> None:
        """Cancel its tasks."""
        self._job.cancel()

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for its end."""
        self._job.wait(seconds)


class SparkStage(LaunchStage):
    """The stage of a driver with a session of its own, which divides the data that it feeds evenly over its tasks.

    `on_submitted` is called under dynamic allocation when Spark has the stage, which then keeps its executors; or when
    it is cancelled.
    """

    def __init__(
        self,
        spark: "SparkSession",
        plan: LaunchPlan,
        data: "DataFrame | None",
        on_end: Callable[[], None],
        profile: "ResourceProfile | None" = None,
        on_submitted: Callable[[], None] = lambda: None,
    ) -> None:
        self._size = len(plan.numbers)
        if data is None:
            frame = spark.range(0, self._size, 1, self._size)
        elif plan.feed is not None and plan.feed.round_robin:
            frame = round_robin(data, self._size, plan.feed.validation)
        else:
            frame = repartitioned(data, self._size)
        placed = map_in_arrow(frame, partial(launch_node, plan), PROBLEM_SCHEMA, barrier=True)
        self._spark = spark
        self._profile = profile
        self._retention = Retention(spark.sparkContext)
        self._on_submitted = on_submitted
        self._dynamic = allocates_dynamically(spark.sparkContext)
        feeds = data is not None
        self._description = describe_job(plan.program, plan.label, _describe_launch(plan, feeds))
        keeps = feeds, not plan.config.hold
        super().__init__(
            SparkJob(spark, self._description, partial(self._run, placed, *keeps), on_end), plan, feeds=feeds
        )
        if self._dynamic:
            Thread(target=self._await_submission, daemon=True).start()

    def _run(self, placed: "DataFrame", feeds: bool, frees_slots: bool) -> list[Any]:
        if not self._dynamic:
            return collect_with(placed, self._description, self._profile)
        with allow_barrier_stages(self._spark.sparkContext):
            if feeds:  # while Spark computes the rows, executors may be idle
                self._retention.keep_slots(self._spark, self._size, self._profile)
            keep = self._retention.keep if frees_slots else None
            return collect_with(placed, self._description, self._profile, keep)

    def _await_submission(self) -> None:
        while not (self._job.ended or self._job.tasks()[2]):
            time.sleep(_SUBMISSION_SECONDS)
        self._on_submitted()

    def cancel(self) -> None:
        """Cancel its tasks, and give executors back."""
        super().cancel()
        self._on_submitted()
        self._retention.release()


def _describe_launch(plan: LaunchPlan, feeds: bool) -> str:
    """Return what the stage of a plan does."""
    config, numbers = plan.config, plan.numbers
    nodes = str(config.spec)
    if len(numbers) < len(config.spec.roles):
        nodes = str(config.spec.roles[numbers[0]]) if len(numbers) == 1 else f"{len(numbers)} nodes"
    verb = ("feed and run" if feeds else "run") if config.hold else "launch"
    return f"{verb} {nodes}" + (f" (restart {config.attempt})" if config.attempt else "")


class SeparateStages(Stage):
    """Several stages as one, each of which holds its nodes: the end of a task ends those of its own stage alone.

    They have been submitted.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    @property
    def ended(self) -> bool:
        """Whether all have ended, or one without launching its nodes."""
        return all(each.ended for each in self._stages) or bool(self.problems())

    def problems(self) -> list[str]:
        """Return why nodes could not be launched."""
        return [problem for each in self._stages if each.ended for problem in each.problems()]

    def cancelled(self) -> str:
        """Return how another than this driver has cancelled one; empty if nobody has."""
        return next(filter(None, (each.cancelled() for each in self._stages)), "")

    def cancel(self) -> None:
        """Cancel their tasks."""
        for each in self._stages:
            each.cancel()

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for the end of all."""
        end = time.monotonic() + seconds
        for each in self._stages:
            each.wait(max(0.0, end - time.monotonic()))


def stage_error(error: BaseException, feeds: bool) -> ClusterError:
    """Return the error for a stage that Spark could not run.

    The launching part of a task returns its failures; what Spark raises comes from the rows, if the tasks feed any, or
    from starting Python or the barrier stage itself.
    """
    text = str(error)
    if "No module named 'tensorflowonspark'" in text:
        return ClusterError(
            "the executors' Python has no tensorflowonspark: install it there, set PYSPARK_PYTHON to a Python that has "
            "it, or ship an environment with --archives"
        )
    if "SPARK-24942" in text:
        return ClusterError(DYNAMIC_ALLOCATION)
    if feeds and not names_lost_executor(text) and not re.search(r"[Bb]arrier execution mode|BarrierJob", text):
        return not_computed(first_cause(error))
    return ClusterError(f"Spark's barrier stage failed: {text.strip() or type(error).__name__}")
