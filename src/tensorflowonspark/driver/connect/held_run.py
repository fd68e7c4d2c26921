"""Clusters that `run` makes over Spark Connect, whose client executors can't reach: the first task is the driver.

The whole cluster is one barrier stage. The first task sends the others the address at which it listens (`allGather`);
then all launch, feed and hold their nodes as in any held cluster, while the first task also runs the driver's part.
The results of the programs, or the error, return as rows of the stage's result. If the client dies, Spark ends the
stage, and with it everything.
"""

import pickle
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.driver.connect.task_backend import TaskBackend, pieces
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.run_results import Results
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.gpu_profiles import gpu_profile_of_connect
from tensorflowonspark.driver.spark.jobs import Stage, stage_error
from tensorflowonspark.driver.spark.repartition import repartitioned, round_robin
from tensorflowonspark.errors import ClusterError, StartError
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.task.launch import PROBLEM_SCHEMA, LaunchPlan, launch_node, own_address
from tensorflowonspark.transport import spark_wants_tls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = f"{PROBLEM_SCHEMA}, outcome binary"


@dataclass(frozen=True)
class _RemoteRun:
    """The cluster that the stage runs."""

    config: ClusterConfig
    tls: bool  # whether Spark's settings ask for it
    hadoop: dict[str, str] = field(repr=False)
    feed: FeedRequest | None  # without the data, which is the tasks' input


def run_remotely(spark: "SparkSession", config: ClusterConfig, feed: FeedRequest | None) -> Results:
    """Run a cluster to its end; return what its programs returned, by the node's name.

    The errors are those of `run`.
    """
    size = len(config.spec.roles)
    if feed is None:
        frame = spark.range(0, size, 1, size)
    else:
        assert feed.data is not None
        assert not isinstance(feed.data, BatchRDD)  # `Cluster.train` alone takes one
        one = size == 1 and not feed.is_global
        frame = repartitioned(feed.data, size) if one else round_robin(feed.data, size, feed.validation_column)
        feed = replace(feed, data=None)
    remote = _RemoteRun(config, spark_wants_tls(spark), hadoop_settings(spark), feed)
    gpus = config.gpus_per_node
    options = {} if gpus is None else {"profile": gpu_profile_of_connect(spark, gpus)}
    launched = map_in_arrow(frame, partial(_task, remote), _SCHEMA, barrier=True, **options)
    rows = _collected(spark, launched, feed is not None)
    pieces = [bytes(row.outcome) for row in rows if row.outcome is not None]
    problems = [f"{config.spec.roles[row.node]} on {row.host}: {row.problem}" for row in rows if row.outcome is None]
    if problems:
        raise StartError("the cluster did not come up:\n" + "\n".join(f"  {problem}" for problem in problems))
    if not pieces:
        raise ClusterError("Spark's barrier stage ended without a result: see it in Spark's UI")
    outcome = pickle.loads(b"".join(pieces))
    if isinstance(outcome, BaseException):
        raise outcome
    assert isinstance(outcome, Results)
    return outcome


def _collected(spark: "SparkSession", frame: "DataFrame", feeds: bool) -> list[Any]:
    """Return the rows of the stage; if the wait for them is interrupted, cancel the stage."""
    tag = f"tensorflowonspark-{uuid.uuid4().hex}"
    spark.addTag(tag)
    try:
        return list(frame.collect())
    except Exception as error:
        raise stage_error(error, feeds) from error
    except BaseException:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)


# ---- in the tasks


class _StageBackend(TaskBackend, Stage):
    """A backend in the first task, and the stage of its cluster: the nodes run in the tasks of the same stage.

    All tasks run already, so it has the slots that are asked for. The end of an executor ends the stage, and with it
    the cluster; the client receives Spark's error. No process of this cluster can start a job.
    """

    def __init__(self, remote: _RemoteRun, host: str) -> None:
        super().__init__(host, remote.hadoop, remote.tls)
        self.plans: SimpleQueue[LaunchPlan | None] = SimpleQueue()  # for the task; None: there is no plan
        self._problem = ""
        self._ended = False
        self._on_end: Callable[[], None] = lambda: None

    def place(self, plan: LaunchPlan, data: Any, on_end: Callable[[], None]) -> "_StageBackend":  # noqa: ARG002
        """Give the tasks their plan."""
        self._on_end = on_end
        self.plans.put(plan)
        return self

    @property
    def ended(self) -> bool:
        """Whether this task has launched its node, or failed to."""
        return self._ended

    def problems(self) -> list[str]:
        """Return why this task could not launch its node; the problems of other tasks are in the stage's result."""
        return [self._problem] if self._problem else []

    def end(self, problem: str) -> None:
        """Note that this task has launched its node, or failed to."""
        self._problem, self._ended = problem, True
        self._on_end()


def _task(remote: _RemoteRun, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Launch a node; in the first task, run the driver's part as well."""
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    if task.partitionId():
        plan = _unpacked(task.allGather("")[0], remote)
        if plan is not None:
            yield from map(_with_outcome, launch_node(plan, batches))
        return
    backend = _StageBackend(remote, own_address(task))
    outcomes: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=lambda: outcomes.put(_outcome(remote, backend)), daemon=True).start()
    plan = backend.plans.get()
    task.allGather(_packed(plan))
    problems = list(launch_node(plan, batches)) if plan is not None else []
    backend.end("its task could not launch it" if problems else "")
    outcome = outcomes.get()
    yield from map(_with_outcome, problems)
    yield from (_row(None, None, None, piece) for piece in pieces(outcome))


def _outcome(remote: _RemoteRun, backend: _StageBackend) -> bytes:
    """Run the cluster to its end; return the pickled results of its programs, or the error."""
    cluster = Cluster._on_backend(backend, remote.config)
    try:
        cluster._start(remote.feed)
        return bytes(cloudpickle.dumps(cluster.shutdown()))
    except BaseException as error:
        return bytes(cloudpickle.dumps(error))
    finally:
        backend.plans.put(None)  # for a task that still waits for a plan


def _packed(plan: LaunchPlan | None) -> str:
    """Return a plan as the first task sends it to the others: without the program, which they have."""
    return pickle.dumps(None if plan is None else _with_program(plan, b"")).hex()


def _unpacked(text: str, remote: _RemoteRun) -> LaunchPlan | None:
    plan: LaunchPlan | None = pickle.loads(bytes.fromhex(text))
    return None if plan is None else _with_program(plan, remote.config.program)


def _with_program(plan: LaunchPlan, program: bytes) -> LaunchPlan:
    return replace(plan, config=replace(plan.config, program=program))


def _with_outcome(problem: pa.RecordBatch) -> pa.RecordBatch:
    row = problem.to_pylist()[0]
    return _row(row["node"], row["host"], row["problem"], None)


def _row(node: int | None, host: str | None, problem: str | None, outcome: bytes | None) -> pa.RecordBatch:
    columns = [pa.array([node], pa.int32()), pa.array([host], pa.string()), pa.array([problem], pa.string())]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([outcome], pa.binary())], ["node", "host", "problem", "outcome"]
    )
