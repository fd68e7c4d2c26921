"""Spark's resources: task slots, and the address at which the driver listens.

Executors register when the cluster manager has started them: a pod whose image is pulled takes minutes, and so may the
replacement of a lost executor. The application's settings, or the executors that it has lost, show how many may come.
If no more are expected, too few slots are an error some seconds after the last executor has registered.
"""

import logging
import math
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.spark.spark_names import DYNAMIC, SLOTS, explained
from tensorflowonspark.errors import SlotsError, StartError
from tensorflowonspark.settings import port_range
from tensorflowonspark.transport import ChannelHandler, Credentials, Server

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.resource import ResourceProfile

_log = logging.getLogger(__name__)

# Executors that were requested at the application's start register within this time of each other, even on a busy host.
_SETTLING_SECONDS = 8.0
_MORE_SECONDS = 3.0  # for more slots than are needed
_CHECK_SECONDS = 0.1
_FIRST_REPORT_SECONDS, _REPORT_SECONDS = 5.0, 15.0

DYNAMIC_ALLOCATION = (
    "Spark runs no barrier stage, and so no cluster, while spark.dynamicAllocation.enabled is true (SPARK-24942), and "
    "over Spark Connect that can't be changed for one stage: set spark.dynamicAllocation.enabled=false, and ask for a "
    "fixed number of executors (spark.executor.instances)"
)


def allocates_dynamically(context: "SparkContext") -> bool:
    """Return whether Spark adds and removes executors by their use, whatever the setting is at this time."""
    with explained(DYNAMIC):
        return bool(context._jsc.sc().executorAllocationManager().isDefined())


def count_slots(context: "SparkContext", profile: "ResourceProfile | None" = None) -> int:
    """Return how many tasks the present executors can run at the same time.

    Without a profile, these are the slots of any task.
    """
    with explained(SLOTS):  # no public API has this number; Spark's own check of barrier stages uses the same call
        scala = context._jsc.sc()
        resources = scala.resourceProfileManager().defaultResourceProfile() if profile is None else _java(profile)
        return int(scala.maxNumConcurrentTasks(resources))


def free_slots(context: "SparkContext", profile: "ResourceProfile | None" = None) -> int:
    """Return how many tasks the present executors can run beside those that they run."""
    with explained(SLOTS):
        present = context._jsc.sc().statusStore().executorList(True)
        running = sum(int(present.apply(number).activeTasks()) for number in range(present.size()))
    return max(0, count_slots(context, profile) - running)


def most_slots(context: "SparkContext", profile: "ResourceProfile | None", present: int) -> int:
    """Return how many slots dynamic allocation may give: at least the present ones.

    Without a profile, these are the slots of any task.
    """
    most = _Request.of(context, profile).slots
    return max(present, sys.maxsize if most == math.inf else int(most))


def find_slots(
    context: "SparkContext",
    needed: int,
    wanted: int,
    timeout: float,
    had: int = 0,
    profile: "ResourceProfile | None" = None,
) -> int:
    """Wait until the application has the wanted slots, or at least those needed; return their number.

    Executors that were requested from the cluster manager are waited for until the time-out in seconds; it replaces one
    that was lost, before which there were `had` slots. Without a profile, these are the slots of any task. If there are
    too few, and no more are expected or none has registered in time, it raises `SlotsError`.
    """
    request = _Request.of(context, profile)
    awaited = max(request.slots, had)
    begin = time.monotonic()
    available, since, report = -1, begin, begin + _FIRST_REPORT_SECONDS
    while True:
        now = time.monotonic()
        counted = count_slots(context, profile)
        if counted != available:
            available, since = counted, now
        if available >= wanted:
            break
        if available >= needed:
            settling = 0.0 if request.is_local else _MORE_SECONDS
        elif request.is_local or (request.dynamic and needed > awaited):
            settling = 0.0
        else:
            settling = timeout if needed <= awaited or not available else _SETTLING_SECONDS
        if now - since > settling or now - begin > timeout:
            if available >= needed:
                break
            raise SlotsError(needed, available, request.advice(context, now - begin, needed <= awaited))
        if now > report and available < needed and settling == timeout:
            report = now + _REPORT_SECONDS
            _log.warning(
                "waiting for task slots: %d of %d are there, %s; up to %.0f s more (start_timeout)",
                *(available, needed, request.progress(context), timeout - (now - begin)),
            )
        time.sleep(_CHECK_SECONDS)
    return min(available, wanted)


