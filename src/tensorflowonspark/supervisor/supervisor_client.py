"""Client side of a supervisor: start one, assign it a node, and receive its replies."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tensorflowonspark import processes
from tensorflowonspark.config import ClusterConfig, Role
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Connected, Failed, NodeReady
from tensorflowonspark.transport import Credentials


@dataclass(frozen=True)
class NodeAssignment:
    """The node that a supervisor starts: its number, its host and its cluster."""

    config: ClusterConfig
    cluster_id: str
    credentials: Credentials
    driver: tuple[str, int]  # host and port at which the driver listens
    number: int  # of the node
    host: str  # at which other hosts reach this executor
    jvm_pid: int  # of the executor, whose end ends the node
    gpus: tuple[str, ...] = ()
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # Hadoop's settings, for file systems
    local_directory: str = ""  # for temporary files of this executor
    echo: bool = True  # whether the node's output is also written to the executor's log
    interface: str = ""  # the network interface of that address, if the cluster has asked for one
    port: int = 0  # of its TensorFlow server; 0: any
    nodes_here: int = 1  # of the cluster that start on this host

    @property
    def role(self) -> Role:
        """The role of the node."""
        return self.config.spec.roles[self.number]


def start_supervisor(
    assignment: NodeAssignment, environment: Mapping[str, str]
) -> tuple[processes.Process, Connection]:
    """Start a supervisor for one node, with a `supervisor_environment`; return its process and the pipe to it."""
    process, pipe = processes.start("tensorflowonspark.supervisor", environment)
    pipe.send(assignment)
    return process, pipe


def supervisor_environment(*, initial: bool = False) -> dict[str, str]:
    """Return the environment for a supervisor: that of this process, and its module search path.

    With `initial`, it takes the variables with which this process was started (on Linux). A task of Spark does so,
    since its Python worker has run other tasks: what these have changed, as by an import of TensorFlow, would make its
    node differ from the executor's fork server.
    """
    variables = dict(os.environ)
    if initial:
        with suppress(OSError):  # a system without /proc
            pairs = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
            variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {**variables, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def receive_reply(pipe: Connection) -> Connected | NodeReady | Failed:
    """Return the next message of a supervisor, or its failure if it has ended."""
    try:
        message: Connected | NodeReady | Failed = pipe.recv()
    except (EOFError, OSError):
        return Failed(FailureKind.LOST, "its supervisor ended at once", "see the executor's log in Spark's UI")
    return message
