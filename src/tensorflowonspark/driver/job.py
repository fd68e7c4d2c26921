"""A Spark job of ours: run in the background, named in Spark's UI, ended when it is no longer wanted."""

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkJob"]

_log = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.2


class SparkJob:
    """Runs an action that starts Spark jobs in a thread of its own.

    Parameters
    ----------
    spark : SparkSession
        Where it runs.
    description : str
        What Spark's UI calls it.
    action : callable
        Starts the jobs and returns their result.
    on_end : callable
        Called, in that thread, when the action has ended in whatever way.
    """

    def __init__(
        self, spark: "SparkSession", description: str, action: Callable[[], Any], on_end: Callable[[], None]
    ) -> None:
        from pyspark import InheritableThread

        self._context = spark.sparkContext
        self._group = f"tensorflowonspark-{uuid.uuid4().hex}"
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
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            if not self._cancelled:
                self.result = self._action()
        except BaseException as error:  # whoever waits for the job raises it
            self.error = error
        finally:
            self.ended = True
            self._on_end()

    def tasks(self) -> tuple[int, int, int]:
        """Return how many of its Spark tasks are done, are running, and there are in all, as far as is known."""
        done = running = total = 0
        with suppress(Exception):  # the application or its JVM is gone: whoever waits will learn it otherwise
            tracker = self._context.statusTracker()
            for job in tracker.getJobIdsForGroup(self._group):
                found = tracker.getJobInfo(job)
                for stage in (tracker.getStageInfo(number) for number in (found.stageIds if found else ())):
                    if stage is not None:
                        done += stage.numCompletedTasks
                        running += stage.numActiveTasks
                        total += stage.numTasks
        return done, running, total

    def cancel(self) -> None:
        """End its Spark jobs, now; `wait` sees to it that they do end."""
        if not self._cancelled:
            self._cancelled = True
            self._cancel_group()

    def wait(self, seconds: float) -> None:
        """Wait for its end, but not longer than asked."""
        end = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < end:
            self._thread.join(_AGAIN_SECONDS)
            if self._cancelled:
                self._cancel_group()  # a job that Spark did not know yet when it was cancelled

    def _cancel_group(self) -> None:
        if self.ended:
            return
        try:
            self._context.cancelJobGroup(self._group)
        except Exception as error:  # the application or its JVM is gone, and the jobs with it
            _log.debug("cancelling %r: %s", self._description, error)
