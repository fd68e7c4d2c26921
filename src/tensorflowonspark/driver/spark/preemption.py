"""Preemptions: executors that Spark has decommissioned, or that the cluster manager has taken for itself or for others.

Spark's driver learns from the cluster manager why an executor has ended, and shows it as text (``removeReason`` of the
REST API). A supervisor notices the end of its executor earlier, within milliseconds.
"""

import re
import time
from typing import TYPE_CHECKING

from tensorflowonspark.driver.spark.private_names import PREEMPTION, explained

if TYPE_CHECKING:
    from pyspark import SparkContext

_NOTICE_SECONDS = 1.0  # for Spark to notice that an executor has ended
_REASON_SECONDS = 8.0  # for the cluster manager to say why: YARN's application master asks every three seconds
_CHECK_SECONDS = 0.05
_TAKEN = re.compile(
    "|".join(
        (
            r"^Executor decommission: ",  # of any cluster manager
            r"^Executor killed by driver",  # by dynamic allocation, or the application
            r"^worker lost",  # standalone: the master has lost the worker's process, as when its machine is taken
            r"was preempted|YARN event \(e\.g\., preemption\)|released on a \*lost\* node",
            r"was deleted by a user or the framework|brief reason: (?:Preempting|NodeLost|NodeShutdown|Shutdown)\b",
        )
    )
)


def is_preemption(reason: str) -> bool:
    """Return whether Spark has lost an executor for a reason that lies neither in the executor nor in its programs.

    Examples
    --------
    >>> is_preemption("Executor decommission: spot instance is taken")
    True
    >>> is_preemption("Command exited with code 137")
    False
    """
    return bool(_TAKEN.search(reason))


def was_preempted(context: "SparkContext", executor: str) -> bool:
    """Wait some seconds until Spark knows why an executor has ended; return whether that was a preemption.

    Parameters
    ----------
    context : SparkContext
        The application.
    executor : str
        Spark's id of the executor.
    """
    begin = time.monotonic()
    with explained(PREEMPTION):
        scala = context._jsc.sc()
        while True:
            summary = scala.statusStore().executorSummary(executor)
            if not summary.isActive():
                reason = summary.removeReason()
                return reason.isDefined() and is_preemption(str(reason.get()))
            noticed = not scala.schedulerBackend().isExecutorActive(executor)
            if time.monotonic() - begin > (_REASON_SECONDS if noticed else _NOTICE_SECONDS):
                return False
            time.sleep(_CHECK_SECONDS)
