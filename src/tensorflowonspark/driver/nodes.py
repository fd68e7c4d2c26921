"""What the driver knows of one node."""

from dataclasses import dataclass, field
from enum import Enum

from tensorflowonspark.messages import Idle, Member, Progress, Ready
from tensorflowonspark.parts import PartSummary
from tensorflowonspark.spec import Role
from tensorflowonspark.transport import Channel

__all__ = ["Node", "NodeState"]


class NodeState(Enum):
    """Where a node is in its life; it only ever moves down this list."""

    AWAITED = 0  # its supervisor has not called yet
    CONNECTED = 1
    RUNNING = 2  # its process is up, and its program starts when all are
    RETURNED = 3  # its program has ended well
    FAILED = 4
    GONE = 5  # its supervisor has hung up


@dataclass
class Node:
    """What is known of one node."""

    number: int
    role: Role
    state: NodeState = NodeState.AWAITED
    member: Member | None = None
    ready: Ready = field(default_factory=Ready)
    feed_wanted: int = -1  # the last feed that its program asked for
    feed_given: int = -1  # the last one that it has got
    stored: tuple[PartSummary, ...] | None = None
    holds: str = ""  # which rows of the current feed, in words
    progress: Progress | None = None
    idle: Idle | None = None  # it does nothing, for so long that this may be wrong
    checked: int = 0  # the last of the driver's checks that it has answered
    feed_failed: str = ""  # why its held task could not feed it
    serving: bool = False  # for others; its program will not return
    answering: bool = False  # its program has said what answers inference
    lost: bool = False  # it died, and the others go on
    returned: bool = False  # its program has ended well
    result: bytes = b""
    heard: float = 0.0  # when its supervisor last said anything (time.monotonic)
    pid: int = 0  # of its supervisor
    jvm_pid: int = 0  # of its executor
    channel: Channel | None = None

    @property
    def waits_for_feed(self) -> bool:
        """Whether its program has asked for a feed that it has not got."""
        return self.feed_wanted > self.feed_given

    @property
    def host(self) -> str:
        """Its host, as far as it is known."""
        return self.member.host if self.member else "an unknown host"