@dataclass(frozen=True)
class _Request:
    """The executors that an application has requested from its cluster manager, according to its settings."""

    master: str
    executors: int | None  # if their number is fixed; with dynamic allocation the most
    cores: int | None  # of each
    gpus: int  # of each, as far as a task's resources include GPUs
    slots: (
        float  # of all of them, infinite without a limit; without a fixed number the most that there were at one time
    )
    dynamic: bool

    @classmethod
    def of(cls, context: "SparkContext", profile: "ResourceProfile | None" = None) -> "_Request":
        master, conf = str(context.master), context.getConf()
        dynamic = allocates_dynamically(context)
        managed = master.startswith(("k8s://", "yarn"))  # both start two executors of one core if nothing is set
        cores = _number(conf, "spark.executor.cores", 1 if managed else None)
        executors = _number(conf, "spark.executor.instances", 2 if managed else None)
        total = _number(conf, "spark.cores.max", None) if master.startswith("spark://") else None
        if master.startswith("local-cluster["):
            executors, cores = (int(number) for number in master[len("local-cluster[") : -1].split(",")[:2])
        elif total is not None:
            executors = total // cores if cores else None
        per_task = _number(conf, "spark.task.cpus", 1) or 1
        gpus_per_task = gpus = 0
        if profile is not None:
            gpus_per_task = int(profile.taskResources["gpu"].amount)
            gpus = max(_number(conf, "spark.executor.resource.gpu.amount", 0) or 0, gpus_per_task)
        slots: float
        if dynamic:
            executors = _number(conf, "spark.dynamicAllocation.maxExecutors", None)
            by_cores = math.inf if cores is None else cores // per_task
            each = min(by_cores, gpus // gpus_per_task) if gpus_per_task else by_cores
            slots = math.inf if executors is None else executors * each
        elif executors is not None and cores is not None:
            each = cores // per_task
            slots = executors * (min(each, gpus // gpus_per_task) if gpus_per_task else each)
        elif total is not None:
            slots = total // per_task
        else:
            slots = 0 if is_local(master) or profile is not None else _most_cores(context) // per_task
        return cls(master, executors, cores, gpus, slots, dynamic)

    @property
    def is_local(self) -> bool:
        """Whether the driver is the one executor."""
        return is_local(self.master)

    def progress(self, context: "SparkContext") -> str:
        """Return a description of the requested and the registered executors."""
        registered = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is among them
        if self.dynamic:
            most = (
                "" if self.executors is None else f" (at most {self.executors}: spark.dynamicAllocation.maxExecutors)"
            )
            asked = f"executors by dynamic allocation{most}"
        else:
            asked = "as many executors as it gives" if self.executors is None else f"{self.executors} executors"
        cores = f" of {self.cores} cores" if self.cores and self.executors is not None and not self.dynamic else ""
        cores += f" with {self.gpus} GPUs" if self.gpus else ""
        return f"{self.master} was asked for {asked}{cores}, and {registered} have registered"

    def advice(self, context: "SparkContext", waited: float, awaited: bool) -> str:
        """Return the outcome of the request, and the remedy."""
        if self.is_local:
            return "ask for a larger master, as in local[4], or for fewer nodes"
        what = f"{self.progress(context)} within {waited:.0f} s"
        return f"{what}: {self._remedy(context, awaited)}; {unseen_executors(context)}"

    def _remedy(self, context: "SparkContext", awaited: bool) -> str:
        if awaited:
            where = {
                "k8s": "see why pods are pending (kubectl describe pod -l spark-app-selector="
                f"{context.applicationId}: an image that is pulled, a quota, no node with room)",
                "yarn": f"see in YARN's resource manager whether the queue of {context.applicationId} has room",
            }.get(self.master[:4].rstrip(":"), "see in its UI whether it has free cores and memory")
            return f"{where}; raise start_timeout if they need longer"
        if self.dynamic:
            return (
                "raise spark.dynamicAllocation.maxExecutors or spark.executor.cores, lower spark.task.cpus, or ask for "
                "fewer nodes"
            )
        if not count_slots(context):
            return "see in its UI whether it has free cores and memory; raise start_timeout to wait longer"
        gpus = ", spark.executor.resource.gpu.amount" if self.gpus else ""
        return (
            f"ask Spark for more executors or cores (spark.executor.instances, spark.executor.cores, "
            f"spark.cores.max{gpus}), lower spark.task.cpus, or ask for fewer nodes"
        )


def is_local(master: str) -> bool:
    """Return whether the driver of a master is the one executor."""
    return master == "local" or master.startswith("local[")


def _number(conf: "SparkConf", name: str, default: int | None) -> int | None:
    value = conf.get(name)
    return int(value) if value and value.isdigit() else default


def _java(profile: "ResourceProfile") -> Any:
    return profile._java_resource_profile


def _most_cores(context: "SparkContext") -> int:
    """Return the most cores that the application's executors had at one time: a lost executor may be replaced."""
    with explained(SLOTS):
        summaries = context._jsc.sc().statusStore().executorList(False)
    changes: list[tuple[int, int]] = []
    for number in range(summaries.size()):
        each = summaries.apply(number)
        cores = int(each.totalCores())
        changes.append((int(each.addTime().getTime()), cores))
        if each.removeTime().isDefined():
            changes.append((int(each.removeTime().get().getTime()), -cores))
    most = cores = 0
    for _, change in sorted(changes):
        cores += change
        most = max(most, cores)
    return most


def unseen_executors(context: "SparkContext") -> str:
    """Return which executors an application never sees, as a text."""
    host = context.getConf().get("spark.driver.host")
    return (
        f"executors that can't reach the driver at {host}, spark.driver.host, end as they start: their logs have "
        "the reason"
    )


def driver_host(context: "SparkContext") -> tuple[str, str]:
    """Return the address at which executors reach the driver, and the one at which it listens.

    They are Spark's own (``spark.driver.host``), at which executors reach the driver anyway; ``TFOS_SERVER_HOST``
    overrides them.
    """
    conf, given = context.getConf(), os.environ.get("TFOS_SERVER_HOST")
    advertised = given or conf.get("spark.driver.host") or "localhost"
    bind = given or conf.get("spark.driver.bindAddress") or advertised
    return advertised.strip("[]"), bind.strip("[]")  # Spark writes an address of IPv6 in brackets


def listen(
    host: tuple[str, str], credentials: Credentials, on_channel: ChannelHandler, ports: str | None = None
) -> tuple[Server, tuple[str, int]]:
    """Start the driver's server; return it with the address at which executors reach it.

    Its hosts are those of `driver_host`. The port is one of `ports`, as of `port_range`; ``TFOS_SERVER_PORT``, a port
    or a range, overrides them.
    """
    advertised, bind = host
    given = os.environ.get("TFOS_SERVER_PORT")
    wanted = port_range(given, "TFOS_SERVER_PORT") if given else port_range(ports)
    try:
        server = Server((bind, wanted), credentials, on_channel=on_channel)
    except OSError as error:
        raise StartError(
            f"the driver can't listen at {bind}, port {_shown(wanted)} ({error.strerror or error}): set "
            "TFOS_SERVER_HOST to an address of this machine that executors can reach, and ports, or TFOS_SERVER_PORT, "
            "to a free port or a range of ports"
        ) from error
    return server, (advertised, int(server.port))


def _shown(ports: range) -> str:
    return f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0] or "any")
