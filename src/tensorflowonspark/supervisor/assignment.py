"""The assignment that a Spark task sends to the supervisor that it starts, and the replies."""

from dataclasses import dataclass, field

from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.transport import Credentials

__all__ = ["Connected", "Detach", "NodeAssignment"]


@dataclass(frozen=True)
class NodeAssignment:
    """One node's whole order: who it is, where it belongs, what it runs."""

    cluster: str  # the cluster's id
    credentials: Credentials
    driver: tuple[str, int]  # where the driver listens
    spec: ClusterSpec
    number: int  # the node's number
    role: Role
    host: str  # the address by which others reach this executor
    jvm_pid: int  # the executor's process; nothing of ours outlives it
    program: bytes = field(repr=False)  # the user's function and its arguments, by cloudpickle
    gpus: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)  # what the user wants set in the node
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # settings of file systems
    local_directory: str = ""  # where Spark keeps temporary files on this executor
    level: int = 0  # lines below this logging level stay on the executor
    echo: bool = True  # whether lines also go to the executor's log
    silence: float = 30.0  # seconds without a sign of life after which the node is given up
    attempt: int = 0  # how often the cluster was started before
    first_feed: int = 0  # that the program is given
    tensorboard: str = ""  # log directory of TensorBoard, for the chief only
    warm: bool = False  # whether the node may be forked from a process that has imported TensorFlow


@dataclass(frozen=True)
class Connected:
    """From the supervisor: the driver has been reached."""


@dataclass(frozen=True)
class Detach:
    """From the task: I leave now; go on without me."""
