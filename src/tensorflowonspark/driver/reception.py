"""What the driver receives: who may open a channel, and a handler for each message of a supervisor."""

import logging
import time
from dataclasses import replace
from functools import partial, singledispatchmethod
from typing import Any

from tensorflowonspark.driver.evaluations import Evaluations
from tensorflowonspark.driver.failures import BROKEN
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeReport, NodeState
from tensorflowonspark.driver.planned_restarts import PlannedRestarts
from tensorflowonspark.driver.recovery import Recovery
from tensorflowonspark.driver.sharing.manifest import node_endpoints
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedFailed, FeedReport, FilesRead, PartitionFed
from tensorflowonspark.messages import (
    Active,
    BreakpointLeft,
    BreakpointReached,
    CheckpointSaved,
    Contribution,
    DebuggerOutput,
    Endpoints,
    EndpointsWanted,
    Evaluation,
    Failed,
    FeedWanted,
    Heartbeat,
    HostNotice,
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
    RunDescribed,
    SaveReply,
    Servers,
    ServersWanted,
    Serving,
    Stacks,
    TensorBoardUp,
    TrainingTotals,
)
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Channel, Listener

_log = logging.getLogger(__name__)
_FREQUENT = (Heartbeat, Lines, NodeUsage, TrainingTotals)  # no thread waits for them, and no event follows


