"""Control messages between driver, supervisor, node and task.

The base class of a message is its receiver. A supervisor connects its node and the driver: it handles a
`ToSupervisor`, and forwards a `ToDriver` from its node and a `ToNode` from the driver; most of these it does not even
read (`READ_BY_SUPERVISORS`). The sender is known by the channel. Messages about the rows of a feed are in
`feed_messages`.
"""

from dataclasses import dataclass, field
from enum import Enum

from tensorflowonspark.config import Role
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.run_manifest import Record


class ToDriver:
    """A message that the driver handles (`driver/reception.py`)."""


class ToSupervisor:
    """A message that a supervisor handles (`supervisor/supervisor.py`); it is not forwarded."""


class ToNode:
    """A message that a node handles (`node/driver_link.py`)."""


class Reply:
    """The answer to a request, on the same channel; the sender of the request waits for it."""


@dataclass(frozen=True)
class Member:
    """A node and its addresses, as the other nodes need them."""

    number: int
    role: Role
    host: str
    port: int  # of its TensorFlow server
    gpus: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return ``host:port`` of the node's TensorFlow server, an address of IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Peer:
    """A worker that takes part in rounds, and the port of its server for the other workers."""

    number: int
    name: str
    host: str
    port: int
    identity: str = ""  # of its node


class WaitsFor(Enum):
    """The external event that a node waits for."""

    NOTHING = 0
    FEED = 1  # the next feed, or the other nodes
    ROWS = 2  # of a stream
    STORAGE = 3  # a file system
    TERMINAL = 4  # in breakpoint(), of `tfos attach`


# ---- requests that open a channel to the driver, and the replies


@dataclass(frozen=True)
class Register(ToDriver):
    """A supervisor has started: the addresses of its node and the GPUs that Spark gave to the task."""

    member: Member
    cluster: str
    pid: int
    jvm_pid: int
    executor: str = ""  # Spark's id of it


@dataclass(frozen=True)
class NodeLost(ToDriver):
    """A task has lost the connection to a node and requests the root cause."""

    number: int


@dataclass(frozen=True)
class ServersWanted(ToDriver):
    """A task requests the nodes that answer inference now."""


@dataclass(frozen=True)
class Servers(Reply):
    """The nodes that answer inference now."""

    endpoints: "tuple[NodeEndpoint, ...]"


@dataclass(frozen=True)
class Accepted(Reply):
    """The driver has accepted a `Register`."""


@dataclass(frozen=True)
class RootCause(Reply):
    """The cluster's failure, as its error reads; empty if all nodes are up."""

    error: str


# ---- from a supervisor or its node to the driver


@dataclass(frozen=True)
class Heartbeat(ToDriver, ToNode):
    """The supervisor is alive. Sent to both sides, so that each detects a supervisor that is stopped."""


@dataclass(frozen=True)
class NodeReady(ToDriver):
    """The node is up; if it is fed, it receives rows at a Unix socket and, from other hosts, at a TCP port."""

    feed_socket: str = ""
    feed_port: int = 0
    identity: str = ""  # to which rows are addressed: role, host, and a random number
    place: str = ""  # where the socket is (`processes.place`)


@dataclass(frozen=True)
class EndpointsWanted(ToDriver):
    """A node requests the addresses of the nodes that take rows, when all are up; it gets `Endpoints`."""


@dataclass(frozen=True)
class NodeEndpoint:
    """The address of a node that takes rows."""

    number: int
    name: str
    host: str
    ready: NodeReady
    driver: tuple[str, int] = ("", 0)  # host and port of the driver, which knows why a node is lost


@dataclass(frozen=True)
class Lines(ToDriver):
    """Lines that the node printed."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class GpuUsage:
    """The use of a GPU: `utilization` from 0 to 1, memory in bytes."""

    address: str  # on its host
    utilization: float
    memory: int
    memory_total: int


@dataclass(frozen=True)
class NodeUsage(ToDriver):
    """What the processes of the node use; sent in place of a heartbeat."""

    time: float  # seconds, of the host's own clock
    processor: float  # seconds since the process started
    memory: int  # bytes
    gpus: tuple[GpuUsage, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The progress of a pass over a feed; steps and rows are those of this epoch on this node."""

    epoch: int
    step: int
    steps: int
    rows: int


