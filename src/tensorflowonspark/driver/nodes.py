"""The nodes of a cluster: the state of each, their roles, and their channels."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedComplete, PartRef
from tensorflowonspark.messages import Idle, Member, NodeReady, Progress
from tensorflowonspark.transport import Channel, ConnectionLost, Packed

__all__ = ["Node", "NodeInfo", "NodeState", "Roster"]


class NodeState(Enum):
    """Where a node is in its life; it only ever moves down this list."""

    AWAITED = 0  # its supervisor has not called yet
    CONNECTED = 1
    RUNNING = 2  # its process is up, and its program starts when all are
    RETURNED = 3  # its program has ended well
    FAILED = 4
    GONE = 5  # its supervisor has hung up


@dataclass(frozen=True)
class NodeInfo:
    """A node of a cluster, as it is at one moment (`Cluster.nodes`).

    Attributes
    ----------
    number : int
        The node's number in the cluster, from 0.
    role : Role
        Its job, and its number within the job.
    state : NodeState
        How far it has come.
    host : str or None
        The address of its host; None until it has connected to the driver.
    port : int or None
        The port of its TensorFlow server; None until it has connected.
    gpus : tuple of str
        The GPUs that Spark gave to its task.
    pid, jvm_pid : int or None
        The processes of its supervisor and its executor, on its host; None until it has connected.
    """

    number: int
    role: Role
    state: NodeState
    host: str | None = None
    port: int | None = None
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    jvm_pid: int | None = None


@dataclass
class Node:
    """The state of one node, as the driver knows it."""

    number: int
    role: Role
    state: NodeState = NodeState.AWAITED
    member: Member | None = None
    ready: NodeReady = field(default_factory=NodeReady)
    feed_wanted: int = -1  # the last feed that its program asked for
    feed_given: int = -1  # the last one that it has got
    fed_parts: tuple[PartRef, ...] | None = None  # those that its held task has fed, once it has
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
    def info(self) -> NodeInfo:
        """The part of it that users see."""
        if self.member is None:
            return NodeInfo(self.number, self.role, self.state)
        own = self.member
        return NodeInfo(
            self.number, self.role, self.state, own.host, own.port, own.gpus, self.pid or None, self.jvm_pid or None
        )

    @property
    def waits_for_feed(self) -> bool:
        """Whether its program has asked for a feed that it has not got."""
        return self.feed_wanted > self.feed_given

    @property
    def host(self) -> str:
        """Its host, as far as it is known."""
        return self.member.host if self.member else "an unknown host"


class Roster:
    """All nodes of one cluster.

    Parameters
    ----------
    spec : ClusterSpec
        Which there are to be.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
        # Asked for at each word of each node: so they are found once.
        self._fed = self._nodes_of(spec.fed)
        self._trainers = self._nodes_of(spec.trainers)

    def send(self, number: int, message: object) -> None:
        """Say something to one node; if it is gone, its end will be noticed."""
        channel = self.nodes[number].channel
        if isinstance(message, FeedComplete):
            self.nodes[number].feed_given = message.feed
        if channel is not None:
            with suppress(ConnectionLost):
                channel.send(message)

    def send_all(self, message: object) -> None:
        """Say something to all nodes."""
        packed = Packed(message)
        for node in self.nodes:
            self.send(node.number, packed)

    def fed(self) -> list[Node]:
        """Return the nodes that are fed, but for those that were lost."""
        return [node for node in self._fed if not node.lost]

    def readers(self) -> list[Node]:
        """Return the nodes whose programs read what is fed: with a ParameterServerStrategy the chief, for all.

        Raises
        ------
        FeedError
            If workers serve, and there is no chief.
        """
        serving = [str(node.role) for node in self.fed() if node.serving]
        if not serving:
            return self.fed()
        chief = [node for node in self.nodes if node.role == self.spec.chief_role]
        if chief[0].serving:
            raise FeedError(
                f"{', '.join(serving)} serves a ParameterServerStrategy (ctx.join_server), and there is no chief to "
                "read what is fed: make the cluster with chief=True"
            )
        return [node for node in self.fed() if not node.serving] + chief

    def trainers(self) -> list[Node]:
        """Return the nodes that train."""
        return list(self._trainers)

    def _nodes_of(self, roles: Iterable[Role]) -> list[Node]:
        wanted = set(roles)
        return [node for node in self.nodes if node.role in wanted]
