"""The link of a node to its supervisor, and through it to the driver."""

import logging
import os
from collections import defaultdict, deque
from collections.abc import Callable
from functools import singledispatchmethod
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any
from weakref import WeakSet

from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, PassesEnded, RowsCounted, StepGrant
from tensorflowonspark.messages import (
    CheckpointSaved,
    Contributed,
    DebuggerInput,
    Endpoints,
    EndpointsWanted,
    Evaluation,
    Heartbeat,
    Member,
    MemberReplaced,
    Members,
    NodeEndpoint,
    NoMoreFeeds,
    Notice,
    PortReleased,
    ReleasePort,
    RoundPlan,
    RoundRefused,
    RoundResult,
    SaveDecision,
    SaveProposal,
    Stacks,
    StacksRequest,
    StatusRequest,
    Stop,
    TrainingEnded,
    WaitsFor,
)
from tensorflowonspark.node.feed_inbox import FeedInbox, FeedMessage
from tensorflowonspark.node.save_points import SavePoints
from tensorflowonspark.node.stacks import all_stacks
from tensorflowonspark.node.status import ProgramWaits
from tensorflowonspark.node.supervisor_pipe import SupervisorPipe

_log = logging.getLogger(__name__)
_links: "WeakSet[Link]" = WeakSet()