@dataclass(frozen=True)
class ReportedMetrics:
    """Metrics of the program: at the end of an epoch, or in its midst."""

    epoch: int
    values: dict[str, float]
    ended: bool  # whether the epoch has ended
    seconds: float | None = None  # that it took
    shown: bool = False  # whether Keras prints them


class RowSource(Enum):
    """Where the rows of a feed are when a step needs them."""

    CACHE = "cache"  # of the node
    SPARK = "spark"  # they arrive while the program takes them, at least in its first pass
    FILES = "files"  # which the node reads in each pass


@dataclass(frozen=True)
class TrainingTotals(ToDriver):
    """What the program has done so far; times in seconds, of the node's own clock. None: not measured."""

    time: float = 0.0
    epoch: int | None = None  # None: it has not begun to train
    step: int = 0  # steps of this epoch
    steps: int = 0  # of an epoch; 0: unknown
    total_steps: int = 0
    rows: int | None = None  # that it has taken; None: it reads data of its own, or has taken none yet
    bytes: int | None = None
    waiting_for_rows: float | None = None
    waiting_for_workers: float | None = None
    training: float = 0.0  # the time in which the program trained: with the waits, without validation
    reading: float = 0.0  # the part of that in which rows were read: beside the steps if the program `reads_ahead`
    processor: float = 0.0  # that its threads used, and
    queued: float = 0.0  # for which they waited for a processor
    waiting_for_feed: float = 0.0  # beside the training, as what follows
    importing: float = 0.0  # TensorFlow, or Keras on JAX
    saving: float = 0.0  # checkpoints, while the program stood still
    validating: float = 0.0
    saved: int | None = None  # the step of its last checkpoint, which the first message with it follows at once
    restored: int | None = None  # the step at which the program has resumed; None: at no checkpoint
    source: RowSource | None = None  # of the rows that it read last; None if it trains on others
    reads_ahead: bool = False
    traced: bool = False  # its step is traced, which takes long
    progress: Progress | None = None  # of the last pass, ahead of the steps
    metrics: tuple[ReportedMetrics, ...] = ()  # that no message before has


@dataclass(frozen=True)
class FeedWanted(ToDriver):
    """The program requests feed number `feed` and is done with the feeds before it."""

    feed: int


@dataclass(frozen=True)
class ProgramBegun(ToDriver):
    """The next line that the node runs is the first of its program."""


@dataclass(frozen=True)
class Serving(ToDriver):
    """The program serves other nodes from now on and will not return."""


@dataclass(frozen=True)
class InferenceReady(ToDriver):
    """The program has registered the function that answers inference."""


@dataclass(frozen=True)
class CheckpointSaved(ToDriver, ToNode):
    """The program has written a checkpoint: after a restart it does not need feeds before this one.

    The driver passes it on to the evaluator.
    """

    feed: int
    directory: str
    notice: int = 0  # the last `Notice` when it began to
    name: str = ""
    epoch: int = 0  # that has ended with it; 0: it is within one, or the program counts none


# For an evaluator's program to begin with the checkpoints, before others take it for one that does not evaluate them.
EVALUATOR_START_SECONDS = 60.0


@dataclass(frozen=True)
class Evaluation(ToDriver, ToNode):
    """What the evaluator has found so far of the checkpoints in a directory; without one it evaluates none any more.

    The driver passes it on to the nodes that train, without the values.
    """

    directory: str = ""
    checkpoint: str = ""  # the name of the last one that it is done with
    stop: bool = False  # whether the training is to end
    metrics: ReportedMetrics | None = None  # of that one
    history: dict[str, list[float]] = field(default_factory=dict)  # the values of all epochs, and their numbers


@dataclass(frozen=True)
class RunDescribed(ToDriver):
    """The run's manifest as the chief knows it now."""

    manifest: Record


