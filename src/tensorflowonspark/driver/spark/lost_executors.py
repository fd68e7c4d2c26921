"""Lost executors: why Spark has lost one, and that it gives up those of a host that does not answer.

Spark's driver learns from the cluster manager why an executor has ended, and shows it as text (``removeReason`` of the
REST API): it may be a preemption, as of an executor that Spark has decommissioned, or that the cluster manager has
taken for itself or for others. A supervisor notices the end of its executor earlier, within milliseconds. A host that
does not answer Spark takes for alive for a minute or more.
"""

import re
import time
from typing import TYPE_CHECKING

from tensorflowonspark.driver.spark.spark_names import LOST_HOSTS, PREEMPTION, explained

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


def names_lost_executor(reason: str) -> bool:
    """Return whether Spark's reason for the end of a job is that it has lost an executor.

    Examples
    --------
    >>> names_lost_executor("task 0 failed. ExecutorLostFailure (executor 3 exited) Reason: worker lost")
    True
    """
    return "ExecutorLostFailure" in reason


def was_preempted(context: "SparkContext", executor: str) -> bool:
    """Wait some seconds until Spark knows why an executor has ended; return whether that was a preemption."""
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


def give_up_host(context: "SparkContext", executor: str) -> None:
    """Have Spark replace all executors on the host of one, and run nothing on them any more.

    It is what Spark does itself with an executor that sends no heartbeat for ``spark.network.timeout``
    (``HeartbeatReceiver``): the cluster manager is asked for another one, and what it had stored counts as lost.
    """
    with explained(LOST_HOSTS):
        scala, jvm = context._jsc.sc(), context._jvm
        backend, store = scala.schedulerBackend(), scala.statusStore()
        host = str(store.executorSummary(executor).hostPort()).rpartition(":")[0]
        present = store.executorList(True)
        for summary in (present.apply(number) for number in range(present.size())):
            if summary.id() != "driver" and str(summary.hostPort()).rpartition(":")[0] == host:
                scala.killAndReplaceExecutor(summary.id())
                where = jvm.scala.Option.apply(host)
                lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost("its host does not answer", where, False)
                backend.removeExecutor(summary.id(), lost)
