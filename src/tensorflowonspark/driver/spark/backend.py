"""The driver's interface to Spark: slots, an address to listen at, the stage that launches nodes, jobs on partitions.

It knows nothing of feeds. Tests replace it by a backend without Spark.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.dynamic import occupy_slots
from tensorflowonspark.driver.spark.gpu_profiles import gpu_profile
from tensorflowonspark.driver.spark.jobs import (
    Job,
    PartitionFunction,
    SeparateStages,
    SparkJob,
    SparkStage,
    Stage,
    collect_rows,
    first_cause,
    run_in_task,
)
from tensorflowonspark.driver.spark.ledger import Lease
from tensorflowonspark.driver.spark.local_nodes import LocalNodes
from tensorflowonspark.driver.spark.lost_executors import (
    LostExecutor,
    find_decommissioned,
    give_up_host,
    leave_host,
    why_lost,
)
from tensorflowonspark.driver.spark.resources import allocates_dynamically, driver_host, find_slots, free_slots, listen
from tensorflowonspark.driver.spark.slots import ApplicationSlots, Reservation
from tensorflowonspark.driver.spark.spark_names import HADOOP, explained
from tensorflowonspark.errors import RequirementError, SpecError
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.transport import ChannelHandler, Credentials, Server, spark_wants_tls

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_CANCEL_SECONDS = 30.0  # for the tasks that occupy slots to end


def is_remote(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@dataclass(frozen=True)
class SlotsWanted:
    """The slots that a cluster needs for all its nodes."""

    name: str  # of the cluster, for messages
    needed: int  # the least nodes
    wanted: int  # and the most
    timeout: float  # seconds to wait for executors that have not registered yet
    had: int = 0  # nodes that had slots before an executor was lost
    check: Callable[[], object] = lambda: None  # called during the wait for other clusters; what it raises ends it


class Backend:
    """Where the nodes of a cluster run: of itself a place on this machine that has slots for any cluster.

    `SparkBackend` is the one of a driver with a Spark session.
    """

    @property
    def shares_terminal(self) -> bool:
        """Whether the nodes' output appears on this process's standard error without any doing."""
        return False

    def reservation(self) -> Reservation | None:
        """Return the slots that are reserved for the clusters of this thread, if there are any."""
        return None

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings by which the nodes reach file systems."""
        return {}

    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int:  # noqa: ARG002
        """Wait for task slots; return the number of nodes that have one."""
        return wanted

    def reserve_slots(self, request: SlotsWanted) -> int:
        """Wait for slots, and hold them until `release_slots`; return the number of nodes that have one."""
        return self.find_slots(request.needed, request.wanted, request.timeout, request.had)

    def release_slots(self) -> None:
        """Give the slots back that `reserve_slots` has taken, if there are any."""

    def why_lost(self, executor: str, others: Iterable[str] = ()) -> list[LostExecutor]:  # noqa: ARG002
        """Return why an executor has ended, if that is known, and of the others those that ended at the same time."""
        return []

    def give_up_host(self, executor: str) -> None:
        """Have nothing more run on the host of an executor, which does not answer."""

    @property
    def decommissions(self) -> bool:
        """Whether executors may be decommissioned."""
        return False

    def find_decommissioned(self, executors: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """Return which executors are decommissioned, each with the reason."""
        return {}

    def leave_host(self, executor: str) -> None:
        """Have nothing more run on the host of an executor, which goes."""

    def free_slots(self) -> int:
        """Return how many slots have no task at present."""
        return 0

    def wants_tls(self) -> bool:
        """Whether the settings ask for encrypted connections."""
        return False

    def driver_host(self) -> tuple[str, str]:
        """Return the driver's address as others reach it, and the one that it listens at."""
        return "127.0.0.1", "127.0.0.1"

    def listen(
        self, credentials: Credentials, on_channel: ChannelHandler, ports: str | None
    ) -> tuple[Server, tuple[str, int]]:
        """Start the driver's server; return it with the address that nodes call."""
        return listen(self.driver_host(), credentials, on_channel, ports)

    def place(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage:
        """Start the stage that launches the nodes."""
        raise NotImplementedError

    def submit(
        self,
        function: PartitionFunction,
        data: "DataFrame | BatchRDD",
        description: str,
        on_end: Callable[[], None],
        chosen: Callable[[int], bool] | None = None,
    ) -> Job:
        """Start a job that applies a function to each partition of its data, and collects the rows it returns."""
        raise NotImplementedError


class SparkBackend(Backend):
    """A running Spark application.

    `own_nodes`, the first ones, run on the driver's machine and need no slots. An application without as many GPUs for
    each other node is refused (`SpecError`).
    """

    def __init__(
        self,
        spark: "SparkSession",
        own_nodes: int = 0,
        gpus_per_node: int | None = None,
        program: str = "TensorFlow cluster",
    ) -> None:
        if not hasattr(spark, "sparkContext"):
            raise SpecError(f"spark={spark!r}: expected a SparkSession, not {type(spark).__name__}")
        self._spark = spark
        self._own_nodes = own_nodes
        self._program = program
        self._occupying: SparkJob | None = None
        self._lease: Lease | None = None
        self._profile = None
        if gpus_per_node is not None:
            self._profile = gpu_profile(spark.sparkContext, gpus_per_node)

    @property
    def shares_terminal(self) -> bool:
        """Whether the executors' log is the driver's own standard error."""
        return str(self._spark.sparkContext.master).startswith("local[")

    def reservation(self) -> Reservation | None:
        """Return the slots that are reserved for the clusters of this thread, if there are any."""
        return ApplicationSlots(self._spark.sparkContext).reservation()

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings by which the nodes reach file systems."""
        with explained(HADOOP):
            return hadoop_settings(self._spark)

    def wants_tls(self) -> bool:
        """Whether Spark's settings ask for encrypted connections."""
        return spark_wants_tls(self._spark)

    def reserve_slots(self, request: SlotsWanted) -> int:
        """Hold slots until `release_slots`, once no other cluster does; return how many nodes have one.

        A cluster that holds some already, since its nodes are started again, does not go to the end of the queue.

        It raises `SlotsError` if the application has fewer than needed, or the wait could never end, and `ClusterError`
        if the application ends meanwhile.
        """
        own, slots = self._own_nodes, ApplicationSlots(self._spark.sparkContext, self._profile)
        needed, found = request.needed - own, request.wanted
        dynamic = allocates_dynamically(self._spark.sparkContext)
        if not dynamic or needed > slots.capacity():
            found = self.find_slots(request.needed, found, request.timeout, request.had)
            self._free_slots()  # the tasks that occupy slots must not keep them from the cluster that is waited for
        lease = self._lease
        if lease is None:
            lease = self._lease = slots.acquire(request.name, needed, found - own, request.check)
        else:
            lease.grow(found - own)
        try:
            if dynamic or lease.waited:  # executors may have been lost
                had = max(request.had, lease.count + own)
                found = self.find_slots(request.needed, lease.count + own, request.timeout, had)
            lease.shrink(max(needed, min(found - own, lease.limit())))
        except BaseException:
            self.release_slots()
            raise
        return lease.count + own

    def release_slots(self) -> None:
        """Give the slots back that `reserve_slots` has taken, if there are any."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def why_lost(self, executor: str, others: Iterable[str] = ()) -> list[LostExecutor]:
        """Return why Spark has lost an executor, if that is known, and of the others those that ended at the same time.

        Spark may learn that later than the driver learns of the failure of a node: it is waited for, some seconds.

        `executor` is empty for the driver.
        """
        if not executor:
            return []
        try:
            return why_lost(self._spark.sparkContext, executor, others)
        except Exception as error:  # the application has ended, or Spark has forgotten the executor
            _log.warning("why executor %s has ended is unknown: %s", executor, first_cause(error))
            return []

    def give_up_host(self, executor: str) -> None:
        """Have Spark run nothing more on the host of an executor, which does not answer, and replace what it has there.

        `executor` is empty for the driver.
        """
        self._avoid(give_up_host, executor)

    def leave_host(self, executor: str) -> None:
        """Have Spark run nothing more on the host of an executor, which goes; `executor` is empty for the driver."""
        self._avoid(leave_host, executor)

    def _avoid(self, ask: "Callable[[SparkContext, str], None]", executor: str) -> None:
        if not executor:
            return
        try:
            ask(self._spark.sparkContext, executor)
        except Exception as error:  # the application has ended, or Spark has forgotten the executor
            _log.warning("the host of executor %s may be used again: %s", executor, first_cause(error))

    @property
    def decommissions(self) -> bool:
        """Whether Spark decommissions executors."""
        if self.shares_terminal:
            return False
        enabled = self._spark.sparkContext.getConf().get("spark.decommission.enabled", "false")
        return str(enabled).lower() == "true"

    def find_decommissioned(self, executors: Collection[str]) -> dict[str, str]:
        """Return which executors Spark decommissions, each with what it says of that."""
        try:
            return find_decommissioned(self._spark.sparkContext, executors)
        except RequirementError:
            raise
        except Exception as error:  # the application has ended
            _log.info("which executors are decommissioned is unknown: %s", first_cause(error))
            return {}

    def free_slots(self) -> int:
        """Return how many slots have no task at present; 0 if that is unknown."""
        try:
            return free_slots(self._spark.sparkContext, self._profile) + self._own_nodes
        except Exception as error:  # the application has ended
            _log.info("the free slots are unknown: %s", first_cause(error))
            return 0

    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int:
        """Wait for task slots; return the number of nodes that have one.

        Executors that have not registered yet are waited for until the time-out in seconds; `had` is the number of
        nodes that had slots before an executor was lost. Fewer than needed are a `SlotsError`.
        """
        own, context = self._own_nodes, self._spark.sparkContext
        found = partial(find_slots, context, needed - own, wanted - own, timeout, max(0, had - own), self._profile)
        if allocates_dynamically(context) and self._occupying is None:
            occupy = partial(occupy_slots, self._spark, wanted - own, self._profile, timeout)
            self._occupying = SparkJob(self._spark, f"{self._program}: request executors", occupy, lambda: None)
        try:
            return found() + own
        except BaseException:
            self._free_slots()
            raise

    def _free_slots(self) -> None:
        """End the tasks that occupy slots until the stage of the nodes takes them."""
        job, self._occupying = self._occupying, None
        if job is not None:
            job.cancel()
            job.wait(_CANCEL_SECONDS)

    def driver_host(self) -> tuple[str, str]:
        """Return the driver's address as others reach it, and the one that it listens at."""
        return driver_host(self._spark.sparkContext)

    def listen(
        self, credentials: Credentials, on_channel: ChannelHandler, ports: str | None
    ) -> tuple[Server, tuple[str, int]]:
        """Start the driver's server; return it with the address that executors call."""
        try:
            return super().listen(credentials, on_channel, ports)
        except BaseException:
            self._free_slots()
            raise

    def place(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage:
        """Start the stage that launches the nodes."""
        own, others = range(self._own_nodes), replace(plan, first_node=self._own_nodes)
        if plan.first_node or not own:
            return self._place_on_executors(plan, data, on_end)
        return LocalNodes(plan, own, self._place_on_executors(others, data, on_end))

    def _place_on_executors(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage:
        plans = [plan]
        if plan.config.hold and plan.config.restarts_nodes:  # Spark ends all tasks of a barrier stage with one of them
            plans = [replace(plan, first_node=number, count=1) for number in plan.numbers]
        stages = [SparkStage(self._spark, each, data, on_end, self._profile, self._free_slots) for each in plans]
        return stages[0] if len(stages) == 1 else SeparateStages(stages)

    def submit(
        self,
        function: PartitionFunction,
        data: "DataFrame | BatchRDD",
        description: str,
        on_end: Callable[[], None],
        chosen: Callable[[int], bool] | None = None,
    ) -> SparkJob:
        """Start a job that applies a function to each partition of its data, and collects the rows it returns.

        `chosen` returns whether the partition of a number is computed; by default all are.
        """
        task = partial(run_in_task, function)
        rows: Any = data.map_in_arrow(task) if isinstance(data, BatchRDD) else map_in_arrow(data, task, function.schema)
        collect = partial(collect_rows, self._spark.sparkContext, rows, description, chosen)
        return SparkJob(self._spark, description, collect, on_end)
