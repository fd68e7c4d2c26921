"""The nodes as the driver sees them: what each has said last, which failed first, and what that means for all.

Every supervisor holds a channel to the driver; one thread for each hears what it says. All that is known is kept here,
under one lock, and whoever waits for something is woken by each change.
"""

import hmac
import logging
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any, TypeGuard

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.collectives import Collectives
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.failures import BROKEN, Failures, find_hung, silent
from tensorflowonspark.driver.feed.file_feed import FileFeeds
from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.errors import ClusterError, NodeError
from tensorflowonspark.feed_messages import FeedFailed, FilesRead, PartsStored
from tensorflowonspark.messages import (
    Accepted,
    Active,
    CheckpointSaved,
    Contribution,
    Failed,
    FeedWanted,
    Heartbeat,
    Idle,
    InferenceReady,
    Lines,
    Member,
    Members,
    NodeLost,
    NodeReady,
    ProbeReply,
    Progress,
    Register,
    Returned,
    RootCause,
    Serving,
    Stop,
    TensorBoardUp,
)
from tensorflowonspark.task.gpus import divide
from tensorflowonspark.transport import Channel, ConnectionLost

__all__ = ["Monitor"]

_log = logging.getLogger(__name__)
_CAUSE_SECONDS = 5.0  # for the first cause to be certain, more than the time after which supervisors are given up


