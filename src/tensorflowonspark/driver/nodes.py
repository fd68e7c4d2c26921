"""The nodes of a cluster: their states, roles and channels."""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.driver.decision import Used
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, FeedFailed, FileFeed, PartitionFed, PartRef
from tensorflowonspark.messages import (
    Idle,
    InferenceReady,
    Member,
    NodeReady,
    ProbeReply,
    ProgramBegun,
    Progress,
    Serving,
)
from tensorflowonspark.transport import Channel, ConnectionLost, Packed, seal

NodeReport = PartitionFed | FeedFailed | ProgramBegun | Serving | InferenceReady | ProbeReply


class NodeState(Enum):
    """The progress of a node from its launch to its end; only a restart of it alone goes back to an earlier state."""

    RESTARTING = -1  # its process has failed, and the next one's supervisor has not connected yet
    AWAITED = 0  # its supervisor has not connected yet
    CONNECTED = 1
    RUNNING = 2  # its process is up; its program starts when all are
    RETURNED = 3  # its program has returned
    FAILED = 4
    GONE = 5  # its supervisor has closed the connection


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
        The address of its host, or of its last one while it is started again; None until it has connected to the
        driver.
    port : int or None
        The port of its TensorFlow server; None until it has connected.
    gpus : tuple of str
        The GPUs that Spark gave to its task.
    pid, jvm_pid : int or None
        The processes of its supervisor and its executor, on its host; None until it has connected.
    restarts : int
        How often this node was started again while the others continued (`RestartPolicy.scope`).
    """

    number: int
    role: Role
    state: NodeState
    host: str | None = None
    port: int | None = None
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    jvm_pid: int | None = None
    restarts: int = 0


@dataclass
class NodeProcess:
    """What the driver knows of a node's process, and of the supervisor that speaks for it."""

    pid: int = 0  # of the supervisor
    jvm_pid: int = 0  # of its executor
    executor: str = ""  # Spark's id of it
    channel: Channel | None = None
    last_channel: Channel | None = None  # the same, if it has ended too
    last_message: float = 0.0  # its time (time.monotonic)
    ready: NodeReady = field(default_factory=NodeReady)
    idle: Idle | None = None  # None: it is active
    idle_since: float = 0.0  # time (time.monotonic) since which it is idle
    checked: int = 0  # number of the last `Probe` that the supervisor has answered
    unreached: dict[str, str] = field(default_factory=dict)  # addresses that its host did not reach then, and why

    @property
    def idle_seconds(self) -> float:
        """The time for which an idle process has been idle."""
        return time.monotonic() - self.idle_since


@dataclass
class NodeProgram:
    """How far a node's program has come, and what it does."""

    begun_at: float | None = None  # time (time.monotonic) at which it began; None: it has not
    ended_at: float | None = None  # and ended, or its node did
    backend: str = ""  # of its Keras, once it has imported that
    progress: Progress | None = None
    serving: bool = False  # a ParameterServerStrategy; it will not return
    evaluating: bool | None = None  # checkpoints: it returns when it has evaluated the last one; None: not yet known
    answering: bool = False  # it has called `ctx.serve`
    returned: bool = False
    result: bytes = b""  # pickled


@dataclass
class NodeFeed:
    """Which feeds a node's program has asked for and received, and what it holds of them."""

    first: int = 0  # that the program asks for, after a restart of it alone
    wanted: int | None = None  # the last one that it asked for
    wanted_since: float = 0.0  # time (time.monotonic) at which it did
    given: int | None = None  # the last one of Spark that it has received
    holds: str = ""  # a description of the rows of the current feed that it holds
    parts: tuple[PartRef, ...] | None = None  # those that its held task has fed, once it has
    failed: str = ""  # the error of its held task

    @property
    def waits(self) -> bool:
        """Whether the program has asked for a feed that it has not received."""
        return self.wanted is not None and (self.given is None or self.wanted > self.given)

    @property
    def next(self) -> int:
        """The first feed with which the program is not done."""
        return max(self.first, self.wanted or 0)


@dataclass
class Node:
    """The state of one node, as the driver knows it: of its present process, its program, and what that is fed."""

    number: int
    role: Role
    state: NodeState = NodeState.AWAITED
    member: Member | None = None  # of its former process, while it is started again
    process: NodeProcess = field(default_factory=NodeProcess)
    program: NodeProgram = field(default_factory=NodeProgram)
    feed: NodeFeed = field(default_factory=NodeFeed)
    lost: bool = False  # it has failed, and the others go on
    restarts: int = 0  # of it alone
    used: Used = field(default_factory=Used)  # the same, as they count

    def receive(self, message: NodeReport) -> None:
        """Note what it reports of itself alone."""
        match message:
            case PartitionFed():
                self.feed.parts = message.parts
            case FeedFailed():
                self.feed.failed = message.reason
            case ProgramBegun():
                self.program.begun_at = time.monotonic()
            case Serving():
                self.program.serving = True
            case InferenceReady():
                self.program.answering = True
            case ProbeReply():
                self.process.checked, self.process.unreached = message.number, message.unreached

    @property
    def info(self) -> NodeInfo:
        """The part of it that users see."""
        if self.member is None:
            return NodeInfo(self.number, self.role, self.state)
        own = self.member
        pids = self.process.pid or None, self.process.jvm_pid or None
        return NodeInfo(self.number, self.role, self.state, own.host, own.port, own.gpus, *pids, self.restarts)

    @property
    def shown_state(self) -> NodeState:
        """Its state for people: it runs once its program has begun, and one that has returned has not just gone."""
        if self.state is NodeState.RUNNING and self.program.begun_at is None:
            return NodeState.CONNECTED
        return NodeState.RETURNED if self.state is NodeState.GONE and self.program.returned else self.state

    def may_be_ended(self, seconds: float) -> bool:
        """Whether others need not wait for its program, which has had so many seconds; not if it is about to begin."""
        own = self.program
        begun = own.begun_at is not None and time.monotonic() - own.begun_at > seconds
        return not self.evaluates and (begun or own.returned or own.serving or self.lost or self.restarts > 0)

    @property
    def evaluates(self) -> bool:
        """Whether its program evaluates the checkpoints of the others, and will return."""
        return bool(self.program.evaluating) and not (self.program.returned or self.lost)

    @property
    def serves(self) -> bool:
        """Whether it is a worker of a ParameterServerStrategy, or was before it was started again."""
        return self.role.job is Job.WORKER and (self.program.serving or self.restarts > 0)

    @property
    def host(self) -> str:
        """Its host, for messages."""
        return self.member.host if self.member else "an unknown host"