class Link:
    """Sends the messages of the node, and keeps received ones until they are requested."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = SupervisorPipe(pipe)
        self.waits = ProgramWaits(self.pipe.require_own_process)
        self.feeds = FeedInbox(self.waits)
        self.saves = SavePoints()
        self.evaluation: Evaluation | None = None  # the last one that the driver has passed on
        self._members: tuple[Member, ...] = ()
        self._endpoints: tuple[NodeEndpoint, ...] = ()
        self._on_member: Callable[[Member], None] | None = None
        self._contributions: dict[tuple[int, int], list[Contributed]] = defaultdict(list)
        self._rounds: deque[RoundPlan | RoundResult | RoundRefused] = deque()
        self._typed: deque[DebuggerInput] = deque()
        self._saved: list[CheckpointSaved] = []
        self._events: set[type] = set()  # the kinds of received messages of which the first is all that there is
        _links.add(self)
        self.pipe.start(self._on_message)

    def send(self, message: object) -> None:
        """Send a message to the supervisor.

        A forked child of the node, which the driver would mistake for the node, gets a `ClusterError`; its reports of
        progress are dropped.
        """
        self.pipe.send(message)

    def wait_for_members(self) -> tuple[Member, ...]:
        """Wait until all nodes have registered; return them."""
        return self.waits.until(lambda: self._members or None)

    def endpoints(self) -> tuple[NodeEndpoint, ...]:
        """Request the addresses of the nodes that take rows, and return them; wait until all are up."""
        self._endpoints = ()
        self.send(EndpointsWanted())
        return self.waits.until(lambda: self._endpoints or None)

    def follow_members(self, on_member: Callable[[Member], None]) -> None:
        """Call a function with each node, and again with each that is started again (in the receiving thread)."""
        with self.waits.changed:
            self._on_member = on_member
            for member in self._members:
                on_member(member)

    def wait_for_contribution(self, collective: int, sender: int) -> bytes:
        """Wait for what another node contributes to a collective; return it."""
        key = collective, sender
        self.waits.until(lambda: (key in self._contributions and self._contributions[key][-1].last) or None)
        return b"".join(each.piece for each in self._contributions.pop(key))

    def wait_for_round(self) -> RoundPlan | RoundResult | RoundRefused:
        """Return the driver's next message about a round that this node has reached."""
        self.waits.until(lambda: True if self._rounds else None)
        return self._rounds.popleft()

    def is_save_due(self) -> bool:
        """Count a step that the program has ended; return whether all workers save after it, as a host goes."""
        with self.waits.changed:
            number = self.saves.end_step()
        return number is not None and self.waits.until(lambda: self.saves.decided(number))

    def wait_for_evaluation(self, is_wanted: Callable[[Evaluation], bool], seconds: float | None = None) -> None:
        """Wait for the evaluator to be where it is wanted; at most some seconds."""
        self.waits.at_most(seconds, lambda: (self.evaluation is not None and is_wanted(self.evaluation)) or None)

    def wait_for_checkpoints(self, known: int) -> tuple[list[CheckpointSaved], bool]:
        """Return all checkpoints of the training, and whether it has ended; wait unless there is more than is known.

        `known` is the number of checkpoints.
        """
        self.waits.until(lambda: True if TrainingEnded in self._events or len(self._saved) > known else None)
        with self.waits.changed:
            return list(self._saved), TrainingEnded in self._events

    def release_port(self) -> None:
        """Wait until the supervisor has released the node's TensorFlow port."""
        self.send(ReleasePort())
        self.waits.until(lambda: PortReleased in self._events or None)

    def wait_for_stop(self) -> None:
        """Wait for the message that ends the node."""
        self.waits.until(lambda: Stop in self._events or None)

    def wait_for_typed(self, stop: int) -> str | None:
        """Wait for a line for this node's debugger at a stop; None if the terminal is gone. Others are late."""
        while True:
            self.waits.until(lambda: True if self._typed else None, WaitsFor.TERMINAL)
            typed = self._typed.popleft()
            if typed.stop == stop:
                return typed.line

    def _on_message(self, message: Any) -> None:
        if isinstance(message, (Heartbeat, StacksRequest, StatusRequest)):
            self._handle(message)  # a main thread that it wakes would look alive
            return
        with self.waits.changed:
            self._handle(message)
            self.waits.changed.notify_all()

    @singledispatchmethod
    def _handle(self, message: Any) -> None:
        _log.error("the supervisor sent a %s, for which this node has no handler", type(message).__name__)

    @_handle.register
    def _on_heartbeat(self, message: Heartbeat) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _on_status_request(self, _message: StatusRequest) -> None:
        self.send(self.waits.status())

    @_handle.register
    def _on_stacks_request(self, message: StacksRequest) -> None:
        # In a thread of its own: files of source may be on a disk that does not answer.
        Thread(target=lambda: self.send(Stacks(message.number, all_stacks())), daemon=True).start()

    @_handle.register
    def _on_members(self, message: Members) -> None:
        self._members = message.members

    @_handle.register
    def _on_endpoints(self, message: Endpoints) -> None:
        self._endpoints = message.endpoints

    @_handle.register
    def _on_member_replaced(self, message: MemberReplaced) -> None:
        new = message.member
        self._members = tuple(new if each.number == new.number else each for each in self._members)
        if self._on_member is not None:
            self._on_member(new)

    @_handle.register(FeedBegins)
    @_handle.register(FeedComplete)
    @_handle.register(NoMoreFeeds)
    @_handle.register(PassesEnded)
    @_handle.register(RowsCounted)
    @_handle.register(StepGrant)
    def _on_feed_message(self, message: FeedMessage) -> None:
        self.feeds.receive(message)

    @_handle.register
    def _on_contributed(self, message: Contributed) -> None:
        self._contributions[message.collective, message.sender].append(message)

    @_handle.register(RoundPlan)
    @_handle.register(RoundResult)
    @_handle.register(RoundRefused)
    def _on_round(self, message: RoundPlan | RoundResult | RoundRefused) -> None:
        self._rounds.append(message)

    @_handle.register
    def _on_debugger_input(self, message: DebuggerInput) -> None:
        self._typed.append(message)

    @_handle.register(Notice)
    @_handle.register(SaveDecision)
    @_handle.register(SaveProposal)
    def _on_save_message(self, message: Notice | SaveDecision | SaveProposal) -> None:
        reply = self.saves.receive(message)
        if reply is not None:
            self.send(reply)

    @_handle.register
    def _on_evaluation(self, message: Evaluation) -> None:
        self.evaluation = message

    @_handle.register
    def _on_checkpoint_saved(self, message: CheckpointSaved) -> None:
        self._saved.append(message)

    @_handle.register(PortReleased)
    @_handle.register(Stop)
    @_handle.register(TrainingEnded)
    def _on_event(self, message: PortReleased | Stop | TrainingEnded) -> None:
        self._events.add(type(message))


def _renew_locks_in_child() -> None:
    for link in list(_links):
        link.pipe.renew_lock()
        link.waits.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_in_child)
