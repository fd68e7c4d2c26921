"""Task slots: how many tasks the application can run at the same time, and whether that is enough."""

import time
from typing import TYPE_CHECKING

from tensorflowonspark.errors import SlotsError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["count_slots", "find_slots"]

# Executors that were asked for at the application's start register within this time of each other; the first of them
# has a JVM to start, on a host that may be busy.
_SETTLING_SECONDS = 8.0
_FIRST_SECONDS = 30.0
_MORE_SECONDS = 3.0  # for more than are needed, where those that are needed are there
_LOOK_SECONDS = 0.1


def count_slots(context: "SparkContext") -> int:
    """Return how many tasks with the default resources can run at the same time on the executors there are now."""
    scala = context._jsc.sc()  # Spark tells this to no public API; its own check of barrier stages asks here too
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def find_slots(context: "SparkContext", needed: int, wanted: int) -> int:
    """Wait until the application has the slots that are wanted, or at least those needed; return how many.

    Raises
    ------
    SlotsError
        If there are too few, some seconds after the last executor came.
    """
    available, since = -1, time.monotonic()
    while available < wanted:
        now = count_slots(context)
        if now != available:
            available, since = now, time.monotonic()
        elif time.monotonic() - since <= _patience(context, available, needed):
            time.sleep(_LOOK_SECONDS)
        elif available >= needed:
            break
        else:
            raise SlotsError(needed, available, _advice(context, available))
    return min(available, wanted)


def _patience(context: "SparkContext", available: int, needed: int) -> float:
    if available >= needed:
        return 0.0 if context.master.startswith("local[") else _MORE_SECONDS
    return _SETTLING_SECONDS if available else _FIRST_SECONDS


def _advice(context: "SparkContext", available: int) -> str:
    master = context.master
    if master.startswith("local["):
        return "ask for a larger master, as in local[4], or for fewer nodes"
    if not available:
        return f"no executor has registered with {master}; see in its UI whether it has free cores and memory"
    advice = "ask Spark for more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max)"
    return f"{advice}, lower spark.task.cpus, or ask for fewer nodes"
