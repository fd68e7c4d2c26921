"""The task of the barrier stage that launches one node, and leaves or holds it."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa

from tensorflowonspark import processes
from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.errors import FailureKind, FeedError
from tensorflowonspark.feed_messages import FeedFailed, PartitionFed
from tensorflowonspark.messages import Failed, NodeReady
from tensorflowonspark.supervisor.assignment import Connected, Detach, NodeAssignment
from tensorflowonspark.supervisor.host import given_address, known_address, local_directory
from tensorflowonspark.task.feeder import FeedSpec, NodeEndpoint, feed_partition
from tensorflowonspark.task.gpus import task_gpus
from tensorflowonspark.transport import Credentials

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

__all__ = ["PROBLEM_SCHEMA", "LaunchPlan", "next_word", "own_address", "place", "start_supervisor"]


@dataclass(frozen=True)
class LaunchPlan:
    """All that a task must know to place its node."""

    cluster: str
    credentials: Credentials
    driver: tuple[str, int]
    spec: ClusterSpec
    program: bytes = field(repr=False)
    environment: dict[str, str]
    hadoop: dict[str, str] = field(repr=False)  # settings of file systems
    silence: float  # seconds without a sign of life after which a node is given up
    attempt: int
    first_feed: int
    level: int
    echo: bool
    tensorboard: str
    hold: bool  # stay until the node has ended
    feed: FeedSpec | None  # feed the node this task's own rows
    python: tuple[int, int]  # the driver's Python version
    first: int = 0  # the number of the node that task 0 places
    warm_nodes: bool = True  # whether nodes may be forked from a process that has imported TensorFlow


PROBLEM_SCHEMA = "node int, host string, problem string"


def place(plan: LaunchPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Place the node whose number is this task's; yield a row of `PROBLEM_SCHEMA` if that failed, and else nothing.

    What fails here is returned, not raised: Spark would repeat the whole stage several times first.
    """
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    number = plan.first + task.partitionId()
    role = plan.spec.roles[number]
    host = own_address(task)
    if sys.version_info[:2] != plan.python:
        versions = [".".join(map(str, version)) for version in (sys.version_info[:2], plan.python)]
        problem = "this executor's Python is {}, the driver's is {}: set PYSPARK_PYTHON to one version".format(
            *versions
        )
        yield _problem(number, host, problem)
        return
    try:
        process, pipe = start_supervisor(plan, number, host, _executor().pid, task_gpus(task.resources()))
    except OSError as error:
        yield _problem(number, host, f"its supervisor can't be started ({error}): see ulimit -u and -n, and memory")
        return
    try:
        answer = next_word(pipe)
        if isinstance(answer, Failed):
            yield _problem(number, host, f"{answer.reason}; {answer.advice}")
        elif plan.hold:
            _hold(plan, role, number, host, pipe, batches)
        else:
            pipe.send(Detach())
    finally:
        pipe.close()
        # Whoever started a process must wait for it, or it stays in the process table; a Spark worker lives on.
        waiter = Thread(target=process.wait, daemon=True)
        waiter.start()
        if plan.hold:
            waiter.join()
    for _ in batches:  # a Spark worker that has not read its input to the end is not used again
        pass


def start_supervisor(
    plan: LaunchPlan, number: int, host: str, owner: int, gpus: tuple[str, ...] = ()
) -> tuple[processes.Process, Connection]:
    """Start what holds a node from its start to its end; return its process and the pipe to it.

    It has this process's environment, and finds the modules that this process finds.

    Parameters
    ----------
    plan : Plan
        What runs.
    number : int
        Which of its nodes.
    host : str
        The address at which others reach this machine.
    owner : int
        The process that the node must not outlive.
    gpus : tuple of str
        Those that the node may use.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process, pipe = processes.start("tensorflowonspark.supervisor", environment)
    role = plan.spec.roles[number]
    order = NodeAssignment(
        cluster=plan.cluster,
        credentials=plan.credentials,
        driver=plan.driver,
        spec=plan.spec,
        number=number,
        role=role,
        host=host,
        jvm_pid=owner,
        program=plan.program,
        gpus=gpus,
        environment=plan.environment,
        hadoop=plan.hadoop,
        local_directory=local_directory(),
        silence=plan.silence,
        attempt=plan.attempt,
        first_feed=plan.first_feed,
        level=plan.level,
        echo=plan.echo,
        tensorboard=plan.tensorboard if role == plan.spec.chief_role else "",
        warm=plan.warm_nodes,
    )
    pipe.send(order)
    return process, pipe


def own_address(task: "BarrierTaskContext") -> str:
    """Return the address at which others reach this executor.

    That is its pod's, or the one which its host's administrator gave to Spark, or the one at which Spark has other
    executors reach it. Else it is the one from which it called the driver, which is another one behind a proxy, and on
    a host with several addresses.
    """
    seen = task.getTaskInfos()[task.partitionId()].address  # with a port
    return given_address() or known_address(_executor().cmdline()) or seen.rsplit(":", 1)[0].strip("[]")


def _executor() -> psutil.Process:
    """Return the JVM that this Python worker belongs to."""
    parents = psutil.Process().parents()
    return next((parent for parent in parents if parent.name() == "java"), parents[0])


def next_word(pipe: Connection) -> Connected | NodeReady | Failed:
    """Return what a supervisor says next; that it is gone, if it is."""
    try:
        message: Connected | NodeReady | Failed = pipe.recv()
    except (EOFError, OSError):
        return Failed(FailureKind.LOST, "its supervisor ended at once", "see the executor's log in Spark's UI")
    return message


def _hold(
    plan: LaunchPlan, role: Role, number: int, host: str, pipe: Connection, batches: Iterator[pa.RecordBatch]
) -> None:
    """Feed the node from this task's own partition, then wait until it has ended; the driver hears of its fate."""
    ready = next_word(pipe)
    if plan.feed is not None and isinstance(ready, NodeReady) and ready.feed_socket:
        target = NodeEndpoint(number, str(role), host, ready, plan.driver)
        try:
            parts = feed_partition(target, plan.credentials, plan.feed, number, 0, batches)
        except FeedError as error:  # raised, it would reach the driver as the end of some task
            pipe.send(FeedFailed(plan.feed.feed, str(error)))
        else:
            pipe.send(PartitionFed(plan.feed.feed, parts))
    with suppress(EOFError, OSError):
        while True:
            pipe.recv()


def _problem(number: int, host: str, problem: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"node": pa.array([number], pa.int32()), "host": [host], "problem": [problem]})
