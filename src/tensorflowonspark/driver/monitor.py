"""State of a running cluster: handlers for the messages of its nodes, and waiting for conditions on their states.

Every supervisor holds a channel to the driver. One thread receives from all of them, and puts their messages into the
inbox, where they are handled one after the other. Handlers, and all that they call, run under the lock with which other
threads read the state; these change it by events of their own.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, singledispatchmethod
from threading import Thread
from traceback import format_exception
from typing import Any, TypeVar

from tensorflowonspark.config import CERTAIN_SECONDS, HEARTBEATS_PER_TIMEOUT, ClusterSpec
from tensorflowonspark.driver.breakpoints import Breakpoints
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.decision import (
    Decision,
    EndAttempt,
    Failure,
    Keep,
    Lose,
    Replace,
    Running,
    awaits_executors,
    decide,
    may_be_preemption,
)
from tensorflowonspark.driver.failures import BROKEN, Failures, silent
from tensorflowonspark.driver.hangs import find_hung
from tensorflowonspark.driver.inbox import Inbox
from tensorflowonspark.driver.joint_work import JointWork
from tensorflowonspark.driver.members import Membership
from tensorflowonspark.driver.metrics.store import MetricsStore
from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.driver.sharing.manifest import node_endpoints
from tensorflowonspark.driver.stacks import StackCollection
from tensorflowonspark.errors import ClusterError, FailureKind, NodeError
from tensorflowonspark.feed_messages import FeedFailed, FeedReport, FilesRead, PartitionFed, PassEnded
from tensorflowonspark.messages import (
    Active,
    BreakpointLeft,
    BreakpointReached,
    CheckpointSaved,
    Contribution,
    DebuggerOutput,
    Failed,
    FeedWanted,
    Heartbeat,
    Idle,
    InferenceReady,
    KerasImported,
    Lines,
    NodeLost,
    NodeReady,
    NodeUsage,
    ProbeReply,
    ProgramBegun,
    Register,
    Returned,
    RootCause,
    RoundBroken,
    RoundExchanged,
    RoundReached,
    Servers,
    ServersWanted,
    Serving,
    Stacks,
    Stop,
    TensorBoardUp,
    TrainingTotals,
)
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Channel, Listener

_log = logging.getLogger(__name__)
_FREQUENT = (Heartbeat, Lines, NodeUsage, TrainingTotals)  # no thread waits for them, and no event follows
_T = TypeVar("_T")


def _ignore(_node: Node, _message: Any) -> None:
    """Do nothing with a message: there is no feed."""


class Monitor(Roster):
    """Tracks the nodes of one cluster.

    Parameters
    ----------
    spec : ClusterSpec
        The nodes by job.
    cluster : str
        The cluster's id; a `Register` for another one is refused.
    console : ConsoleReporter
        Shows the nodes' output and progress.
    heartbeat_timeout : float
        Seconds without a heartbeat after which a node is given up.
    on_failure : callable
        Called once, when the root cause of a failure is certain.
    restarts : RestartPolicy
        Whether nodes are started again alone, which then need what was sent to all before.
    metrics : MetricsStore, optional
        Collects what the nodes measure and report.
    on_lost : callable
        Called with nodes that were lost while they answered inference (in a thread of its own).
    """

    def __init__(
        self,
        spec: ClusterSpec,
        cluster: str,
        console: ConsoleReporter,
        heartbeat_timeout: float,
        on_failure: Callable[[], None] = lambda: None,
        *,
        restarts: RestartPolicy = RestartPolicy(0),  # noqa: B008 - it is immutable
        metrics: MetricsStore | None = None,
        on_lost: Callable[[Sequence[Node]], None] = lambda _: None,
    ) -> None:
        super().__init__(spec)
        self.metrics = metrics or MetricsStore()
        self.tensorboard_url: str | None = None
        self.saved: dict[str, int] = {}  # the feed of the programs' last checkpoint, by its directory
        self._inbox = Inbox(self._on_error)
        self.lock = self._inbox.lock  # of all state
        self.stacks = StackCollection(self, self._inbox.wait)
        self.breakpoints = Breakpoints(self)
        self.feed: int | None = None  # the number of the current feed
        self._on_feed_message: Callable[[Node, Any], None] = _ignore
        self._policy = restarts
        self._restarts_nodes = restarts.scope == "node"
        self._joint = JointWork(self, self._inbox.later, keeps=self._restarts_nodes)
        self._console = console
        self._heartbeat_timeout = heartbeat_timeout
        self._on_failure = on_failure
        self._on_lost = on_lost
        self._start: Callable[[Node, Failed, Channel | None, str], None]
        self.members = Membership(self, cluster, lambda: not (self._stopping or self._failures.begun))
        self._former: set[Channel] = set()  # of processes in whose place others are started
        self._failures = Failures(self, self._conclude, self._inbox.later, awaits_executors=awaits_executors(restarts))
        self._checked = time.monotonic()  # time of the last check for heartbeats
        self._up = False  # all nodes are, or were
        self._failed = False  # and the root cause is certain
        self._stopping = False
        self._cancelled: Exception | None = None

    def start(self) -> None:
        """Begin to handle messages, and to check the nodes for heartbeats."""
        self._inbox.later(0.0, self._check_regularly)
        self._inbox.start()

    def close(self) -> None:
        """Handle no more messages."""
        self._inbox.close()

    # ---- in the thread of a new channel, and in that of all channels

    def serve(self, channel: Channel) -> Listener | None:
        """Take the request that opens a channel; return who takes the supervisor's messages after a `Register`."""
        return self._open(channel.receive(), channel)

    @singledispatchmethod
    def _open(self, message: Any, channel: Channel) -> Listener | None:  # noqa: ARG002
        CONSOLE.log(_log, logging.ERROR, "a channel was opened by a %s, not by a request", type(message).__name__)
        return None

    @_open.register
    def _on_node_lost(self, _message: NodeLost, channel: Channel) -> None:
        channel.send(RootCause(str(self.find_cause() or "")))

    @_open.register
    def _on_servers_wanted(self, _message: ServersWanted, channel: Channel) -> None:
        with self.lock:
            servers = Servers(node_endpoints(self.answering()))
        channel.send(servers)

    @_open.register
    def _on_register(self, message: Register, channel: Channel) -> Listener | None:
        node = self.members.node_of(message)
        if node is None or not self._admit(node, message, channel):
            return None  # which closes the channel, and so ends the supervisor
        return Listener(
            partial(self._receive, node, channel),
            lambda: self._inbox.handle(partial(self._on_channel_end, node, channel)),
        )

    def _receive(self, node: Node, channel: Channel, message: Any) -> None:
        current = node.channel is channel
        if current:
            node.last_message = time.monotonic()
        if not isinstance(message, _FREQUENT):
            self._inbox.handle(partial(self._on_message, node, message, channel))
        elif current or isinstance(message, Lines):  # the last ones of a process whose place another one takes
            self._handle(message, node)

    def _admit(self, node: Node, request: Register, channel: Channel) -> bool:
        with self.lock:
            if not self.members.admit(node, request, channel):
                return False
            node.checked = self._failures.last_probe
            if node.restarts:
                self._console.begin(str(node.role))
        self.wake()
        return True

    # ---- events: messages

    def _on_message(self, node: Node, message: Any, channel: Channel | None = None) -> None:
        if node.channel is not channel:
            return  # of a process in whose place another one is started
        self._handle(message, node)
        self._on_feed_message(node, message)

    def _on_channel_end(self, node: Node, channel: Channel) -> None:
        self._lost(node, BROKEN, channel)
        self._former.discard(channel)

    def _on_error(self, error: Exception) -> None:
        """End the cluster after an error of the driver's own; whoever waits for the cluster gets it."""
        CONSOLE.log(_log, logging.ERROR, "the driver could not handle an event:\n%s", "".join(format_exception(error)))
        self._cancel(error)

    @singledispatchmethod
    def _handle(self, message: Any, node: Node) -> None:
        text = "%s on %s sent a %s, for which the driver has no handler"
        CONSOLE.log(_log, logging.ERROR, text, node.role, node.host, type(message).__name__)

    @_handle.register
    def _on_heartbeat(self, message: Heartbeat, node: Node) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _on_lines(self, message: Lines, node: Node) -> None:
        self._console.show(str(node.role), message.lines, node.host)
        self.metrics.take_lines(node, message.lines)

    @_handle.register
    def _on_node_usage(self, message: NodeUsage, node: Node) -> None:
        self.metrics.take_usage(node, message)

    @_handle.register
    def _on_training_totals(self, message: TrainingTotals, node: Node) -> None:
        self.metrics.take_totals(node, message)
        if message.progress not in (None, node.progress):
            node.progress = message.progress
            self._console.progress(str(node.role), message.progress)

    @_handle.register
    def _on_node_ready(self, message: NodeReady, node: Node) -> None:
        node.ready = message
        self.move(node, NodeState.RUNNING)
        if not self._up and self.count(NodeState.RUNNING, NodeState.RETURNED) == len(self.nodes):
            self._up = True
            self.metrics.note("started", f"all nodes are up: {self.spec}")
        if node.restarts:
            text = "%s is up again on %s (restart %d of this node)"
            CONSOLE.log(_log, logging.INFO, text, node.role, node.host, node.restarts)
            text = f"it is up again on {node.host} (restart {node.restarts} of this node)"
            self.metrics.note("node_restart", text, str(node.role))

    @_handle.register
    def _on_feed_wanted(self, message: FeedWanted, node: Node) -> None:
        node.feed_wanted, node.feed_wanted_since = message.feed, time.monotonic()
        self._receive_joint(message, node)

    @_handle.register
    def _on_returned(self, message: Returned, node: Node) -> None:
        node.returned, node.result = True, message.result
        self.breakpoints.left(node, "its program has returned")
        self.move(node, NodeState.RETURNED)
        self._receive_joint(message, node)

    def _receive_joint(self, message: FeedWanted | Returned, node: Node) -> None:
        """Fail the cluster if others wait for a node that has gone on to its next feed, or returned."""
        self._find_hung()
        self.fail(node, self._joint.receive(node, message))

    @_handle.register(Contribution)
    @_handle.register(FeedReport)
    @_handle.register(FilesRead)
    @_handle.register(KerasImported)
    @_handle.register(PassEnded)
    @_handle.register(RoundBroken)
    @_handle.register(RoundExchanged)
    @_handle.register(RoundReached)
    def _on_joint_message(self, message: Any, node: Node) -> None:
        self.fail(node, self._joint.receive(node, message))

    @_handle.register
    def _on_failed(self, message: Failed, node: Node) -> None:
        if message.kind is FailureKind.EXITED and not message.output:  # by sys.exit: the reason is in what it printed
            message = replace(message, output="\n".join(self.metrics.lines(node.number)))
        self.fail(node, message)

    @_handle.register
    def _on_partition_fed(self, message: PartitionFed, node: Node) -> None:
        node.fed_parts = message.parts

    @_handle.register
    def _on_feed_failed(self, message: FeedFailed, node: Node) -> None:
        node.feed_failed = message.reason

    @_handle.register
    def _on_program_begun(self, _message: ProgramBegun, node: Node) -> None:
        node.begun_at = time.monotonic()

    @_handle.register
    def _on_serving(self, _message: Serving, node: Node) -> None:
        node.serving = True

    @_handle.register
    def _on_inference_ready(self, _message: InferenceReady, node: Node) -> None:
        node.answering = True

    @_handle.register
    def _on_checkpoint_saved(self, message: CheckpointSaved, node: Node) -> None:  # noqa: ARG002
        self.saved[message.directory] = message.feed

    @_handle.register
    def _on_tensor_board_up(self, message: TensorBoardUp, node: Node) -> None:  # noqa: ARG002
        self.tensorboard_url = message.url

    @_handle.register
    def _on_probe_reply(self, message: ProbeReply, node: Node) -> None:
        node.checked, node.unreached = message.number, message.unreached

    @_handle.register
    def _on_stacks(self, message: Stacks, node: Node) -> None:
        self.stacks.receive(node, message)

    @_handle.register
    def _on_breakpoint_reached(self, message: BreakpointReached, node: Node) -> None:
        self.breakpoints.reached(node, message)

    @_handle.register
    def _on_debugger_output(self, message: DebuggerOutput, node: Node) -> None:
        self.breakpoints.wrote(node, message)

    @_handle.register
    def _on_breakpoint_left(self, message: BreakpointLeft, node: Node) -> None:
        self.breakpoints.left(node, "the program ends" if message.quits else "the program goes on")

    @_handle.register
    def _on_idle(self, message: Idle, node: Node) -> None:
        self.set_idle(node, message)
        self._find_hung()

    @_handle.register
    def _on_active(self, _message: Active, node: Node) -> None:
        self.set_idle(node, None)

    # ---- events: failures

    def _check_regularly(self) -> None:
        self.check_nodes()
        self._inbox.later(self._heartbeat_timeout / HEARTBEATS_PER_TIMEOUT, self._check_regularly)

    def check_nodes(self) -> None:
        """Give up nodes that hang, and those whose supervisors send no heartbeat: their host or network is gone."""
        now = time.monotonic()
        paused, self._checked = now - self._checked > self._heartbeat_timeout / 2, now
        for node in self.nodes:
            channel = node.channel
            if paused:  # this process, as by native code that holds Python's lock: heartbeats wait to be received
                node.last_message = now
            elif channel is not None and now - node.last_message > self._heartbeat_timeout:
                self._lost(node, silent(self._heartbeat_timeout), channel)
        self._find_hung()

    def _find_hung(self) -> None:
        """Give up a training that makes no progress any more."""
        idle = self.idle()
        if not idle or self._failures.begun:
            return
        found = None
        if self._restarts_nodes and not self.spec.num_ps:  # none waits for another in TensorFlow
            found = find_hung(idle, [], self.feed)
        trainers = [node for node in self.trainers() if not (node.serving or node.lost)]
        found = found or find_hung(idle, trainers, self.feed)
        if found is not None:
            self.fail(found[0], self._joint.explain(*found))

    def _lost(self, node: Node, failure: Failed, channel: Channel) -> None:
        if node.channel is not channel:
            return
        if not self._stopping and node.state not in (NodeState.FAILED, NodeState.GONE):
            self.fail(node, failure)
            self._on_feed_message(node, failure)
        if node.channel is channel:  # and the node is not started again
            self.move(node, NodeState.GONE)
            node.channel = None

    def fail(self, node: Node, failure: Failed | None, *, placeable: bool = True) -> None:
        """Carry out what is decided about the failure of a node, if there is one.

        Parameters
        ----------
        node : Node
            The node.
        failure : Failed or None
            Its failure.
        placeable : bool
            Whether there may be a place for its next process.
        """
        if failure is None or self._stopping or node.lost:
            return
        cause = failure.kind.name.lower()
        self.breakpoints.left(node, f"it has failed: {failure.reason}", goes_on=False)
        self._failures.withdraw(node, failure)
        if placeable:
            self._console.failed(str(node.role), node.host, failure)
        # Whether it was a preemption takes time to find out: the process is retired first.
        preempted = None if may_be_preemption(cause, self._policy) else False
        self.carry_out(node, failure, decide(self.state_of(node, placeable=placeable), Failure(cause, preempted)))

    def carry_out(self, node: Node, failure: Failed, decision: Decision) -> None:
        """Carry out a decision about a node that has failed."""
        match decision:
            case Keep():
                text = "%s on %s failed after its program had returned: %s. Its result is kept"
                CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, failure.reason)
            case Replace():
                executor = node.executor
                channel = self._retire(node, failure)
                self._start(node, failure, channel, executor)
            case Lose(note):
                self._lose(node, replace(failure, reason=failure.reason + note))
            case EndAttempt(note):
                self.move(node, NodeState.FAILED)
                self._failures.note(node, replace(failure, reason=failure.reason + note))

    def state_of(self, node: Node, *, placeable: bool = True) -> Running:
        """Return what is known about a node that has failed."""
        return Running(
            self._policy,
            node.used,
            complete=self.members.complete,
            placeable=placeable,
            serves=node.serves if self.spec.num_ps else None,
            fed=len(self.fed()),
            rounds=self._joint.others_in_rounds(node),
            chief=node is self.chief,
            returned=node.returned,
            answering=node.answering,
            replaceable=self._is_replaceable(node),
        )

    def _is_replaceable(self, node: Node) -> bool:
        """Whether a node is needed only for inference, and others answer that too."""
        if self.spec.num_ps or not node.answering or not all(each.returned or each.lost for each in self.trainers()):
            return False
        return any(each is not node for each in self.answering())

    def answering(self) -> list[Node]:
        """Return the nodes that answer inference."""
        up = NodeState.RUNNING, NodeState.RETURNED
        return [node for node in self.fed() if node.answering and node.state in up]

    def _lose(self, node: Node, failure: Failed) -> None:
        """Go on without a node."""
        self.move(node, NodeState.FAILED)
        self._failures.lose(node, failure)
        self._note_failure(node, failure)
        if node.answering:
            Thread(target=self._on_lost, args=([node],), daemon=True).start()
        self._joint.go_on_without(node)
        self.send(node.number, Stop(grace_seconds=0.0))  # it may only hang
        self._on_feed_message(node, failure)

    def _retire(self, node: Node, failure: Failed) -> Channel | None:
        """End a node's process, in whose place another one is started; return its channel."""
        self._note_failure(node, failure)
        channel = node.channel
        if channel is not None:
            self._former.add(channel)
            self.send(node.number, Stop(grace_seconds=0.0))
        # Its program was done with the feeds before the one that it last asked for.
        self.renew(node, max(node.first_feed, node.feed_wanted, -1 if self.feed is None else self.feed))
        self._joint.node_lost(node)
        self._on_feed_message(node, failure)
        return channel

    def _note_failure(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node without which the cluster goes on; `_end_all` notes that of a cluster."""
        text = f"{node.role} on {node.host} failed: {failure.reason}".partition("\n")[0]
        self.metrics.note("failure", text, str(node.role))

    @property
    def ended(self) -> bool:
        """Whether the driver has sent all nodes a `Stop`."""
        return self._stopping

    def _conclude(self) -> None:
        """End all nodes, now that the root cause is certain."""
        if self._failed or self._stopping:
            return
        self._failed = True
        self._stopping = True
        self.metrics.fail()
        error = self._failures.first()
        self.metrics.note("failure", str(error).partition("\n")[0], error.node)
        # The driver's program is first: the ends of many nodes would keep it from the lock. Cancelling Spark's jobs
        # takes time, and must not hold up the messages.
        Thread(target=self._end_all, daemon=True).start()

    def _end_all(self) -> None:
        self.send_all(Stop(grace_seconds=0.0))
        self._on_failure()
        self._on_lost([node for node in self.nodes if node.answering])

    def _cancel(self, error: Exception) -> None:
        if not self._stopping:
            self._cancelled = error
            self._stop(0.0)

    def _stop(self, grace_seconds: float) -> None:
        if not self._stopping:
            self._stopping = True
            self.send_all(Stop(grace_seconds))

    # ---- in the driver's other threads: restarts of single nodes

    def set_starter(self, start: Callable[[Node, Failed, Channel | None, str], None]) -> None:
        """Have a function start failed nodes again, while the others continue.

        Parameters
        ----------
        start : callable
            Takes a node and its failure, the channel of its former process, and Spark's id of its former executor
            (in an event).
        """
        self._start = start

    def put(self, event: Callable[[], object]) -> None:
        """Make a call as an event, soon."""
        self._inbox.put(event)

    def ask(self, event: Callable[[], _T]) -> _T:
        """Make a call as an event; return what it returns, or raise what `wait` raises."""
        answers: list[_T] = []
        self._inbox.put(lambda: answers.append(event()))
        self.wait(lambda: bool(answers))
        return answers[0]

    def wait_until_ended(self, channel: Channel | None, seconds: float) -> None:
        """Wait until a process that is retired has closed its channel."""
        self.wait(lambda: channel not in self._former, seconds)

    # ---- in the driver's other threads: failures

    def failure(self) -> NodeError | None:
        """Return the root cause of the cluster's failure, once it is certain."""
        with self.lock:
            return self._root_cause()

    def _root_cause(self) -> NodeError | None:
        return self._failures.first() if self._failed else None

    def find_cause(self) -> NodeError | None:
        """Send all supervisors a probe; return the root cause of the failure, or None if all nodes are up.

        A Spark task that has lost its node, and the task's job, may know that before the node's supervisor reports it.
        """
        with self.lock:
            probe = 0 if self._stopping else self._failures.probe()

        def certain() -> bool:
            return self._stopping or not (self._failures.begun or self._failures.unanswered(probe))

        # A supervisor that never answers is given up for its missing heartbeats.
        self._inbox.wait(certain, self._heartbeat_timeout + CERTAIN_SECONDS)
        return self.failure()

    # ---- in the driver's other threads: feeds, waiting, the end

    def begin_feed(self, number: int, on_message: Callable[[Node, Any], None]) -> None:
        """Pass the messages of all nodes, and their failures, to a feed until it ends."""
        with self.lock:
            self.feed, self._on_feed_message = number, on_message

    def end_feed(self) -> None:
        """End the current feed: the nodes hold none of its rows any more."""
        with self.lock:
            self.feed, self._on_feed_message = None, _ignore
            for node in self.nodes:
                node.holds = ""

    def end_feeds(self) -> None:
        """Send all nodes, and those that are started again, that no further feed comes."""
        with self.lock:
            self.members.end_feeds()

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition; return whether it holds, at the latest when the time is over.

        Raises
        ------
        NodeError
            As soon as a node has failed.
        ClusterError
            If the cluster was shut down meanwhile.
        """

        def over() -> bool:
            if not self._failed and until():
                return True
            self._raise_if_ended()
            return False

        return self._inbox.wait(over, seconds)

    def _raise_if_ended(self) -> None:
        if self._stopping:
            raise self._cancelled or self._root_cause() or ClusterError("the cluster has been shut down")

    def check(self) -> None:
        """Raise what `wait` raises, if a node has failed or the cluster was shut down."""
        with self.lock:
            self._raise_if_ended()

    def pause(self, seconds: float) -> None:
        """Wait for some time; raise what `wait` raises."""
        self.wait(lambda: False, seconds)

    def wake(self) -> None:
        """Have waiting threads check their conditions again, after a change elsewhere."""
        self._inbox.put(lambda: None)

    def wait_until_gone(self, seconds: float) -> list[Node]:
        """Wait until every supervisor has closed its channel; return the nodes of those that have not in time."""
        never = NodeState.AWAITED, NodeState.RESTARTING  # or not again

        def gone() -> bool:
            left = len(self.nodes) - self.count(*never, NodeState.GONE)
            if self._former or left > self.count(NodeState.FAILED):
                return False
            # A node whose restart has failed has no supervisor either.
            return left == sum(node.state is NodeState.FAILED and node.channel is None for node in self.nodes)

        self._inbox.wait(gone, seconds)
        with self.lock:
            return [node for node in self.nodes if node.channel is not None]

    def cancel(self, error: Exception) -> None:
        """End all nodes on behalf of another thread; whoever waits for the cluster gets this error."""
        with self.lock:
            self._cancel(error)
        self.wake()

    def stop(self, grace_seconds: float) -> None:
        """End all nodes; none of their later messages is a failure."""
        with self.lock:
            self._stop(grace_seconds)
        self.wake()