class Monitor(Roster):
    """Knows all nodes of one cluster.

    Parameters
    ----------
    spec : ClusterSpec
        Which nodes there are to be.
    cluster : str
        The cluster's id; a hello for another one is refused.
    watcher : Watcher
        Is shown what the nodes print and how far they are.
    silence : float
        Seconds without a sign of life after which a node is given up.
    on_failure : callable
        Called once, when the first failure is certain.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        cluster: str,
        watcher: ConsoleReporter,
        silence: float,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(spec)
        self.tensorboard_url: str | None = None
        self.saved_in = -1  # the feed in which the programs have written their last checkpoint
        self.changed = Condition()  # guards all that is known; told of each change
        # Is told, under the lock, what nodes say, while they are fed.
        self.on_feed: Callable[[Node, Any], None] | None = None
        self.feed: int | None = None  # the number of the feed that is going on
        self._own_reads = FileFeeds(self.tell)
        self._collectives = Collectives(self.tell)
        self._cluster = cluster
        self._watcher = watcher
        self._silence = silence
        self._on_failure = on_failure
        self._failures = Failures(self, self.changed, self._conclude)
        self._failed = False  # the first cause is certain
        self._stopping = False

    # ---- what supervisors say (each in a thread of its own)

    def serve(self, channel: Channel) -> None:
        """Hear a supervisor out, from its hello to its end."""
        hello = channel.receive()
        if isinstance(hello, NodeLost):
            channel.send(RootCause(str(self.find_cause() or "")))
            return
        node = self._admit(hello, channel)
        if node is None:
            return  # the end of this call closes the channel, and with it the supervisor's node
        try:
            while True:
                message = channel.receive()
                node.heard = time.monotonic()
                self._hear(node, message)
        except ConnectionLost:
            pass
        finally:
            self._lost(node, BROKEN)

    def _admit(self, hello: Any, channel: Channel) -> Node | None:
        if not self._is_sound(hello):
            return None
        with self.changed:
            node = self.nodes[hello.member.number]
            # A second supervisor for a node is one of a repeated stage, whose cluster has already failed.
            if self._stopping or self._failures.begun or node.state is not NodeState.AWAITED:
                return None
            node.member, node.channel = hello.member, channel
            node.pid, node.jvm_pid = hello.pid, hello.jvm_pid
            node.state = NodeState.CONNECTED
            node.heard = time.monotonic()
            self.tell(node.number, Accepted())
            if all(each.member for each in self.nodes):
                self._introduce()
            self.changed.notify_all()
        return node

    def _is_sound(self, hello: Any) -> TypeGuard[Register]:
        """Whether a first word is a hello for a node of this cluster."""
        match hello:
            case Register(Member(int(number), role), str(cluster)):
                ours = hmac.compare_digest(cluster.encode(), self._cluster.encode())
                return ours and 0 <= number < len(self.nodes) and role == self.nodes[number].role
        return False

    def _introduce(self) -> None:
        """Tell all nodes of each other, and which GPUs each has."""
        members = [node.member for node in self.nodes if node.member]
        gpus = divide([(member.host, () if member.role.job == "ps" else member.gpus) for member in members])
        final = tuple(
            Member(each.number, each.role, each.host, each.port, own) for each, own in zip(members, gpus, strict=True)
        )
        self.send_all(Members(final))

    def _hear(self, node: Node, message: Any) -> None:
        if isinstance(message, Heartbeat):
            return  # that it was heard is all that it says, and nobody waits for that
        if isinstance(message, Lines):
            self._watcher.show(str(node.role), message.lines)
            return
        if isinstance(message, Progress):
            node.progress = message
            self._watcher.progress(str(node.role), message)
            return
        with self.changed:
            self._note(node, message)
            if isinstance(message, CheckpointSaved):
                self.saved_in = message.feed
            if isinstance(message, TensorBoardUp):
                self.tensorboard_url = message.url
            if isinstance(message, (Idle, Active)):
                node.idle = message if isinstance(message, Idle) else None
            self._judge(node, message)
            if self.on_feed is not None:
                self.on_feed(node, message)
            self.changed.notify_all()

    def _note(self, node: Node, message: Any) -> None:
        """Keep what a node has said."""
        match message:
            case NodeReady():
                node.ready = message
                self._move(node, NodeState.RUNNING)
            case FeedWanted():
                node.feed_wanted = message.feed
            case Serving():
                node.serving = True
            case ProbeReply():
                node.checked = message.number
            case InferenceReady():
                node.answering = True
            case PartsStored():
                node.stored = message.parts
            case Returned():
                node.returned, node.result = True, message.result
                self._move(node, NodeState.RETURNED)
            case FeedFailed():
                node.feed_failed = message.reason
            case Failed():
                self._note_failure(node, message)

    def _judge(self, node: Node, message: Any) -> None:
        """Give up nodes that can't go on, now that one has said this."""
        if isinstance(message, (Idle, FeedWanted, Returned)):
            self._find_hung()
        failure = None
        if isinstance(message, (FilesRead, Returned)):
            failure = self._own_reads.hear(node, message, self.fed())
        if failure is None and isinstance(message, (Contribution, FeedWanted, Returned)):
            failure = self._collectives.receive(node, message, self.fed())
        if failure is not None:
            self._note_failure(node, failure)

    def look_around(self) -> None:
        """Give up nodes that hang, and those whose supervisors send no heartbeat: their host or network is gone."""
        for node in self.nodes:
            if node.channel is not None and time.monotonic() - node.heard > self._silence:
                self._lost(node, silent(self._silence))
        with self.changed:
            self._find_hung()

    def _find_hung(self) -> None:
        """Give up a training in which nothing moves any more."""
        found = find_hung(self.nodes, [node for node in self.trainers() if not node.serving], self.feed)
        if found is not None:
            self._note_failure(found[0], self._collectives.explained(*found))

    def _lost(self, node: Node, failure: Failed) -> None:
        with self.changed:
            if not self._stopping and node.state not in (NodeState.FAILED, NodeState.GONE):
                self._note_failure(node, failure)
                if self.on_feed is not None:
                    self.on_feed(node, failure)
            self._move(node, NodeState.GONE)
            node.channel = None
            self.changed.notify_all()

    def _move(self, node: Node, state: NodeState) -> None:
        if state.value > node.state.value:
            node.state = state

    def _note_failure(self, node: Node, failure: Failed) -> None:
        if not self._stopping:
            self._move(node, NodeState.FAILED)
            self._failures.note(node, failure)

    def _conclude(self) -> None:
        """Settle what failed first, and end everything else."""
        with self.changed:
            if self._failed or self._stopping:
                return
            self._failed = True
            self._stopping = True
            self.changed.notify_all()
        # The driver's program comes first: the ends of many nodes would keep it from the lock. And to ask Spark to
        # cancel jobs takes its time, which the thread that hears a node must not wait for.
        Thread(target=self._end_all, daemon=True).start()

    def _end_all(self) -> None:
        self.send_all(Stop(grace_seconds=0.0))
        self._on_failure()

    def failure(self) -> NodeError | None:
        """Return the first cause of the cluster's failure, once it is certain."""
        with self.changed:
            return self._failures.first() if self._failed else None

    def find_cause(self) -> NodeError | None:
        """Ask all supervisors to look at their nodes; return the first cause of the failure, None if all are there.

        Whoever has lost a node, a Spark task or the job that it belongs to, may know that before the node's supervisor
        has sent why.
        """

        def certain() -> bool:
            return self._stopping or not (self._failures.begun or self._failures.unchecked(check))

        with self.changed:
            if not self._stopping:
                check = self._failures.check()
                # A supervisor that never answers is found by its silence.
                self.changed.wait_for(certain, self._silence + _CAUSE_SECONDS)
        return self.failure()

    # ---- what the driver does

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something is so; return whether it is when the time is over.

        Raises
        ------
        NodeError
            As soon as a node has failed.
        ClusterError
            If the cluster was shut down meanwhile.
        """
        end = None if seconds is None else time.monotonic() + seconds
        with self.changed:
            while self._failed or not until():
                if self._stopping:
                    raise self.failure() or ClusterError("the cluster has been shut down")
                rest = None if end is None else end - time.monotonic()
                if rest is not None and rest <= 0:
                    return False
                self.changed.wait(rest)
        return True

    def wake(self) -> None:
        """Have those that wait look again: something that they wait for may have changed elsewhere."""
        with self.changed:
            self.changed.notify_all()

    def wait_until_gone(self, seconds: float) -> list[Node]:
        """Wait until every supervisor has hung up; return the nodes of those that have not in time."""

        def present() -> list[Node]:
            return [node for node in self.nodes if node.channel is not None]

        with self.changed:
            self.changed.wait_for(lambda: not present(), seconds)
            return present()

    def stop(self, grace_seconds: float) -> None:
        """End all nodes; what they say from now on is no failure."""
        with self.changed:
            if not self._stopping:
                self._stopping = True
                self.send_all(Stop(grace_seconds))