class Reception:
    """Handles the messages of one cluster's supervisors, and passes each on to the object that owns its subject."""

    def __init__(self, monitor: Monitor, recovery: Recovery, planned: PlannedRestarts) -> None:
        self._monitor = monitor
        self._roster = monitor.roster
        self._recovery = recovery
        self._planned = planned
        self._evaluations = Evaluations(monitor.roster)
        self._up = False  # all nodes are, or were
        self._asking: list[Node] = []  # nodes that wait for the addresses of others
        self._endpoints = Endpoints(())  # the answer, once all are up

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
        channel.send(RootCause(str(self._monitor.find_cause() or "")))

    @_open.register
    def _on_servers_wanted(self, _message: ServersWanted, channel: Channel) -> None:
        with self._monitor.lock:
            servers = Servers(node_endpoints(self._roster.answering()))
        channel.send(servers)

    @_open.register
    def _on_register(self, message: Register, channel: Channel) -> Listener | None:
        node = self._monitor.members.node_of(message)
        if node is None or not self._admit(node, message, channel):
            return None  # which closes the channel, and so ends the supervisor
        return Listener(
            partial(self._receive, node, channel),
            lambda: self._monitor.inbox.handle(partial(self._on_channel_end, node, channel)),
        )

    def _receive(self, node: Node, channel: Channel, message: Any) -> None:
        current = node.process.channel is channel
        if current:
            node.process.last_message = time.monotonic()
        if not isinstance(message, _FREQUENT):
            self._monitor.inbox.handle(partial(self._on_message, node, message, channel))
        elif current or isinstance(message, Lines):  # the last ones of a process whose place another one takes
            self._handle(message, node)

    def _admit(self, node: Node, request: Register, channel: Channel) -> bool:
        with self._monitor.lock:
            if not self._monitor.members.admit(node, request, channel):
                return False
            node.process.checked = self._monitor.end.failures.last_probe
            if node.restarts:
                self._monitor.run.console.begin(str(node.role))
        self._monitor.inbox.wake()
        return True

    # ---- events: messages

    def _on_message(self, node: Node, message: Any, channel: Channel | None = None) -> None:
        if node.process.channel is not channel:
            return  # of a process in whose place another one is started
        self._handle(message, node)

    def _on_channel_end(self, node: Node, channel: Channel) -> None:
        self._recovery.lose_channel(node, BROKEN, channel)
        self._roster.former.discard(channel)

    @singledispatchmethod
    def _handle(self, message: Any, node: Node) -> None:
        text = "%s on %s sent a %s, for which the driver has no handler"
        CONSOLE.log(_log, logging.ERROR, text, node.role, node.host, type(message).__name__)

    @_handle.register
    def _on_heartbeat(self, message: Heartbeat, node: Node) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _on_lines(self, message: Lines, node: Node) -> None:
        self._monitor.run.console.show(str(node.role), message.lines, node.host)
        self._monitor.run.metrics.take_lines(node, message.lines)

    @_handle.register
    def _on_node_usage(self, message: NodeUsage, node: Node) -> None:
        self._monitor.run.metrics.take_usage(node, message)

    @_handle.register
    def _on_training_totals(self, message: TrainingTotals, node: Node) -> None:
        self._monitor.run.metrics.take_totals(node, message)
        if message.progress not in (None, node.program.progress):
            node.program.progress = message.progress
            self._monitor.run.console.progress(str(node.role), message.progress)

    @_handle.register
    def _on_node_ready(self, message: NodeReady, node: Node) -> None:
        node.process.ready = message
        self._endpoints = Endpoints(())  # a node that is started again has others
        self._roster.move(node, NodeState.RUNNING)
        if not self._up and self._roster.count(NodeState.RUNNING, NodeState.RETURNED) == len(self._roster.nodes):
            self._up = True
            self._monitor.run.metrics.events.note("started", f"all nodes are up: {self._roster.spec}")
        self._send_endpoints()
        if node.restarts:
            text = "%s is up again on %s (restart %d of this node)"
            CONSOLE.log(_log, logging.INFO, text, node.role, node.host, node.restarts)
            text = f"it is up again on {node.host} (restart {node.restarts} of this node)"
            self._monitor.run.metrics.events.note("node_restart", text, str(node.role))
        self._evaluations.ready(node)

    @_handle.register
    def _on_endpoints_wanted(self, _message: EndpointsWanted, node: Node) -> None:
        self._asking.append(node)
        self._send_endpoints()

    def _send_endpoints(self) -> None:
        if not self._asking or not self._up:
            return
        if not self._endpoints.endpoints:
            self._endpoints = Endpoints(node_endpoints(self._roster.fed()))
        if all(each.ready.feed_port for each in self._endpoints.endpoints):
            for each in self._asking:
                self._roster.send(each.number, self._endpoints)
            self._asking.clear()

    @_handle.register
    def _on_feed_wanted(self, message: FeedWanted, node: Node) -> None:
        node.feed.wanted, node.feed.wanted_since = message.feed, time.monotonic()
        self._recovery.find_hung()
        self._recovery.receive(node, message)
        self._note_program(node)

    @_handle.register
    def _on_serving(self, message: Serving, node: Node) -> None:
        node.receive(message)
        self._note_program(node)

    def _note_program(self, node: Node) -> None:
        if self._monitor.feed is not None:
            self._monitor.feed.note_program(node)

    @_handle.register
    def _on_feed_report(self, message: FeedReport, node: Node) -> None:
        self._recovery.receive(node, message)
        if self._monitor.feed is not None:
            self._monitor.feed.receive(node, message)

    @_handle.register
    def _on_returned(self, message: Returned, node: Node) -> None:
        node.program.returned, node.program.result = True, message.result
        self._monitor.breakpoints.left(node, "its program has returned")
        self._roster.move(node, NodeState.RETURNED)
        self._recovery.find_hung()
        self._recovery.receive(node, message)
        self._evaluations.returned(node)
        self._note_program(node)

    @_handle.register(Contribution)
    @_handle.register(FilesRead)
    @_handle.register(KerasImported)
    @_handle.register(RoundBroken)
    @_handle.register(RoundExchanged)
    @_handle.register(RoundReached)
    def _on_joint_message(self, message: Any, node: Node) -> None:
        self._recovery.receive(node, message)

    @_handle.register
    def _on_failed(self, message: Failed, node: Node) -> None:
        if message.kind is FailureKind.EXITED and not message.output:  # by sys.exit: the reason is in what it printed
            message = replace(message, output="\n".join(self._monitor.run.metrics.lines(node.number)))
        self._recovery.fail(node, message)

    @_handle.register(FeedFailed)
    @_handle.register(InferenceReady)
    @_handle.register(PartitionFed)
    @_handle.register(ProbeReply)
    @_handle.register(ProgramBegun)
    def _on_node_report(self, message: NodeReport, node: Node) -> None:
        node.receive(message)

    @_handle.register
    def _on_checkpoint_saved(self, message: CheckpointSaved, node: Node) -> None:  # noqa: ARG002
        self._roster.saved[message.directory] = message.feed
        self._planned.saved(message)
        self._evaluations.saved(message)

    @_handle.register
    def _on_evaluation(self, message: Evaluation, node: Node) -> None:
        node.program.evaluating = bool(node.program.evaluating or message.directory)
        self._monitor.run.metrics.take_evaluation(message)
        self._evaluations.evaluated(message)

    @_handle.register
    def _on_run_described(self, message: RunDescribed, node: Node) -> None:  # noqa: ARG002
        self._monitor.run.metrics.manifest = message.manifest

    @_handle.register
    def _on_host_notice(self, message: HostNotice, node: Node) -> None:
        self._planned.receive(node, message)

    @_handle.register
    def _on_save_reply(self, message: SaveReply, node: Node) -> None:
        self._planned.receive_reply(node, message)

    @_handle.register
    def _on_tensor_board_up(self, message: TensorBoardUp, node: Node) -> None:  # noqa: ARG002
        self._roster.tensorboard_url = message.url

    @_handle.register
    def _on_stacks(self, message: Stacks, node: Node) -> None:
        self._monitor.stacks.receive(node, message)

    @_handle.register(BreakpointLeft)
    @_handle.register(BreakpointReached)
    @_handle.register(DebuggerOutput)
    def _on_debugger_message(self, message: Any, node: Node) -> None:
        self._monitor.breakpoints.receive(node, message)

    @_handle.register
    def _on_idle(self, message: Idle, node: Node) -> None:
        self._roster.set_idle(node, message)
        self._recovery.find_hung()

    @_handle.register
    def _on_active(self, _message: Active, node: Node) -> None:
        self._roster.set_idle(node, None)
