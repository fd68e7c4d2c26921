"""A Spark job of ours: run in the background, named in Spark's UI, ended when it is no longer wanted."""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkJob"]


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
            self.result = self._action()
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._on_end()

    def cancel(self) -> None:
        """End its Spark jobs, now."""
        if not self.ended and not self._cancelled:
            self._cancelled = True
            self._context.cancelJobGroup(self._group)

    def wait(self, seconds: float) -> None:
        """Wait for its end, but not longer than asked."""
        self._thread.join(seconds)
