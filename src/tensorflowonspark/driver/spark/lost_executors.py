"""Lost executors: why Spark has lost one, and that it gives up those of a host that does not answer.

Spark's driver learns from the cluster manager why an executor has ended, and shows it as text (``removeReason`` of the
REST API). It is the only place where a container that was killed as a whole, for its memory or its disk, leaves a
reason: all its processes are gone, and Spark deletes its pod. Or it is a preemption, as of an executor that Spark has
decommissioned, or that the cluster manager has taken for itself or for others. A supervisor notices the end of its
executor earlier, within milliseconds. A host that does not answer Spark takes for alive for a minute or more.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import REASON_SECONDS
from tensorflowonspark.driver.spark.spark_names import DECOMMISSION, LOST_HOSTS, LOST_REASONS, explained
from tensorflowonspark.supervisor.exit_status import MEMORY_ADVICE

if TYPE_CHECKING:
    from pyspark import SparkContext

_NOTICE_SECONDS = 1.0  # for Spark to notice that an executor has ended
_OTHERS_SECONDS = 4.0  # for the reasons of others: later than that they are left out
_TOGETHER_SECONDS = 10.0  # between the ends of executors that may have one cause
_CHECK_SECONDS = 0.05
_SHOWN = 500  # characters of a reason
_PODS = "spark.kubernetes.executor.podNamePrefix"  # Spark sets it itself, unless the user has
_ALLOCATOR = "spark.kubernetes.allocation.pods.allocator"  # others than its default give pods names of their own
# The reasons in Spark's description of a pod, which has the times and the image of each container too. The
# exit code is -1 if Spark does not know its container by its name: then that of the first container.
_EXIT_CODE = re.compile(r"exited with (exit code) ((?!-1\b).+?)\.$|^\s*(exit code): (\d+)$", re.MULTILINE)
_OF_POD = re.compile(
    r"(?:brief reason|following message): (?!N/A)(.+)|termination reason: (?!Error|Completed)(.+)", re.MULTILINE
)
_DISK = re.compile(r"ephemeral|EmptyDir|DiskPressure")
_MEMORY = re.compile(r"OOMKilled|memory limits|low on resource: memory")
_DISK_ADVICE = (
    "the rows that nodes keep need more room on disk: a larger volume for spark-local-dir-1 "
    "(spark.kubernetes.executor.volumes...), more workers, or cache=None, which keeps no rows"
)
_TAKEN_ADVICE = "with restarts=... the training goes on on other executors, and such an end uses up no restart"
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


@dataclass(frozen=True)
class LostExecutor:
    """An executor that has ended, and why: in Spark's words."""

    number: str  # Spark's id of it
    reason: str  # empty if Spark knows none
    pod: str = ""  # on Kubernetes

    @property
    def preempted(self) -> bool:
        """Whether the reason lies neither in the executor nor in its programs.

        Examples
        --------
        >>> LostExecutor("3", "Executor decommission: spot instance is taken").preempted
        True
        >>> LostExecutor("3", "Command exited with code 137").preempted
        False
        """
        return bool(_TAKEN.search(self.reason))

    @property
    def advice(self) -> str:
        """The remedy, if the reason is known to have one."""
        if _DISK.search(self.reason):
            return _DISK_ADVICE
        if _MEMORY.search(self.reason):
            return MEMORY_ADVICE
        return _TAKEN_ADVICE if self.preempted else ""

    def __str__(self) -> str:
        code = _EXIT_CODE.search(self.reason)
        found = [" ".join(filter(None, code.groups()))] if code else []
        found += [each.strip() for groups in _OF_POD.findall(self.reason) for each in groups if each]
        text = ", ".join(found) or " ".join(self.reason.split())
        name = f"executor {self.number}, pod {self.pod}" if self.pod else f"executor {self.number}"
        return f"{name}: {text[:_SHOWN]}" if text else name


