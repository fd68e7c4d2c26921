"""Messages between driver, supervisor and node, sent over channels that have shown the cluster's token.

A supervisor forwards what its node says to the driver, and what the driver says to its node; the driver knows who
speaks by the channel, so that no message names its sender.
"""

from dataclasses import dataclass
from enum import Enum

from tensorflowonspark.config import Role
from tensorflowonspark.errors import FailureKind

__all__ = [
    "HEARTBEATS_PER_TIMEOUT",
    "Accepted",
    "Active",
    "CheckpointSaved",
    "Contributed",
    "Contribution",
    "Failed",
    "FeedWanted",
    "Heartbeat",
    "Idle",
    "InferenceReady",
    "Lines",
    "Member",
    "Members",
    "NoMoreFeeds",
    "NodeLost",
    "NodeReady",
    "NodeStatus",
    "PortReleased",
    "Probe",
    "ProbeReply",
    "Progress",
    "Register",
    "ReleasePort",
    "Returned",
    "RootCause",
    "Serving",
    "StatusRequest",
    "Stop",
    "TensorBoardUp",
    "TensorFlowImported",
    "WaitsFor",
]


HEARTBEATS_PER_TIMEOUT = (
    6  # how often a supervisor says that it lives, in the time after which its silence means something
)


@dataclass(frozen=True)
class Member:
    """One node as the others see it."""

    number: int
    role: Role
    host: str
    port: int  # of its TensorFlow server
    gpus: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return ``host:port`` of the node's TensorFlow server."""
        return f"{self.host}:{self.port}"


class WaitsFor(Enum):
    """What a node waits for that is not its own to bring about."""

    NOTHING = 0
    FEED = 1  # the next feed, or the others
    ROWS = 2  # of a stream
    STORAGE = 3  # a file system


# ---- from the node or its supervisor to the driver


@dataclass(frozen=True)
class Register:
    """The first word of a supervisor: its node's addresses and the GPUs that Spark gave the task."""

    member: Member
    cluster: str
    pid: int
    jvm_pid: int


@dataclass(frozen=True)
class Heartbeat:
    """The supervisor lives; said to the driver and the node, so that its silence means something."""


@dataclass(frozen=True)
class NodeReady:
    """The node is up; where it takes rows, if it is fed: a Unix socket, and a TCP port for tasks on other hosts."""

    feed_socket: str = ""
    feed_port: int = 0


@dataclass(frozen=True)
class Lines:
    """Lines that the node printed."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """Where the node's program is in its data; steps and rows are those of this epoch on this node."""

    epoch: int
    step: int
    steps: int
    rows: int


@dataclass(frozen=True)
class FeedWanted:
    """The program asks for feed number `feed`: it is done with those before."""

    feed: int


@dataclass(frozen=True)
class Serving:
    """The program serves others from now on and will not return."""


@dataclass(frozen=True)
class InferenceReady:
    """The program has said what answers inference from now on."""


@dataclass(frozen=True)
class CheckpointSaved:
    """The program has written a checkpoint; feeds before this one it can do without, if it begins again."""

    feed: int


@dataclass(frozen=True)
class Returned:
    """The program ended; `result` is what it returned, pickled."""

    result: bytes


@dataclass(frozen=True)
class Failed:
    """The node failed."""

    kind: FailureKind
    reason: str
    advice: str = ""
    traceback: str = ""
    output: str = ""


@dataclass(frozen=True)
class NodeStatus:
    """Where the node's program is just now."""

    waits_for: WaitsFor
    in_tensorflow: bool  # its main thread waits for an operation
    in_epoch: bool  # it has taken some of an epoch's batches, and not all
    stack: str  # of its main thread, from the user's own frames on


@dataclass(frozen=True)
class Idle:
    """The node has used no processor time for so long; without `where` it has not answered where it is either."""

    seconds: float
    where: NodeStatus | None


@dataclass(frozen=True)
class Active:
    """A node that was idle is so no longer."""


@dataclass(frozen=True)
class ProbeReply:
    """The answer to a `Probe` of this number: supervisor and node are there, or their failure has been sent."""

    number: int


@dataclass(frozen=True)
class Contribution:
    """A piece of what the program gives to a collective of the workers (`driver/collectives.py`).

    The first one is empty, and reports that this worker has come to it. `call` is what the program called, for errors.
    """

    collective: int
    call: str
    piece: bytes = b""
    last: bool = False


@dataclass(frozen=True)
class TensorBoardUp:
    """TensorBoard answers at this address."""

    url: str


# ---- from a Spark task to the driver, and back


@dataclass(frozen=True)
class NodeLost:
    """A task that feeds or asks a node has lost it, and wants to know why."""

    number: int


@dataclass(frozen=True)
class RootCause:
    """The failure of the cluster, as its error reads; empty if all nodes are there."""

    error: str


# ---- from the node to its supervisor alone


@dataclass(frozen=True)
class TensorFlowImported:
    """The program has imported TensorFlow, which this process did not have from its start."""


@dataclass(frozen=True)
class ReleasePort:
    """The program binds the node's TensorFlow port itself; the answer is `PortReleased`."""


# ---- from the supervisor alone to its node


@dataclass(frozen=True)
class PortReleased:
    """The supervisor holds the node's TensorFlow port no longer."""


# ---- from the driver to the supervisor or its node


@dataclass(frozen=True)
class Accepted:
    """The answer to a hello."""


@dataclass(frozen=True)
class Members:
    """Everyone is there: the node may start."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class Contributed:
    """A piece of what another node has given to a collective."""

    collective: int
    sender: int
    piece: bytes
    last: bool


@dataclass(frozen=True)
class Probe:
    """Somebody has lost a node: look whether it is this one. Later questions have higher numbers."""

    number: int


@dataclass(frozen=True)
class StatusRequest:
    """The supervisor asks its node for its `NodeStatus`."""


@dataclass(frozen=True)
class NoMoreFeeds:
    """No further feed will come."""


@dataclass(frozen=True)
class Stop:
    """End the node; after `grace_seconds` it is killed."""

    grace_seconds: float
