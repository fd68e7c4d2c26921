"""What driver, supervisor and node say to each other: plain data, sent over channels that have shown the token.

A supervisor forwards what its node says to the driver, and what the driver says to its node; the driver knows who
speaks by the channel, so that no message names its sender.
"""

from dataclasses import dataclass
from enum import Enum

from tensorflowonspark.spec import Role

__all__ = [
    "Alive",
    "Answering",
    "Failed",
    "FailureKind",
    "FeedWanted",
    "Hello",
    "Lines",
    "Member",
    "Members",
    "NoMoreFeeds",
    "Progress",
    "Ready",
    "Returned",
    "Serving",
    "Stop",
    "StopWanted",
    "TensorBoardUp",
    "TensorFlowImported",
    "Welcome",
]


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


class FailureKind(Enum):
    """How a node failed; the order is that of how likely it is the cause, not a consequence, of the others."""

    OUT_OF_MEMORY = 0
    KILLED = 1  # by a signal
    EXITED = 2  # the process ended without a word
    EXECUTOR_LOST = 3
    LOST = 4  # the connection to its supervisor broke
    RAISED = 5  # the user's program raised
    PEER_LOST = 6  # the user's program raised since another node was gone


# ---- from the node or its supervisor to the driver


@dataclass(frozen=True)
class Hello:
    """The first word of a supervisor: its node's addresses and the GPUs that Spark gave the task."""

    member: Member
    cluster: str
    pid: int
    jvm_pid: int


@dataclass(frozen=True)
class Alive:
    """The supervisor lives; said every few seconds, so that its silence means something."""


@dataclass(frozen=True)
class Ready:
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
class Answering:
    """The program has said what answers inference from now on."""


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
class TensorBoardUp:
    """TensorBoard answers at this address."""

    url: str


# ---- from the node to its supervisor alone


@dataclass(frozen=True)
class TensorFlowImported:
    """The program has imported TensorFlow, which this process did not have from its start."""


# ---- from the driver to the supervisor or its node


@dataclass(frozen=True)
class Welcome:
    """The answer to a hello."""


@dataclass(frozen=True)
class Members:
    """Everyone is there: the node may start."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class NoMoreFeeds:
    """No further feed will come."""


@dataclass(frozen=True)
class StopWanted:
    """Somebody who knows the token asks the driver to end its stream; the answer is a `Welcome`."""


@dataclass(frozen=True)
class Stop:
    """End the node; after `grace_seconds` it is killed."""

    grace_seconds: float