class Roster:
    """All nodes of one cluster.

    Each message of each node asks for some of them. What these requests need is counted when it changes: a scan of all
    nodes for each would take time that grows with the square of their number.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
        self._fed = self._nodes_of(spec.fed)
        self._trainers = self._nodes_of(spec.trainers)
        self._evaluators = [node for node in self.nodes if node.role.job is Job.EVALUATOR]
        self._states = Counter({NodeState.AWAITED: len(self.nodes)})
        self._idle: dict[int, Node] = {}  # by number
        self.former: set[Channel] = set()  # of processes in whose place others are started
        self.saved: dict[str, int] = {}  # the feed of the programs' last checkpoint, by its directory
        self.tensorboard_url: str | None = None
        self.chief = self._nodes_of([spec.chief_role])[0]  # the node with the chief's duties

    def count(self, *states: NodeState) -> int:
        """Return the number of nodes in one of these states."""
        return sum(self._states[state] for state in states)

    def move(self, node: Node, state: NodeState) -> None:
        """Note that a node has come to a state, unless it is in a later one."""
        if state.value > node.state.value:
            self._states[node.state] -= 1
            self._states[state] += 1
            node.state = state
            if state.value > NodeState.RUNNING.value and node.program.ended_at is None:
                node.program.ended_at = time.monotonic()

    def set_idle(self, node: Node, idle: Idle | None) -> None:
        """Note that a node is idle, or active again (None)."""
        node.process.idle = idle
        if idle is None:
            self._idle.pop(node.number, None)
        else:
            node.process.idle_since = time.monotonic() - idle.seconds
            self._idle[node.number] = node

    def idle(self) -> list[Node]:
        """Return the nodes that are idle."""
        return [self._idle[number] for number in sorted(self._idle)]

    def renew(self, node: Node, first_feed: int) -> None:
        """Note that a node is started again alone: of its former process only the address is kept, for its peers."""
        self._states[node.state] -= 1
        self._states[NodeState.RESTARTING] += 1
        self._idle.pop(node.number, None)
        if node.process.channel is not None:
            self.former.add(node.process.channel)
        node.state, node.restarts = NodeState.RESTARTING, node.restarts + 1
        node.process, node.program, node.feed = NodeProcess(), NodeProgram(), NodeFeed(first=first_feed)

    def lose(self, node: Node) -> None:
        """Note that the others go on without a node."""
        node.lost = True
        self._fed = [each for each in self._fed if not each.lost]

    def send(self, number: int, message: object) -> None:
        """Send a message to one node; if the node is gone, that is noticed elsewhere."""
        node = self.nodes[number]
        channel = node.process.channel
        if isinstance(message, (FeedBegins, FeedComplete)) and not isinstance(message.feed, FileFeed):
            node.feed.given = message.feed
        if channel is not None:
            with suppress(ConnectionLost):
                channel.send(seal(message))

    def send_all(self, message: object) -> None:
        """Send a message to all nodes."""
        packed = Packed(seal(message), compressed=True)
        for node in self.nodes:
            self.send(node.number, packed)

    def fed(self) -> list[Node]:
        """Return the nodes that are fed, without those that are lost, in a list that never changes."""
        return self._fed

    def readers(self) -> list[Node]:
        """Return the nodes whose programs read the feeds: with a ParameterServerStrategy the chief, for all workers.

        If workers serve and there is no chief, it raises `FeedError`.
        """
        serving = [str(node.role) for node in self.fed() if node.program.serving]
        if not serving:
            return self.fed()
        if self.chief.program.serving:
            raise FeedError(
                f"{', '.join(serving)} serves a ParameterServerStrategy (ctx.join_server), and there is no chief to "
                "read what is fed: make the cluster with chief=True"
            )
        return [node for node in self.fed() if not node.program.serving] + [self.chief]

    def answering(self) -> list[Node]:
        """Return the nodes that answer inference."""
        up = NodeState.RUNNING, NodeState.RETURNED
        return [node for node in self.fed() if node.program.answering and node.state in up]

    def trainers(self) -> list[Node]:
        """Return the nodes that train, in a list that never changes."""
        return self._trainers

    def may_evaluate(self, node: Node) -> bool:
        """Return whether a node is an evaluator that may yet begin with the checkpoints, which there are."""
        return node in self._evaluators and node.program.evaluating is None and bool(self.saved)

    def evaluators(self) -> list[Node]:
        """Return the evaluator, if there is one."""
        return self._evaluators

    def _nodes_of(self, roles: Iterable[Role]) -> list[Node]:
        wanted = set(roles)
        return [node for node in self.nodes if node.role in wanted]
