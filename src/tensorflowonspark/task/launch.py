"""Tasks of the barrier stage: each launches one node, and ends or holds its slot."""

import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa

from tensorflowonspark.config import ClusterConfig, Role
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedFailed, PartitionFed
from tensorflowonspark.messages import Detach, Failed, NodeEndpoint, NodeReady
from tensorflowonspark.supervisor.host import (
    address_problem,
    advertised_address,
    configured_address,
    find_interface,
    local_directory,
)
from tensorflowonspark.supervisor.supervisor_client import (
    NodeAssignment,
    receive_reply,
    start_supervisor,
    supervisor_environment,
)
from tensorflowonspark.task.feeder import FeedSpec, feed_partition
from tensorflowonspark.task.gpus import task_gpus
from tensorflowonspark.transport import Credentials

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

_ADDRESS_SPACE = 4 << 30  # of a node with TensorFlow and Keras on a few cores, rounded up


@dataclass(frozen=True)
class LaunchPlan:
    """The nodes that the tasks of a barrier stage launch."""

    config: ClusterConfig
    cluster_id: str
    credentials: Credentials
    driver: tuple[str, int]  # host and port at which the driver listens
    hadoop: dict[str, str] = field(repr=False)  # Hadoop's settings, for file systems
    echo: bool  # whether the nodes' output is also written to the executors' log
    feed: FeedSpec | None  # of the task's own rows
    python: tuple[int, int]  # version of the driver's Python
    first_node: int = 0  # number of the node that task 0 launches
    count: int | None = None  # of the nodes from that one on; None: all
    address: tuple[str, int] | None = None  # host and port that the node must have; None: any
    program: str = "program"  # its name, for Spark's UI
    label: str = ""  # of the cluster there, whichever id a node has that is started again alone

    @property
    def numbers(self) -> range:
        """The nodes that are launched."""
        end = len(self.config.spec.roles) if self.count is None else self.first_node + self.count
        return range(self.first_node, end)

    def assignment(
        self, number: int, host: str, owner: int, gpus: tuple[str, ...] = (), nodes_here: int = 1
    ) -> NodeAssignment:
        """Return the assignment of one node.

        Other hosts reach this one at `host`, unless the cluster has asked for a network interface. The end of the
        process `owner` ends the node. If this host does not have the network interface, or a node that is fed can't
        listen at the address, it raises `LookupError`.
        """
        wanted = self.config.network_interface
        interface = None if wanted is None else find_interface(wanted)
        is_fed = self.config.spec.roles[number] in self.config.spec.fed
        if interface is None and is_fed and (problem := address_problem(host)):
            raise LookupError(
                f"it can't listen at {host}, at which others would look for it ({problem}): set SPARK_LOCAL_IP on this "
                "host, or network_interface of the cluster, to one that the other hosts reach"
            )
        return NodeAssignment(
            config=self.config,
            cluster_id=self.cluster_id,
            credentials=self.credentials,
            driver=self.driver,
            number=number,
            host=host if interface is None else interface.address,
            interface="" if interface is None else interface.name,
            jvm_pid=owner,
            gpus=gpus,
            hadoop=self.hadoop,
            local_directory=local_directory(),
            echo=self.echo,
            port=self.address[1] if self.address else 0,
            nodes_here=nodes_here,
        )


PROBLEM_SCHEMA = "node int, host string, problem string"


