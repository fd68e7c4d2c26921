"""The link of a node to its supervisor, and through it to the driver."""

import logging
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import singledispatchmethod
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread
from typing import Any, TypeVar
from weakref import WeakSet

from tensorflowonspark.config import HEARTBEATS_PER_TIMEOUT
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.feed_messages import (
    FeedBegins,
    FeedComplete,
    FeedId,
    FileFeed,
    PassesEnded,
    RowsCounted,
    Split,
    StepGrant,
)
from tensorflowonspark.messages import (
    CheckpointSaved,
    Contributed,
    DebuggerInput,
    Endpoints,
    EndpointsWanted,
    Evaluation,
    FrameworkImported,
    Heartbeat,
    KerasImported,
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
    RunDescribed,
    SaveDecision,
    SaveProposal,
    Stacks,
    StacksRequest,
    StatusRequest,
    Stop,
    TrainingEnded,
    TrainingTotals,
    WaitsFor,
)
from tensorflowonspark.node.feed_state import FeedState
from tensorflowonspark.node.save_points import SavePoints
from tensorflowonspark.node.stacks import all_stacks
from tensorflowonspark.node.status import node_status
from tensorflowonspark.processes import PIPE_CLOSED_EXIT, kill_group
from tensorflowonspark.transport import seal

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_REPORTS = (KerasImported, FrameworkImported, RunDescribed, TrainingTotals)
_links: "WeakSet[Link]" = WeakSet()
_ORPHAN_GUARD_SECONDS = 1.0  # for the orphan guard to end this process and to remove its private directory


