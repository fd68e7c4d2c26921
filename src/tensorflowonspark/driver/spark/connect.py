"""Clusters over Spark Connect, whose client executors can't reach: the first task acts as the driver.

One barrier stage does all: its tasks learn from the first one where that listens (`allGather`), and then place, feed
and hold their nodes as they always do. The first task watches all of them meanwhile. What the programs returned, or
the error, comes back as rows of the stage's result. If the client dies, Spark ends the stage, and with it everything.
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
from tensorflowonspark.driver.spark.jobs import stage_error
from tensorflowonspark.errors import ClusterError, StartError
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.supervisor.host import local_directory
from tensorflowonspark.task.launch import PROBLEM_SCHEMA, LaunchPlan, launch_node, own_address
from tensorflowonspark.transport import ChannelHandler, Credentials, Server, spark_wants_tls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run_remotely"]

_SCHEMA = f"{PROBLEM_SCHEMA}, outcome binary"
_PIECE_BYTES = 1 << 20  # of the outcome, in a row: Spark Connect bounds its messages


@dataclass(frozen=True)
class _Errand:
    """What the stage is to do."""

    settings: ClusterConfig
    tls: bool  # whether Spark's settings ask for it
    hadoop: dict[str, str] = field(repr=False)
    feeds: bool
    validation: str


def run_remotely(
    spark: "SparkSession", settings: ClusterConfig, data: "DataFrame | None", validation: str
) -> dict[str, Any]:
    """Run a cluster to its end; return what its programs returned, by the node's name.

    Raises
    ------
    ClusterError
        As `run` does.
    """
    size = len(settings.spec.roles)
    frame = spark.range(0, size, 1, size) if data is None else data.repartition(size)
    errand = _Errand(settings, spark_wants_tls(spark), hadoop_settings(spark), data is not None, validation)
    placed = map_in_arrow(frame, partial(_task, errand), _SCHEMA, barrier=True)
    rows = _collected(spark, placed, data is not None)
    pieces = [bytes(row.outcome) for row in rows if row.outcome is not None]
    problems = [f"{settings.spec.roles[row.node]} on {row.host}: {row.problem}" for row in rows if row.outcome is None]
    if problems:
        raise StartError("the cluster did not come up:\n" + "\n".join(f"  {problem}" for problem in problems))
    if not pieces:
        raise ClusterError("Spark's barrier stage ended without a result: see it in Spark's UI")
    outcome = pickle.loads(b"".join(pieces))
    if isinstance(outcome, BaseException):
        raise outcome
    return dict(outcome)


def _collected(spark: "SparkSession", frame: "DataFrame", feeds: bool) -> list[Any]:
    """Return the stage's rows; if the wait for them is broken off, so is the stage."""
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


class _OwnTasks:
    """What carries the cluster, seen from its first task: the tasks of this very stage.

    Parameters
    ----------
    host : str
        This executor's address.
    hadoop : dict
        What the client knows of file systems.
    tls : bool
        Whether Spark's settings ask for encrypted connections.
    """

    shares_terminal = False  # what the nodes print goes to the executors' log

    def __init__(self, host: str, hadoop: dict[str, str], tls: bool) -> None:
        self._host = host
        self._hadoop = hadoop
        self._tls = tls
        self.plans: SimpleQueue[LaunchPlan | None] = SimpleQueue()  # where the task takes its plan from
        self.problem_here = ""
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None

    def hadoop_settings(self) -> dict[str, str]:
        """Return what the nodes are to reach file systems with."""
        return self._hadoop

    def find_slots(self, _needed: int, wanted: int, _timeout: float, had: int = 0) -> int:  # noqa: ARG002
        """Return that there are slots: all tasks run already."""
        return wanted

    def wants_tls(self) -> bool:
        """Whether Spark's settings ask for encrypted connections."""
        return self._tls

    def listen(self, credentials: Credentials, on_channel: ChannelHandler) -> tuple[Server, tuple[str, int]]:
        """Start the server at this executor."""
        server = Server((self._host, 0), credentials, directory=local_directory(), on_channel=on_channel)
        return server, (self._host, int(server.port))

    def place(self, plan: LaunchPlan, _data: Any, on_end: Callable[[], None]) -> "_OwnTasks":
        """Give the tasks their plan."""
        self.on_end = on_end
        self.plans.put(plan)
        return self

    def feed(self, *_: Any, **__: Any) -> Any:
        """Refuse: there is no driver that could start a job."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Return why this task's own node could not be placed; those of others are in the stage's result."""
        return [self.problem_here] if self.problem_here else []

    def end(self, problem: str) -> None:
        """Note that this task is done with its own node."""
        self.problem_here, self.ended = problem, True
        self.on_end()

    def data_problem(self) -> None:
        """Return nothing: the client sees why Spark fails."""

    def cancel(self) -> None:
        """Do nothing: the tasks end with their nodes."""

    def wait(self, seconds: float) -> None:
        """Do nothing: the tasks end with their nodes."""


def _task(errand: _Errand, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Place a node; in the first task, be the driver as well."""
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    if task.partitionId():
        plan = _heard(task.allGather("")[0], errand)
        if plan is not None:
            yield from map(_with_outcome, launch_node(plan, batches))
        return
    carrier = _OwnTasks(own_address(task), errand.hadoop, errand.tls)
    outcomes: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=lambda: outcomes.put(_outcome(errand, carrier)), daemon=True).start()
    plan = carrier.plans.get()
    task.allGather(_told(plan))
    problems = list(launch_node(plan, batches)) if plan is not None else []
    carrier.end("its task could not place it" if problems else "")
    outcome = outcomes.get()
    yield from map(_with_outcome, problems)
    for start in range(0, len(outcome), _PIECE_BYTES):
        yield _row(None, None, None, outcome[start : start + _PIECE_BYTES])


def _outcome(errand: _Errand, carrier: _OwnTasks) -> bytes:
    """Lead the cluster to its end; return, pickled, what its programs returned, or the error."""
    cluster = Cluster.carried_by(carrier, errand.settings)
    try:
        if errand.feeds:
            cluster.hold_and_feed(None, errand.validation)
        else:
            cluster.start()
        return bytes(cloudpickle.dumps(cluster.shutdown()))
    except BaseException as error:
        return bytes(cloudpickle.dumps(error))
    finally:
        carrier.plans.put(None)  # if there was none, none will come


def _told(plan: LaunchPlan | None) -> str:
    """Return a plan as the first task tells it to the others: without the program, which they have."""
    return pickle.dumps(None if plan is None else _with_program(plan, b"")).hex()


def _heard(told: str, errand: _Errand) -> LaunchPlan | None:
    plan: LaunchPlan | None = pickle.loads(bytes.fromhex(told))
    return None if plan is None else _with_program(plan, errand.settings.program)


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