@dataclass(frozen=True)
class HostNotice(ToDriver):
    """The supervisor's host goes, in so many seconds, if that is known; without a reason it stays after all."""

    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class SaveReply(ToDriver):
    """The answer to a `SaveProposal`: the node has asked so often whether to save, and whether it stops there."""

    number: int
    taken: int
    stops: bool


@dataclass(frozen=True)
class Returned(ToDriver):
    """The program returned; `result` is its pickled return value."""

    result: bytes


@dataclass(frozen=True)
class Failed(ToDriver):
    """The node failed."""

    kind: FailureKind
    reason: str
    advice: str = ""
    traceback: str = ""
    output: str = ""
    exit_code: int = 1  # of the program, as a shell knows it
    all_frames: str = ""  # the traceback with the frames that the other leaves out; empty if there are none


@dataclass(frozen=True)
class Contribution(ToDriver):
    """A chunk of a worker's contribution to a collective (`driver/contributions.py`).

    The first chunk is empty and reports that the worker has reached the collective. `call` is the function that the
    program called, for errors.
    """

    collective: int
    call: str
    piece: bytes = b""
    last: bool = False


NOTHING_SHARED = -1  # the version of weights before the first round


@dataclass(frozen=True)
class RoundReached(ToDriver):
    """The program has reached a round, in which the workers average their weights (`driver/rounds.py`)."""

    port: int  # of the node's server for the other workers
    version: int  # of the weights from which it began; NOTHING_SHARED: it shares none yet
    steps: int  # since then
    last: bool  # whether its training ends with this round
    min_workers: int
    timeout: float  # seconds that it waits for the other workers
    signature: str  # of the model and the settings, which must be the same on all workers
    identity: str = ""  # of the node


@dataclass(frozen=True)
class RoundExchanged(ToDriver):
    """The node has the mean of all contributions to the round of this number."""

    number: int


@dataclass(frozen=True)
class RoundBroken(ToDriver):
    """The node can't get the contributions of some workers (by number) to a round."""

    number: int
    missing: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class BreakpointReached(ToDriver):
    """The node's debugger takes commands at a line, ``file:line``. Until it goes on, stops have the same number."""

    stop: int
    place: str


@dataclass(frozen=True)
class BreakpointLeft(ToDriver):
    """The program goes on, and no line is known at which it stops next; or it quits, by the user's command."""

    quits: bool = False


@dataclass(frozen=True)
class DebuggerOutput(ToDriver):
    """A text of the node's debugger for its terminal."""

    text: str


@dataclass(frozen=True)
class ProbeReply(ToDriver):
    """The reply to the `Probe` of this number: supervisor and node are up, or their failure has been sent.

    `unreached` has those of its addresses to which this host can't connect, and why.
    """

    number: int
    unreached: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorBoardUp(ToDriver):
    """TensorBoard answers at this address."""

    url: str


# ---- from the node to its supervisor


@dataclass(frozen=True)
class NodeStatus(ToSupervisor):
    """The present state of the node's program, in reply to a `StatusRequest`."""

    waits_for: WaitsFor
    in_tensorflow: bool  # whether its main thread waits for an operation
    in_epoch: bool  # whether it has taken some of an epoch's batches, but not all
    stack: str  # of its main thread, from the user's own frames on


@dataclass(frozen=True)
class Idle(ToDriver):
    """The node has used no processor time for some seconds; without `where` it has not replied with a status either."""

    seconds: float
    where: NodeStatus | None


@dataclass(frozen=True)
class Active(ToDriver):
    """A node that was idle uses the processor again."""


@dataclass(frozen=True)
class Stacks(ToDriver):
    """The stacks of the node's threads, in reply to the `StacksRequest` of this number, or why there are none."""

    number: int
    text: str = ""
    problem: str = ""


@dataclass(frozen=True)
class FrameworkImported(ToSupervisor):
    """The program has imported TensorFlow, or Keras with JAX, which the node's process did not have at its start."""


@dataclass(frozen=True)
class KerasImported(ToDriver):
    """The program of a worker that trains with others has imported Keras 3, with this backend."""

    backend: str


@dataclass(frozen=True)
class ReleasePort(ToSupervisor):
    """The program itself binds the node's TensorFlow port; the answer is `PortReleased`."""


