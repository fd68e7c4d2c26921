"""The cluster's interface to Spark: slots, an address, a stage that launches nodes, jobs that feed them.

This is the seam between the driver's logic and Spark: tests put a backend without Spark here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tensorflowonspark.driver.feed.job import feed_job
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.jobs import SparkJob, SparkStage
from tensorflowonspark.driver.spark.local_nodes import LocalNodes
from tensorflowonspark.driver.spark.resources import find_slots, listen
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.task.feeder import FeedSpec, NodeEndpoint
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.transport import ChannelHandler, Credentials, Server, spark_wants_tls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Backend", "Job", "SparkBackend", "Stage", "is_remote"]


def is_remote(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Job(Protocol):
    """Something that runs in the background; `SparkJob` says what each name means."""

    ended: bool
    result: Any
    error: BaseException | None

    def tasks(self) -> tuple[int, int, int]: ...  # noqa: D102
    def cancel(self) -> None: ...  # noqa: D102
    def wait(self, seconds: float) -> None: ...  # noqa: D102


class Stage(Protocol):
    """What places the nodes of a plan; `SparkStage` says what each name means."""

    @property
    def ended(self) -> bool: ...  # noqa: D102
    def problems(self) -> list[str]: ...  # noqa: D102
    def data_problem(self) -> FeedError | None: ...  # noqa: D102
    def cancel(self) -> None: ...  # noqa: D102
    def wait(self, seconds: float) -> None: ...  # noqa: D102


class Backend(Protocol):
    """What carries a cluster; `SparkBackend` says what each method does."""

    @property
    def shares_terminal(self) -> bool: ...  # noqa: D102
    def hadoop_settings(self) -> dict[str, str]: ...  # noqa: D102
    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int: ...  # noqa: D102
    def wants_tls(self) -> bool: ...  # noqa: D102
    def listen(  # noqa: D102
        self, credentials: Credentials, on_channel: ChannelHandler
    ) -> tuple[Server, tuple[str, int]]: ...
    def place(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage: ...  # noqa: D102
    def feed(  # noqa: D102
        self,
        data: "DataFrame | BatchRDD",
        targets: tuple[NodeEndpoint, ...],
        credentials: Credentials,
        order: FeedSpec,
        on_end: Callable[[], None],
    ) -> Job: ...


class SparkBackend:
    """A running Spark application.

    Parameters
    ----------
    spark : SparkSession
        Its session.
    own_nodes : int
        How many nodes, from the first one on, run beside the driver, and need no slots.

    Raises
    ------
    SpecError
        If `spark` is no SparkSession.
    """

    def __init__(self, spark: "SparkSession", own_nodes: int = 0) -> None:
        if not (hasattr(spark, "sparkContext") or is_remote(spark)):
            raise SpecError(f"spark={spark!r}: expected a SparkSession, not {type(spark).__name__}")
        self._spark = spark
        self._own_nodes = own_nodes

    @property
    def shares_terminal(self) -> bool:
        """Whether the executors' log is the driver's own standard error."""
        return str(self._spark.sparkContext.master).startswith("local[")

    def hadoop_settings(self) -> dict[str, str]:
        """Return what the nodes are to reach file systems with."""
        return hadoop_settings(self._spark)

    def wants_tls(self) -> bool:
        """Whether Spark's settings ask for encrypted connections."""
        return spark_wants_tls(self._spark)

    def find_slots(self, needed: int, wanted: int, timeout: float, had: int = 0) -> int:
        """Wait for task slots for so many nodes; return for how many there are some, or raise `SlotsError`.

        Parameters
        ----------
        needed, wanted : int
            The least and the most nodes.
        timeout : float
            Seconds to wait for executors that are to come.
        had : int
            For how many nodes there were slots before an executor was lost.
        """
        if is_remote(self._spark):
            raise SpecError(
                "a Cluster needs a driver that executors can reach, and a Spark Connect client is none: use "
                "tensorflowonspark.run or a KerasEstimator, or a session of the application's own"
            )
        own = self._own_nodes
        return find_slots(self._spark.sparkContext, needed - own, wanted - own, timeout, max(0, had - own)) + own

    def listen(self, credentials: Credentials, on_channel: ChannelHandler) -> tuple[Server, tuple[str, int]]:
        """Start the driver's server; return it with the address that executors call."""
        return listen(self._spark.sparkContext, credentials, on_channel)

    def place(self, plan: LaunchPlan, data: "DataFrame | None", on_end: Callable[[], None]) -> Stage:
        """Start the stage that places the nodes."""
        if not self._own_nodes:
            return SparkStage(self._spark, plan, data, on_end)
        stage = SparkStage(self._spark, replace(plan, first=self._own_nodes), data, on_end)
        return LocalNodes(plan, range(self._own_nodes), stage)

    def feed(
        self,
        data: "DataFrame | BatchRDD",
        targets: tuple[NodeEndpoint, ...],
        credentials: Credentials,
        order: FeedSpec,
        on_end: Callable[[], None],
    ) -> SparkJob:
        """Start a job that feeds a DataFrame or an RDD to the targets."""
        return feed_job(self._spark, data, targets, credentials, order, on_end)
