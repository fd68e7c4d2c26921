"""What is done about nodes that fail or hang: each decision of `driver/decision.py` is carried out here.

All methods are called in events of the monitor.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

from tensorflowonspark.config import HEARTBEATS_PER_TIMEOUT
from tensorflowonspark.driver.decision import (
    Decision,
    EndAttempt,
    Failure,
    Keep,
    Lose,
    Replace,
    Running,
    decide,
    may_be_preemption,
)
from tensorflowonspark.driver.failures import silent
from tensorflowonspark.driver.hangs import find_hung
from tensorflowonspark.driver.joint_work import JointWork
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.errors import is_planned
from tensorflowonspark.messages import Failed, Stop
from tensorflowonspark.terminal import CONSOLE, printable
from tensorflowonspark.transport import Channel

_log = logging.getLogger(__name__)
Starter = Callable[[Node, Failed, Channel | None, str, bool], None]


class Recovery:
    """Finds nodes of one cluster that fail or hang; starts them again, goes on without them, or ends the cluster.

    `on_lost` is called with nodes that were lost while they answered inference, in a thread of its own.
    """

    def __init__(self, monitor: Monitor, on_lost: Callable[[Sequence[Node]], None] = lambda _: None) -> None:
        self._monitor = monitor
        self._on_lost = on_lost
        self._roster = monitor.roster
        self._restarts_nodes = monitor.config.restarts_nodes
        self._joint = JointWork(monitor.roster, monitor.inbox.later, keeps=self._restarts_nodes)
        self._timeout = monitor.config.heartbeat_timeout
        self._start: Starter
        self._checked = time.monotonic()  # time of the last check for heartbeats

    def start(self) -> None:
        """Begin to check the nodes for heartbeats."""
        self._monitor.inbox.later(0.0, self._check_regularly)

    def set_starter(self, start: Starter) -> None:
        """Have a function start failed nodes again, in an event, while the others continue.

        It takes a node and its failure, the channel of its former process, Spark's id of its former executor, and
        whether that was preempted.
        """
        self._start = start

    # ---- detection

    def _check_regularly(self) -> None:
        self.check_nodes()
        self._monitor.inbox.later(self._timeout / HEARTBEATS_PER_TIMEOUT, self._check_regularly)

    def check_nodes(self) -> None:
        """Give up nodes that hang, and those whose supervisors send no heartbeat: their host or network is gone."""
        now = time.monotonic()
        paused, self._checked = now - self._checked > self._timeout / 2, now
        for node in self._roster.nodes:
            channel = node.process.channel
            if paused:  # this process, as by native code that holds Python's lock: heartbeats wait to be received
                node.process.last_message = now
            elif channel is not None and now - node.process.last_message > self._timeout:
                self.lose_channel(node, silent(self._timeout), channel)
        self.find_hung()

    def find_hung(self) -> None:
        """Give up a training that makes no progress any more."""
        idle = self._roster.idle()
        if not idle or self._monitor.end.failures.begun:
            return
        found = None
        if self._restarts_nodes and not self._roster.spec.num_ps:  # none waits for another in TensorFlow
            found = find_hung(idle, [], self._monitor.feed_number)
        trainers = [node for node in self._roster.trainers() if not (node.program.serving or node.lost)]
        found = found or find_hung(idle, trainers, self._monitor.feed_number)
        if found is not None:
            self.fail(found[0], self._joint.explain(*found))

    def receive(self, node: Node, message: Any) -> None:
        """Note a message about what the nodes do together; fail the cluster if others wait for this node in vain."""
        self.fail(node, self._joint.receive(node, message))

    def lose_channel(self, node: Node, failure: Failed, channel: Channel) -> None:
        """Fail a node whose supervisor is gone."""
        if node.process.channel is not channel:
            return
        if not self._monitor.end.begun and node.state not in (NodeState.FAILED, NodeState.GONE):
            self.fail(node, failure)
        if node.process.channel is channel:  # and the node is not started again
            self._roster.move(node, NodeState.GONE)
            node.process.channel = None

    # ---- decisions

    def fail(self, node: Node, failure: Failed | None, *, placeable: bool = True) -> None:
        """Carry out what is decided about the failure of a node, if there is one; `placeable`: it may start again."""
        if failure is None or self._monitor.end.begun or node.lost:
            return
        cause = failure.kind.name.lower()
        self._monitor.breakpoints.left(node, f"it has failed: {failure.reason}", goes_on=False)
        self._monitor.end.failures.withdraw(node, failure)
        if placeable:
            self._monitor.run.console.failed(str(node.role), node.host, failure)
        # Whether it was a preemption takes time to find out: the process is retired first.
        preempted = None if may_be_preemption(cause, self._monitor.config.restarts) else False
        self.carry_out(node, failure, decide(self.state_of(node, placeable=placeable), Failure(cause, preempted)))

    def carry_out(self, node: Node, failure: Failed, decision: Decision) -> None:
        """Carry out a decision about a node that has failed."""
        match decision:
            case Keep():
                text = "%s on %s failed after its program had returned: %s. Its result is kept"
                CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, failure.reason)
            case Replace():
                executor = node.process.executor
                channel = self._retire(node)
                self._monitor.end.reasons.add(failure, executor, partial(self._start_again, node, channel, executor))
            case Lose(note):
                self._lose(node, replace(failure, reason=failure.reason + note))
            case EndAttempt(note):
                self._roster.move(node, NodeState.FAILED)
                self._monitor.end.failures.note(node, replace(failure, reason=failure.reason + note))

    def state_of(self, node: Node, *, placeable: bool = True) -> Running:
        """Return what is known about a node that has failed."""
        return Running(
            self._monitor.config.restarts,
            node.used,
            complete=self._monitor.members.complete,
            placeable=placeable,
            serves=node.serves if self._roster.spec.num_ps else None,
            fed=len(self._roster.fed()),
            rounds=self._joint.others_in_rounds(node),
            chief=node is self._roster.chief,
            returned=node.program.returned,
            answering=node.program.answering,
            replaceable=self._is_replaceable(node),
        )

    def _is_replaceable(self, node: Node) -> bool:
        """Whether a node is needed only for inference, and others answer that too."""
        roster = self._roster
        if roster.spec.num_ps or not node.program.answering:
            return False
        over = all(each.program.returned or each.lost for each in roster.trainers())
        return over and any(each is not node for each in roster.answering())

    def _lose(self, node: Node, failure: Failed) -> None:
        """Go on without a node."""
        self._roster.move(node, NodeState.FAILED)
        self._monitor.end.failures.lose(node, failure)
        held = f"; with it went {node.feed.holds}" if node.feed.holds else ""
        goes = "answer on: they get its rows" if node.program.returned else "train on"
        report = partial(self._report_loss, node, f"The others {goes}{held}")
        self._monitor.end.reasons.add(failure, node.process.executor, report)
        if node.program.answering:
            Thread(target=self._on_lost, args=([node],), daemon=True).start()
        self._joint.go_on_without(node)
        self._roster.send(node.number, Stop(grace_seconds=0.0))  # it may only hang
        self._lose_rows(node)

    def _lose_rows(self, node: Node) -> None:
        if self._monitor.feed is not None:
            self._monitor.feed.lose(node)

    def _report_loss(self, node: Node, then: str, failure: Failed, _preempted: bool) -> None:
        text = "%s on %s failed: %s. %s"
        CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, printable(failure.reason), then)
        self._note_failure(node, failure)

    def _start_again(
        self, node: Node, channel: Channel | None, executor: str, failure: Failed, preempted: bool
    ) -> None:
        if not is_planned(failure.kind.name.lower()):
            self._note_failure(node, failure)
        self._start(node, failure, channel, executor, preempted)

    def _retire(self, node: Node) -> Channel | None:
        """End a node's process, in whose place another one is started; return its channel."""
        channel = node.process.channel
        self._roster.send(node.number, Stop(grace_seconds=0.0))
        self._monitor.run.metrics.retire(node)
        # Its program was done with the feeds before the one that it last asked for.
        self._roster.renew(node, max(node.feed.next, self._monitor.feed_number or 0))
        self._joint.node_lost(node)
        self._lose_rows(node)
        return channel

    def _note_failure(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node without which the cluster goes on; the `AttemptEnd` notes that of a cluster."""
        text = f"{node.role} on {node.host} failed: {failure.reason}".partition("\n")[0]
        self._monitor.run.metrics.events.note("failure", text, str(node.role), node.host, failure.kind.name.lower())