# ---- between a task and the supervisor that it started


@dataclass(frozen=True)
class Connected(Reply):
    """The supervisor is connected to the driver."""


@dataclass(frozen=True)
class Detach(ToSupervisor):
    """The task ends; the supervisor and its node continue."""


# ---- from the driver to a supervisor


@dataclass(frozen=True)
class Probe(ToSupervisor):
    """Check the node, because the connection to some node was lost. Later probes have higher numbers.

    With `addresses`, of the nodes' TensorFlow servers, try also to connect to each.
    """

    number: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class StacksRequest(ToSupervisor, ToNode):
    """Send the Python stacks of the node's threads. The supervisor sends it on, and answers if the node does not."""

    number: int


@dataclass(frozen=True)
class Stop(ToSupervisor, ToNode):
    """End the node; after `grace_seconds` it is killed. The supervisor sends it on if the node's program has ended."""

    grace_seconds: float
    is_last: bool = False  # no restart of the cluster follows


# ---- from the driver or the supervisor to the node


@dataclass(frozen=True)
class Members(ToNode):
    """All nodes have registered: the program may start."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class Endpoints(ToNode):
    """The addresses of the nodes that take rows, for one that has requested them."""

    endpoints: tuple[NodeEndpoint, ...]


@dataclass(frozen=True)
class MemberReplaced(ToNode):
    """A node was started again alone, and has registered at a new address."""

    member: Member


@dataclass(frozen=True)
class Contributed(ToNode):
    """A chunk of what another node contributed to a collective."""

    collective: int
    sender: int
    piece: bytes
    last: bool


@dataclass(frozen=True)
class RoundPlan(ToNode):
    """The workers whose contributions to a round are averaged; each owns a slice of the weights, in this order."""

    number: int
    contributors: tuple[Peer, ...]


@dataclass(frozen=True)
class RoundResult(ToNode):
    """A round is complete: its contributors hold the new weights, and all other workers take them from one of these."""

    number: int  # the version of the weights from now on
    holders: tuple[Peer, ...]
    averaged: bool  # else the holders keep the weights that they have
    final: bool  # whether the training of all workers ends with this round


@dataclass(frozen=True)
class RoundRefused(ToNode):
    """A round can't take place."""

    reason: str


@dataclass(frozen=True)
class Notice(ToNode):
    """These nodes go, within so many seconds, if that is known; no nodes: all stay."""

    number: int
    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class SaveProposal(ToNode):
    """All save at this step, which the program has yet to end, if all can; None only asks how many it has ended."""

    number: int
    step: int | None = None


@dataclass(frozen=True)
class SaveDecision(ToNode):
    """All save at the step of a proposal, or go on."""

    number: int
    save: bool


@dataclass(frozen=True)
class TrainingEnded(ToNode):
    """The programs of all nodes that train have ended: no further checkpoint comes."""


@dataclass(frozen=True)
class NoMoreFeeds(ToNode):
    """No further feed will come."""


@dataclass(frozen=True)
class StatusRequest(ToNode):
    """The supervisor requests a `NodeStatus`."""


@dataclass(frozen=True)
class DebuggerInput(ToNode):
    """A line for the node's debugger at the stop of this number; None if the terminal is gone."""

    stop: int
    line: str | None


@dataclass(frozen=True)
class PortReleased(ToNode):
    """The supervisor has released the node's TensorFlow port."""


@dataclass(frozen=True)
class LengthRange:
    """The shortest and the longest array of a column at one level of nesting, and the first row with each."""

    shortest: int
    longest: int
    shortest_at: str = ""
    longest_at: str = ""


@dataclass(frozen=True)
class ColumnSummary:
    """The number of nulls in one column at all levels, and the range of lengths at each, outermost level first."""

    nulls: int = 0
    null_at: str = ""
    lengths: tuple[LengthRange, ...] = ()


# All others between its node and the driver a supervisor passes on as they are.
READ_BY_SUPERVISORS = (ToSupervisor, Failed, Members, NodeReady, Returned, Stacks)
