"""State of a running cluster: handlers for the messages of its nodes, and waiting for conditions on their states.

Every supervisor holds a channel to the driver, and each channel has a thread. All state is kept here under one lock,
and each change wakes the threads that wait for a condition.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatchmethod
from threading import Condition, RLock, Thread
from typing import Any, Protocol

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.advice import training_advice
from tensorflowonspark.driver.collectives import Collectives, FileFeeds, Passes
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.failures import BROKEN, Failures, find_hung, silent
from tensorflowonspark.driver.members import Membership
from tensorflowonspark.driver.metrics.store import MetricsStore
from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.errors import ClusterError, FailureKind, NodeError
from tensorflowonspark.feed_messages import FeedFailed, FeedReport, FilesRead, PartitionFed, PassEnded
from tensorflowonspark.messages import (
    Active,
    CheckpointSaved,
    Contribution,
    Failed,
    FeedWanted,
    Heartbeat,
    Idle,
    InferenceReady,
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
    Serving,
    Stop,
    TensorBoardUp,
    TrainingTotals,
)
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Channel, ConnectionLost

__all__ = ["Monitor", "NodeListener"]

_log = logging.getLogger(__name__)
_FREQUENT = (Heartbeat, Lines, NodeUsage, TrainingTotals)  # no thread waits for them
_CAUSE_SECONDS = 5.0  # for the root cause to be certain, beyond the time after which silent supervisors are given up


class NodeListener(Protocol):
    """What learns of nodes that are started again alone; called under the monitor's lock."""

    def node_lost(self, node: Node) -> None:
        """Note that a node has failed; the others continue, and another process takes its place."""

    def node_replaced(self, node: Node) -> None:
        """Note that the new process of a node is up; its program begins."""


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
    restarts_nodes : bool
        Whether nodes may be started again alone, which then need what was sent to all before.
    metrics : MetricsStore, optional
        Collects what the nodes measure and report.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        cluster: str,
        console: ConsoleReporter,
        heartbeat_timeout: float,
        on_failure: Callable[[], None] = lambda: None,
        *,
        restarts_nodes: bool = False,
        metrics: MetricsStore | None = None,
    ) -> None:
        super().__init__(spec)
        self.metrics = metrics or MetricsStore()
        self.tensorboard_url: str | None = None
        self.saved_in = -1  # the feed in which the programs have written their last checkpoint
        # The lock of all state is entered itself, not through the condition: a signal in Condition.__enter__, which is
        # Python code, would leave it locked.
        self.lock = RLock()
        self.changed = Condition(self.lock)  # notified of each change
        self.feed: int | None = None  # the number of the current feed
        self._on_feed_message: Callable[[Node, Any], None] | None = None  # called under the lock
        self._file_feeds = FileFeeds(self.send, keeps=restarts_nodes)
        self._passes = Passes(self.send)
        self._collectives = Collectives(self.send, keeps=restarts_nodes)
        self._console = console
        self._heartbeat_timeout = heartbeat_timeout
        self._on_failure = on_failure
        self._rounds = Rounds(self.send, self.lock, self.fed)
        self._restarts_nodes = restarts_nodes
        self._restart: Callable[[Node, Failed], Failed | None] = lambda _node, failure: failure
        self.listeners: list[NodeListener] = [self._collectives, self._file_feeds, self._rounds]
        self.members = Membership(self, cluster, lambda: not (self._stopping or self._failures.begun))
        self._former: set[Channel] = set()  # of processes in whose place others are started
        self._failures = Failures(self, self.lock, self._conclude, self._rounds.can_lose)
        self._checked = time.monotonic()  # time of the last check for heartbeats
        self._up = False  # all nodes are, or were
        self._failed = False  # and the root cause is certain
        self._stopping = False
        self._cancelled: Exception | None = None

    # ---- messages (each channel in its own thread)

    def serve(self, channel: Channel) -> None:
        """Handle the request that opens a channel, and after a `Register` all messages of the supervisor."""
        self._open(channel.receive(), channel)

    @singledispatchmethod
    def _open(self, message: Any, channel: Channel) -> None:  # noqa: ARG002
        CONSOLE.log(_log, logging.ERROR, "a channel was opened by a %s, not by a request", type(message).__name__)

    @_open.register
    def _(self, _message: NodeLost, channel: Channel) -> None:
        channel.send(RootCause(str(self.find_cause() or "")))

    @_open.register
    def _(self, message: Register, channel: Channel) -> None:
        node = self._admit(message, channel)
        if node is None:
            return  # the end of this call closes the channel, which ends the supervisor
        try:
            while True:
                report = channel.receive()
                if node.channel is channel:
                    node.last_message = time.monotonic()
                    self._on_message(node, report, channel)
                elif isinstance(report, Lines):  # the last ones of a process in whose place another one is started
                    self._handle(report, node)
        except ConnectionLost:
            pass
        finally:
            self._lost(node, BROKEN, channel)
            with self.lock:
                self._former.discard(channel)
                self.changed.notify_all()

    def _admit(self, request: Register, channel: Channel) -> Node | None:
        node = self.members.node_of(request)
        if node is None:
            return None
        with self.lock:
            if not self.members.admit(node, request, channel):
                return None
            node.checked = self._failures.last_probe
            if node.restarts:
                self._console.begin(str(node.role))
            self.changed.notify_all()
        return node

    def _on_message(self, node: Node, message: Any, channel: Channel | None = None) -> None:
        if isinstance(message, _FREQUENT):
            self._handle(message, node)
            return
        with self.lock:
            if node.channel is not channel:
                return  # of a process in whose place another one is started
            self._handle(message, node)
            if self._on_feed_message is not None:
                self._on_feed_message(node, message)
            self.changed.notify_all()

    @singledispatchmethod
    def _handle(self, message: Any, node: Node) -> None:
        text = "%s on %s sent a %s, for which the driver has no handler"
        CONSOLE.log(_log, logging.ERROR, text, node.role, node.host, type(message).__name__)

    @_handle.register
    def _(self, message: Heartbeat, node: Node) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _(self, message: Lines, node: Node) -> None:
        self._console.show(str(node.role), message.lines, node.host)
        self.metrics.take_lines(node, message.lines)

    @_handle.register
    def _(self, message: NodeUsage, node: Node) -> None:
        self.metrics.take_usage(node, message)

    @_handle.register
    def _(self, message: TrainingTotals, node: Node) -> None:
        self.metrics.take_totals(node, message)
        if message.progress not in (None, node.progress):
            node.progress = message.progress
            self._console.progress(str(node.role), message.progress)

    @_handle.register
    def _(self, message: NodeReady, node: Node) -> None:
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
            for each in self.listeners:
                each.node_replaced(node)

    @_handle.register
    def _(self, message: FeedWanted, node: Node) -> None:
        node.feed_wanted, node.feed_wanted_since = message.feed, time.monotonic()
        self._fail_if_awaited(node, message)

    @_handle.register
    def _(self, message: Returned, node: Node) -> None:
        node.returned, node.result = True, message.result
        self.move(node, NodeState.RETURNED)
        self._rounds.receive(node, message)
        self._fail_if_awaited(node, message)

    def _fail_if_awaited(self, node: Node, message: FeedWanted | Returned) -> None:
        """Fail the cluster if others wait for a node that has gone on to its next feed, or returned."""
        self._find_hung()
        failure = self._file_feeds.receive(node, message, self.fed())
        self._fail(node, failure or self._collectives.receive(node, message, self.fed()))

    @_handle.register
    def _(self, message: Failed, node: Node) -> None:
        if message.kind is FailureKind.EXITED and not message.output:  # by sys.exit: the reason is in what it printed
            message = replace(message, output="\n".join(self.metrics.lines(node.number)))
        self._fail(node, message)

    @_handle.register
    def _(self, message: Contribution, node: Node) -> None:
        self._fail(node, self._collectives.receive(node, message, self.fed()))

    @_handle.register(RoundReached)
    @_handle.register(RoundExchanged)
    @_handle.register(RoundBroken)
    def _(self, message: RoundReached | RoundExchanged | RoundBroken, node: Node) -> None:
        self._rounds.receive(node, message)

    @_handle.register
    def _(self, message: FilesRead, node: Node) -> None:
        self._fail(node, self._file_feeds.receive(node, message, self.fed()))

    @_handle.register
    def _(self, message: FeedReport, node: Node) -> None:
        self._file_feeds.report(node, message)  # those of other feeds the session of the running feed handles

    @_handle.register
    def _(self, message: PassEnded, node: Node) -> None:
        self._passes.count(node, message)
        self._report_passes()

    def _report_passes(self) -> None:
        self._passes.report(self.fed(), self.chief.number)

    @_handle.register
    def _(self, message: PartitionFed, node: Node) -> None:
        node.fed_parts = message.parts

    @_handle.register
    def _(self, message: FeedFailed, node: Node) -> None:
        node.feed_failed = message.reason

    @_handle.register
    def _(self, _message: ProgramBegun, node: Node) -> None:
        node.begun_at = time.monotonic()

    @_handle.register
    def _(self, _message: Serving, node: Node) -> None:
        node.serving = True

    @_handle.register
    def _(self, _message: InferenceReady, node: Node) -> None:
        node.answering = True

    @_handle.register
    def _(self, message: CheckpointSaved, node: Node) -> None:  # noqa: ARG002
        self.saved_in = message.feed

    @_handle.register
    def _(self, message: TensorBoardUp, node: Node) -> None:  # noqa: ARG002
        self.tensorboard_url = message.url

    @_handle.register
    def _(self, message: ProbeReply, node: Node) -> None:
        node.checked = message.number

    @_handle.register
    def _(self, message: Idle, node: Node) -> None:
        self.set_idle(node, message)
        self._find_hung()

    @_handle.register
    def _(self, _message: Active, node: Node) -> None:
        self.set_idle(node, None)

    # ---- failures

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
        with self.lock:
            self._find_hung()

    def _find_hung(self) -> None:
        """Give up a training that makes no progress any more."""
        idle = self.idle()
        if not idle:
            return
        found = None
        if self._restarts_nodes and not self.spec.num_ps:  # none waits for another in TensorFlow
            found = find_hung(idle, [], self.feed)
        trainers = [node for node in self.trainers() if not (node.serving or node.lost)]
        found = found or find_hung(idle, trainers, self.feed)
        if found is not None:
            self._fail(found[0], self._collectives.explain(*found))

    def _lost(self, node: Node, failure: Failed, channel: Channel) -> None:
        with self.lock:
            if node.channel is not channel:
                return
            if not self._stopping and node.state not in (NodeState.FAILED, NodeState.GONE):
                self._fail(node, failure)
                if self._on_feed_message is not None:
                    self._on_feed_message(node, failure)
            if node.channel is channel:  # and the node is not started again
                self.move(node, NodeState.GONE)
                node.channel = None
            self.changed.notify_all()

    def _fail(self, node: Node, failure: Failed | None) -> None:
        if failure is not None and not self._stopping:
            self._console.failed(str(node.role), node.host, failure)
            failure = self._restart(node, failure)
        if failure is not None:
            self.give_up(node, failure)

    def give_up(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node in whose place none is started."""
        with self.lock:
            if self._stopping:
                return
            self.move(node, NodeState.FAILED)
            self._failures.note(node, failure)
            if node.lost:
                self._note_failure(node, failure)
                self._report_passes()  # the others may all have ended theirs
                self._file_feeds.lose(node)
                self._rounds.node_lost(node)
                self.send(node.number, Stop(grace_seconds=0.0))  # it may only hang
                if self._on_feed_message is not None:
                    self._on_feed_message(node, failure)

    def fail_start(self, node: Node, restart: int, failure: Failed) -> None:
        """Note that a restart of a node has failed, unless it is up or another restart has begun."""
        with self.lock:
            if node.restarts == restart and node.state in (NodeState.RESTARTING, NodeState.CONNECTED):
                self._fail(node, failure)
                self.changed.notify_all()

    def set_restarter(self, restart: Callable[[Node, Failed], Failed | None]) -> None:
        """Have a function start failed nodes again, while the others continue.

        Parameters
        ----------
        restart : callable
            Takes a node and its failure, under the lock; returns the failure if the node is not started again.
        """
        self._restart = restart

    def retire(self, node: Node, failure: Failed) -> Channel | None:
        """End a node's process, in whose place another one is started (under the lock); return its channel."""
        self._note_failure(node, failure)
        channel = node.channel
        if channel is not None:
            self._former.add(channel)
            self.send(node.number, Stop(grace_seconds=0.0))
        # Its program was done with the feeds before the one that it last asked for.
        self.renew(node, max(node.first_feed, node.feed_wanted, -1 if self.feed is None else self.feed))
        for each in self.listeners:
            each.node_lost(node)
        if self._on_feed_message is not None:
            self._on_feed_message(node, failure)
        self.changed.notify_all()
        return channel

    def _note_failure(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node without which the cluster goes on; `_end_all` notes that of a cluster."""
        text = f"{node.role} on {node.host} failed: {failure.reason}".partition("\n")[0]
        self.metrics.note("failure", text, str(node.role))

    def has_ended(self, channel: Channel | None) -> bool:
        """Return whether a process that is retired has closed its channel."""
        return channel not in self._former

    def _conclude(self) -> None:
        """End all nodes, now that the root cause is certain."""
        with self.lock:
            if self._failed or self._stopping:
                return
            self._failed = True
            self._stopping = True
            self.metrics.fail()
            error = self._failures.first()
            self.metrics.note("failure", str(error).partition("\n")[0], error.node)
            self.changed.notify_all()
        # The driver's program is first: the ends of many nodes would keep it from the lock. Cancelling Spark's jobs
        # takes time, and must not hold up the thread of a channel.
        Thread(target=self._end_all, daemon=True).start()

    def _end_all(self) -> None:
        self.send_all(Stop(grace_seconds=0.0))
        self._on_failure()

    def failure(self) -> NodeError | None:
        """Return the root cause of the cluster's failure, once it is certain."""
        with self.lock:
            return self._failures.first() if self._failed else None

    def find_cause(self) -> NodeError | None:
        """Send all supervisors a probe; return the root cause of the failure, or None if all nodes are up.

        A Spark task that has lost its node, and the task's job, may know that before the node's supervisor reports it.
        """

        def certain() -> bool:
            return self._stopping or not (self._failures.begun or self._failures.unanswered(probe))

        with self.lock:
            if not self._stopping:
                probe = self._failures.probe()
                # A supervisor that never answers is given up for its missing heartbeats.
                self.changed.wait_for(certain, self._heartbeat_timeout + _CAUSE_SECONDS)
        return self.failure()

    # ---- for the driver's other parts

    def begin_feed(self, number: int, on_message: Callable[[Node, Any], None]) -> None:
        """Pass the messages of all nodes, and their failures, to a feed until it ends."""
        with self.lock:
            self.feed, self._on_feed_message = number, on_message

    def end_feed(self) -> None:
        """End the current feed: the nodes hold none of its rows any more."""
        with self.lock:
            self.feed = self._on_feed_message = None
            for node in self.nodes:
                node.holds = ""

    def end_feeds(self) -> None:
        """Send all nodes, and those that are started again, that no further feed comes."""
        with self.lock:
            self.members.end_feeds()

    def present_advice(self) -> str | None:
        """Return what bounds the training at present; None if that is not certain."""
        in_step = not (self.spec.num_ps or self._restarts_nodes)
        with self.lock:
            return training_advice(self.fed(), self.metrics, in_step=in_step)

    def take_advice(self) -> str | None:
        """Return what bounded the training that has ended, once; None if that is not certain."""
        with self.lock:
            found = self.present_advice()
            self.metrics.forget_paces()
            return found

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition; return whether it holds, at the latest when the time is over.

        Raises
        ------
        NodeError
            As soon as a node has failed.
        ClusterError
            If the cluster was shut down meanwhile.
        """
        end = None if seconds is None else time.monotonic() + seconds
        with self.lock:
            while self._failed or not until():
                if self._stopping:
                    raise self._cancelled or self.failure() or ClusterError("the cluster has been shut down")
                rest = None if end is None else end - time.monotonic()
                if rest is not None and rest <= 0:
                    return False
                self.changed.wait(rest)
        return True

    def wake(self) -> None:
        """Have waiting threads check their conditions again, after a change elsewhere."""
        with self.lock:
            self.changed.notify_all()

    def wait_until_gone(self, seconds: float) -> list[Node]:
        """Wait until every supervisor has closed its channel; return the nodes of those that have not in time."""
        with self.lock:
            never = NodeState.AWAITED, NodeState.RESTARTING  # or not again
            # A node whose restart has failed has no supervisor either.
            without = sum(node.state is NodeState.FAILED and node.channel is None for node in self.nodes)
            self.changed.wait_for(
                lambda: self.count(*never, NodeState.GONE) + without == len(self.nodes) and not self._former, seconds
            )
            return [node for node in self.nodes if node.channel is not None]

    def cancel(self, error: Exception) -> None:
        """End all nodes on behalf of another thread; whoever waits for the cluster gets this error."""
        with self.lock:
            if not self._stopping:
                self._cancelled = error
                self.stop(0.0)
                self.changed.notify_all()

    def stop(self, grace_seconds: float) -> None:
        """End all nodes; none of their later messages is a failure."""
        with self.lock:
            if not self._stopping:
                self._stopping = True
                self.send_all(Stop(grace_seconds))