def names_lost_executor(reason: str) -> bool:
    """Return whether Spark's reason for the end of a job is that it has lost an executor.

    Examples
    --------
    >>> names_lost_executor("task 0 failed. ExecutorLostFailure (executor 3 exited) Reason: worker lost")
    True
    """
    return "ExecutorLostFailure" in reason


def why_lost(context: "SparkContext", executor: str, others: Iterable[str] = ()) -> list[LostExecutor]:
    """Wait some seconds until Spark knows why an executor has ended; return that, and of the others each that has too.

    The others ended within some seconds of it: which of them is to blame only their reasons show.
    """
    begin, together = time.monotonic(), time.time() - _TOGETHER_SECONDS
    with explained(LOST_REASONS):
        scala = context._jsc.sc()
        backend, store, conf = scala.schedulerBackend(), scala.statusStore(), scala.conf()
        pods = conf.get(_PODS, "") if conf.get(_ALLOCATOR, "direct") == "direct" else ""

        def find(number: str, notice: float, seconds: float, since: float = 0.0) -> list[LostExecutor]:
            summary: Any = store.executorSummary(number)
            while summary.isActive():
                noticed = not backend.isExecutorActive(number)
                if time.monotonic() - begin > (seconds if noticed else notice):
                    return []
                time.sleep(_CHECK_SECONDS)
                summary = store.executorSummary(number)
            if summary.removeTime().get().getTime() / 1000 < since:
                return []
            reason = summary.removeReason()
            pod = f"{pods}-exec-{number}" if pods else ""
            return [LostExecutor(number, str(reason.get()) if reason.isDefined() else "", pod)]

        found = find(executor, _NOTICE_SECONDS, REASON_SECONDS)
        return [*found, *(lost for number in others for lost in find(number, 0.0, _OTHERS_SECONDS, together))]


def give_up_host(context: "SparkContext", executor: str) -> None:
    """Have Spark replace all executors on the host of one, and run nothing on them any more.

    It is what Spark does itself with an executor that sends no heartbeat for ``spark.network.timeout``
    (``HeartbeatReceiver``): the cluster manager is asked for another one, and what it had stored counts as lost.
    """
    with explained(LOST_HOSTS):
        scala, jvm = context._jsc.sc(), context._jvm
        backend = scala.schedulerBackend()
        host, beside = _executors_beside(context, executor)
        for number in beside:
            scala.killAndReplaceExecutor(number)
            where = jvm.scala.Option.apply(host)
            lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost("its host does not answer", where, False)
            backend.removeExecutor(number, lost)


def leave_host(context: "SparkContext", executor: str) -> None:
    """Have Spark run no more tasks on the host of one: it decommissions all executors there, as at a notice of its own.

    They end when no task runs there any more, if ``spark.decommission.enabled`` is set; else Spark keeps them idle.
    """
    with explained(DECOMMISSION):
        backend, scheduler = context._jsc.sc().schedulerBackend(), context._jvm.org.apache.spark.scheduler
        info = scheduler.ExecutorDecommissionInfo("its host goes", context._jvm.scala.Option.empty())
        for number in _executors_beside(context, executor)[1]:
            backend.decommissionExecutor(number, info, False, False)


def find_decommissioned(context: "SparkContext", executors: Iterable[str]) -> dict[str, str]:
    """Return which executors Spark decommissions, each with its reason."""
    with explained(DECOMMISSION):
        scheduler = context._jsc.sc().taskScheduler()
        given = {number: scheduler.getExecutorDecommissionState(number).isDefined() for number in executors}
        return {number: f"Spark decommissions executor {number}" for number, is_given in given.items() if is_given}


def _executors_beside(context: "SparkContext", executor: str) -> tuple[str, list[str]]:
    """Return the host of an executor, and all executors there."""
    store = context._jsc.sc().statusStore()
    host = str(store.executorSummary(executor).hostPort()).rpartition(":")[0]
    present = store.executorList(True)
    found = [present.apply(number) for number in range(present.size())]
    there = [each.id() for each in found if str(each.hostPort()).rpartition(":")[0] == host]
    return host, [number for number in there if number != "driver"]