class Link:
    """Sends the messages of the node, and keeps received ones until they are requested.

    At the end of the pipe to the supervisor the process group is killed.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._owner = os.getpid()
        self._socket = _identity(pipe)
        self._received = 0  # messages
        self._renew_locks()
        _links.add(self)
        self._members: tuple[Member, ...] = ()
        self._endpoints: tuple[NodeEndpoint, ...] = ()
        self._feeds: defaultdict[FeedId, FeedState] = defaultdict(FeedState)
        self._contributions: dict[tuple[int, int], list[Contributed]] = defaultdict(list)
        self._rounds: deque[RoundPlan | RoundResult | RoundRefused] = deque()
        self._typed: deque[DebuggerInput] = deque()
        self.saves = SavePoints()
        self.evaluation: Evaluation | None = None  # the last one that the driver has passed on
        self._saved: list[CheckpointSaved] = []
        self._training_ended = False
        self._no_more_feeds = False
        self._port_released = False
        self._stopped = False
        self.in_epoch = False  # the program has taken some of an epoch's batches, but not all
        self._waits: list[WaitsFor] = []
        self._on_feed: Callable[[FeedBegins | FeedComplete], None] | None = None
        self._on_member: Callable[[Member], None] | None = None
        Thread(target=self._receive, daemon=True).start()

    def _renew_locks(self) -> None:
        """Make new locks: a forked child lacks the thread that held one at the fork."""
        self._sending = Lock()
        self._changed = Condition()

    def _require_own_process(self) -> None:
        if os.getpid() != self._owner:
            raise ClusterError(
                f"process {os.getpid()} is a forked child of the node's process {self._owner}, which alone has a "
                "connection to the cluster: call ctx there, and pass the results to the child"
            )

    def watch(self, supervisor_pid: int, heartbeat_timeout: float) -> None:
        """Kill a supervisor that sends no heartbeat because it is stopped; this process ends with it.

        The driver has given up both by then, and may have started replacements.
        """
        interval = heartbeat_timeout / HEARTBEATS_PER_TIMEOUT
        Thread(target=self._watch, args=(supervisor_pid, interval), daemon=True).start()

    def _watch(self, supervisor_pid: int, interval: float) -> None:
        missed, received = 0, self._received
        # Intervals are counted, not time: after this process itself was stopped, heartbeats wait in the pipe.
        while missed <= HEARTBEATS_PER_TIMEOUT:
            time.sleep(interval)
            missed, received = (missed + 1 if received == self._received else 0), self._received
        with suppress(ProcessLookupError):
            os.kill(supervisor_pid, signal.SIGKILL)

    def send(self, message: object) -> None:
        """Send a message to the supervisor.

        A forked child of the node, which the driver would mistake for the node, gets a `ClusterError`; its reports of
        progress are dropped.
        """
        if os.getpid() != self._owner and isinstance(message, _REPORTS):
            return
        self._require_own_process()
        with self._sending, suppress(OSError):  # if the supervisor has ended, this process ends too
            self._pipe.send(seal(message))

    def wait_for_members(self) -> tuple[Member, ...]:
        """Wait until all nodes have registered; return them."""
        return self._wait(lambda: self._members or None)

    def endpoints(self) -> tuple[NodeEndpoint, ...]:
        """Request the addresses of the nodes that take rows, and return them; wait until all are up."""
        self._endpoints = ()
        self.send(EndpointsWanted())
        return self._wait(lambda: self._endpoints or None)

    def follow_members(self, on_member: Callable[[Member], None]) -> None:
        """Call a function with each node, and again with each that is started again (in the receiving thread)."""
        with self._changed:
            self._on_member = on_member
            for member in self._members:
                on_member(member)

    def follow_feeds(self, on_feed: Callable[[FeedBegins | FeedComplete], None]) -> None:
        """Call a function with the first message about each past and future feed, in separate threads."""
        with self._changed:
            self._on_feed = on_feed
            for feed in filter(None, [each.first for each in self._feeds.values()]):
                Thread(target=on_feed, args=(feed,), daemon=True).start()

    def wait_for_feed(self, feed: int) -> FeedBegins | FeedComplete | None:
        """Wait for the first message about a feed; return it, or None if no further one comes."""
        self._wait(lambda: self._feeds[feed].first or self._no_more_feeds or None)
        with self._changed:
            self._feeds[feed].opened = True
            return self._feeds[feed].first

    def wait_for_rows(self, feed: FeedId) -> FeedComplete:
        """Wait until a feed is complete, from Spark or from files; return what all nodes have."""
        return self._wait(lambda: self._feeds[feed].complete)

    def arrived(self, feed: FeedId) -> FeedComplete | None:
        """Return what all nodes have of a feed; None as long as rows arrive."""
        return self._feeds[feed].complete

    def wait_for_counts(self, feed: FileFeed) -> dict[int, int]:
        """Wait until all workers have counted their rows of some files; return the numbers."""
        return self._wait(lambda: self._feeds[feed].rows)

    def counts(self, feed: FileFeed) -> dict[int, int] | None:
        """Return the rows of some files; None until all workers have counted theirs."""
        return self._feeds[feed].rows

    def wait_for_grant(self, feed: FeedId, seconds: float | None = None) -> StepGrant | None:
        """Return the next `StepGrant` of a stream; None if there is none within `seconds`."""
        with self._waiting_for(WaitsFor.ROWS), self._changed:
            grants = self._feeds[feed].grants
            if not grants:
                self._require_own_process()
            self._changed.wait_for(lambda: grants, seconds)
            return grants.popleft() if grants else None

    def wait_for_step(self, feed: FeedId, step: int | None) -> int | None:
        """Wait until a step of a stream, if any, is granted, or the stream ends; return the steps granted so far.

        None: the workers take no steps together, or the stream broke off.
        """
        with self._waiting_for(WaitsFor.ROWS), self._changed:
            state = self._feeds[feed]
            self._changed.wait_for(lambda: step is None or state.is_decided(step))
            return state.granted if state.takes_steps else None

    def break_off(self, feed: FeedId, reason: str) -> None:
        """End a stream after the steps that are granted, since this node can't get its further rows."""
        self._on_message(StepGrant(feed, end=True, failed=reason))

    def passes(self, feed: FeedId, split: Split) -> int:
        """Return the number of passes over a split that all workers have ended."""
        return self._feeds[feed].passes[split]

    def wait_for_contribution(self, collective: int, sender: int) -> bytes:
        """Wait for what another node contributes to a collective; return it."""
        key = collective, sender
        self._wait(lambda: (key in self._contributions and self._contributions[key][-1].last) or None)
        return b"".join(each.piece for each in self._contributions.pop(key))

    def wait_for_round(self) -> RoundPlan | RoundResult | RoundRefused:
        """Return the driver's next message about a round that this node has reached."""
        self._wait(lambda: True if self._rounds else None)
        return self._rounds.popleft()

    def is_save_due(self) -> bool:
        """Count a step that the program has ended; return whether all workers save after it, as a host goes."""
        with self._changed:
            number = self.saves.end_step()
        return number is not None and self._wait(lambda: self.saves.decided(number))

    def wait_for_evaluation(self, is_wanted: Callable[[Evaluation], bool], seconds: float | None = None) -> None:
        """Wait for the evaluator to be where it is wanted; at most some seconds."""
        with self._waiting_for(WaitsFor.FEED), self._changed:
            self._changed.wait_for(lambda: self.evaluation is not None and is_wanted(self.evaluation), seconds)

    def wait_for_checkpoints(self, known: int) -> tuple[list[CheckpointSaved], bool]:
        """Return all checkpoints of the training, and whether it has ended; wait unless there is more than is known.

        `known` is the number of checkpoints.
        """
        self._wait(lambda: True if self._training_ended or len(self._saved) > known else None)
        with self._changed:
            return list(self._saved), self._training_ended

    def release_port(self) -> None:
        """Wait until the supervisor has released the node's TensorFlow port."""
        self.send(ReleasePort())
        self._wait(lambda: self._port_released or None)

    def wait_for_stop(self) -> None:
        """Wait for the message that ends the node."""
        self._wait(lambda: self._stopped or None)

    def wait_for_typed(self, stop: int) -> str | None:
        """Wait for a line for this node's debugger at a stop; None if the terminal is gone. Others are late."""
        while True:
            self._wait(lambda: True if self._typed else None, WaitsFor.TERMINAL)
            typed = self._typed.popleft()
            if typed.stop == stop:
                return typed.line

    def _wait(self, find: Callable[[], _T | None], what: WaitsFor = WaitsFor.FEED) -> _T:
        with self._waiting_for(what), self._changed:
            while (found := find()) is None:
                self._require_own_process()
                self._changed.wait()
            return found

    @contextmanager
    def _waiting_for(self, what: WaitsFor) -> Iterator[None]:
        self._waits.append(what)
        try:
            yield
        finally:
            self._waits.remove(what)

    def _receive(self) -> None:
        with suppress(Exception):  # whatever is read if the program has closed the pipe and opened another file
            while True:
                message = self._pipe.recv()
                self._received += 1
                self._on_message(message)
        if _identity(self._pipe) != self._socket:
            os._exit(PIPE_CLOSED_EXIT)
        time.sleep(_ORPHAN_GUARD_SECONDS)
        kill_group(os.getpid())

    def _on_message(self, message: Any) -> None:
        if isinstance(
            message, (Heartbeat, StacksRequest, StatusRequest)
        ):  # a main thread that they wake would look alive
            self._handle(message)
            return
        with self._changed:
            self._handle(message)
            self._changed.notify_all()

    @singledispatchmethod
    def _handle(self, message: Any) -> None:
        _log.error("the supervisor sent a %s, for which this node has no handler", type(message).__name__)

    @_handle.register
    def _on_heartbeat(self, message: Heartbeat) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _on_status_request(self, _message: StatusRequest) -> None:
        waits = max(self._waits, key=lambda each: each.value, default=WaitsFor.NOTHING)
        self.send(node_status(waits, self.in_epoch))

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

    @_handle.register
    def _on_feed_begins(self, message: FeedBegins) -> None:
        self._state_of_new(message.feed).begun = message
        self._follow(message)

    @_handle.register
    def _on_feed_complete(self, message: FeedComplete) -> None:
        state = self._state_of_new(message.feed)
        state.complete = message
        if state.begun is None:
            self._follow(message)

    def _state_of_new(self, feed: FeedId) -> FeedState:
        """Return the state of a feed; the number of one that failed before the program opened it has another."""
        if self._feeds[feed].failed and not self._feeds[feed].opened:
            del self._feeds[feed]
        return self._feeds[feed]

    def _follow(self, message: FeedBegins | FeedComplete) -> None:
        if self._on_feed is not None:
            Thread(target=self._on_feed, args=(message,), daemon=True).start()

    @_handle.register
    def _on_rows_counted(self, message: RowsCounted) -> None:
        self._feeds[message.feed].rows = message.rows

    @_handle.register
    def _on_step_grant(self, message: StepGrant) -> None:
        self._feeds[message.feed].add(message)

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

    @_handle.register
    def _on_passes_ended(self, message: PassesEnded) -> None:
        self._feeds[message.feed].passes[message.split] = message.count

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

    @_handle.register
    def _on_training_ended(self, _message: TrainingEnded) -> None:
        self._training_ended = True

    @_handle.register
    def _on_no_more_feeds(self, _message: NoMoreFeeds) -> None:
        self._no_more_feeds = True

    @_handle.register
    def _on_port_released(self, _message: PortReleased) -> None:
        self._port_released = True

    @_handle.register
    def _on_stop(self, _message: Stop) -> None:
        self._stopped = True


def _renew_locks_in_child() -> None:
    for link in list(_links):
        link._renew_locks()


os.register_at_fork(after_in_child=_renew_locks_in_child)


def _identity(pipe: Connection) -> tuple[int, int] | None:
    """Return the identity of the pipe's file, or None if it is closed."""
    try:
        found = os.fstat(pipe.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