def launch_node(plan: LaunchPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Launch the node with the number of this task; yield a row of `PROBLEM_SCHEMA` if that fails.

    A failure is returned, not raised: Spark would repeat the whole stage several times.
    """
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    number = plan.first_node + task.partitionId()
    role = plan.config.spec.roles[number]
    host = own_address(task)
    if sys.version_info[:2] != plan.python:
        versions = [".".join(map(str, version)) for version in (sys.version_info[:2], plan.python)]
        problem = "this executor's Python is {}, the driver's is {}: set PYSPARK_PYTHON to one version".format(
            *versions
        )
        yield _problem(number, host, problem)
        return
    if plan.address is not None and host != plan.address[0]:
        problem = f"the slot is on this host, and TensorFlow looks for the node at {plan.address[0]}:{plan.address[1]}"
        yield _problem(number, host, problem)
        return
    if problem := _memory_problem():
        yield _problem(number, host, problem)
        return
    try:
        assignment = plan.assignment(number, host, _executor().pid, task_gpus(task.resources()), _tasks_here(task))
        process, pipe = start_supervisor(assignment, supervisor_environment(initial=True))
        host = assignment.host
    except LookupError as error:
        yield _problem(number, host, str(error))
        return
    except OSError as error:
        yield _problem(number, host, f"its supervisor can't be started ({error}): see ulimit -u and -n, and memory")
        return
    try:
        reply = receive_reply(pipe)
        if isinstance(reply, Failed):
            yield _problem(number, host, f"{reply.reason}; {reply.advice}")
        elif plan.config.hold:
            _hold(plan, role, number, host, pipe, batches)
        else:
            pipe.send(Detach())
    finally:
        pipe.close()
        # A process stays in the process table until its parent waits for it, and Spark's worker runs on.
        waiter = Thread(target=process.wait, daemon=True)
        waiter.start()
        if plan.config.hold:
            waiter.join()
    for _ in batches:  # Spark reuses a worker only if it has read its input to the end
        pass


def _memory_problem() -> str:
    """Return why a node could not load its libraries within the address space of this task, which it inherits."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= _ADDRESS_SPACE:
        return ""
    return (
        f"spark.executor.pyspark.memory, or ulimit -v, limits the address space of a node to {limit >> 20} MiB, and "
        f"TensorFlow maps {_ADDRESS_SPACE >> 30} GiB: leave the setting out, and give nodes memory by "
        "spark.executor.memoryOverhead"
    )


def own_address(task: "BarrierTaskContext") -> str:
    """Return the address at which other hosts reach this executor.

    That is its pod's, or the one configured for Spark, or the one that Spark has advertised to other executors.
    Otherwise it is the one from which it connected to the driver, which differs behind a proxy and on a host with
    several addresses.
    """
    source = task.getTaskInfos()[task.partitionId()].address  # with a port
    return configured_address() or advertised_address(_executor().cmdline()) or source.rsplit(":", 1)[0].strip("[]")


def _tasks_here(task: "BarrierTaskContext") -> int:
    """Return how many tasks of the stage have the host of this one."""
    hosts = [each.address.rsplit(":", 1)[0] for each in task.getTaskInfos()]
    return hosts.count(hosts[task.partitionId()])


def _executor() -> psutil.Process:
    """Return the JVM that started this Python worker."""
    parents = psutil.Process().parents()
    return next((parent for parent in parents if parent.name() == "java"), parents[0])


def _hold(
    plan: LaunchPlan, role: Role, number: int, host: str, pipe: Connection, batches: Iterator[pa.RecordBatch]
) -> None:
    """Feed the node from this task's partition, and wait until it has ended; the supervisor reports to the driver."""
    ready = receive_reply(pipe)
    if plan.feed is not None and isinstance(ready, NodeReady) and ready.feed_socket:
        target = NodeEndpoint(number, str(role), host, ready, plan.driver)
        try:
            parts = feed_partition(target, plan.credentials, plan.feed, number, 0, batches)
            outcome: FeedFailed | PartitionFed = PartitionFed(plan.feed.feed, parts)
        except FeedError as error:  # an exception would reach the driver as the failure of any task
            outcome = FeedFailed(plan.feed.feed, str(error))
        with suppress(OSError):  # a node that has returned before its last row has no supervisor any more
            pipe.send(outcome)
    with suppress(EOFError, OSError):
        while True:
            pipe.recv()


def _problem(number: int, host: str, problem: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"node": pa.array([number], pa.int32()), "host": [host], "problem": [problem]})
