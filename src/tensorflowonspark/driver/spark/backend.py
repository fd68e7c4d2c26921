"""The driver's interface to Spark: slots, an address to listen at, the stage that launches nodes, jobs on partitions.

It knows nothing of feeds. Tests replace it by a backend without Spark.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.dynamic import occupy_slots
from tensorflowonspark.driver.spark.gpus import gpu_profile
from tensorflowonspark.driver.spark.jobs import (
    Job,
    PartitionFunction,
    SeparateStages,
    SparkJob,
    SparkStage,
    Stage,
    collect_chosen,
    run_in_task,
)
from tensorflowonspark.driver.spark.local_nodes import LocalNodes
from tensorflowonspark.driver.spark.resources import allocates_dynamically, find_slots, listen
from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.transport import ChannelHandler, Credentials, Server, spark_wants_tls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Backend", "SparkBackend", "is_remote"]

_CANCEL_SECONDS = 30.0  # for the tasks that occupy slots to end


def is_remote(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Backend(Protocol):
    """Where the nodes of a cluster run; `SparkBackend` documents the methods."""

    @property
    def shares_terminal(self) -> bool: ...  # noqa: D102
    def hadoop_settings(self) -> dict[str, str]: ...  # noqa: D102
    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int: ...  # noqa: D102
    def wants_tls(self) -> bool: ...  # noqa: D102
    def listen(  # noqa: D102
        self, credentials: Credentials, on_channel: ChannelHandler
    ) -> tuple[Server, tuple[str, int]]: ...
    def place(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage: ...  # noqa: D102
    def submit(  # noqa: D102
        self,
        function: PartitionFunction,
        data: "DataFrame | BatchRDD",
        description: str,
        on_end: Callable[[], None],
        chosen: Callable[[int], bool] | None = None,
    ) -> Job: ...


class SparkBackend:
    """A running Spark application.

    Parameters
    ----------
    spark : SparkSession
        Its session.
    own_nodes : int
        The number of nodes, from the first one on, that run on the driver's machine and need no slots.
    gpus_per_node : int, optional
        The number of GPUs that Spark assigns to each of the other nodes.

    Raises
    ------
    SpecError
        If `spark` is no SparkSession, or its application has no such GPUs.
    """

    def __init__(self, spark: "SparkSession", own_nodes: int = 0, gpus_per_node: int | None = None) -> None:
        if not (hasattr(spark, "sparkContext") or is_remote(spark)):
            raise SpecError(f"spark={spark!r}: expected a SparkSession, not {type(spark).__name__}")
        self._spark = spark
        self._own_nodes = own_nodes
        self._occupying: SparkJob | None = None
        self._profile = None
        if gpus_per_node is not None and not is_remote(spark):
            self._profile = gpu_profile(spark.sparkContext, gpus_per_node)

    @property
    def shares_terminal(self) -> bool:
        """Whether the executors' log is the driver's own standard error."""
        return str(self._spark.sparkContext.master).startswith("local[")

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings by which the nodes reach file systems."""
        return hadoop_settings(self._spark)

    def wants_tls(self) -> bool:
        """Whether Spark's settings ask for encrypted connections."""
        return spark_wants_tls(self._spark)

    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int:
        """Wait for task slots; return the number of nodes that have one.

        Parameters
        ----------
        needed, wanted : int
            The least and the most nodes.
        timeout : float
            Seconds to wait for executors that have not registered yet.
        had : int
            The number of nodes that had slots before an executor was lost.

        Raises
        ------
        SlotsError
            If there are fewer than needed.
        """
        if is_remote(self._spark):
            raise SpecError(
                "a Cluster needs a driver that executors can reach, and a Spark Connect client is none: use "
                "tensorflowonspark.run or a KerasEstimator, or a session of the application's own"
            )
        own, context = self._own_nodes, self._spark.sparkContext
        found = partial(find_slots, context, needed - own, wanted - own, timeout, max(0, had - own), self._profile)
        if allocates_dynamically(context) and self._occupying is None:
            occupy = partial(occupy_slots, self._spark, wanted - own, self._profile, timeout)
            self._occupying = SparkJob(self._spark, "TensorFlow cluster: request executors", occupy, lambda: None)
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

    def listen(self, credentials: Credentials, on_channel: ChannelHandler) -> tuple[Server, tuple[str, int]]:
        """Start the driver's server; return it with the address that executors call."""
        try:
            return listen(self._spark.sparkContext, credentials, on_channel)
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

        Parameters
        ----------
        function : PartitionFunction
            What the tasks run.
        data : DataFrame or BatchRDD
            Its rows are given to the function.
        description : str
            The job's name in Spark's UI.
        on_end : callable
            Called when the job has ended.
        chosen : callable, optional
            Returns whether the partition of a number is computed; by default all are.
        """
        task = partial(run_in_task, function)
        rows: Any = data.map_in_arrow(task) if isinstance(data, BatchRDD) else map_in_arrow(data, task, function.schema)
        action = rows.collect if chosen is None else partial(collect_chosen, rows, chosen)
        return SparkJob(self._spark, description, action, on_end)
