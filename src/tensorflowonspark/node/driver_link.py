"""The node's link to its supervisor, and through it to the driver."""

import logging
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import singledispatchmethod
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread
from typing import Any, TypeVar
from weakref import WeakSet

from tensorflowonspark.config import HEARTBEATS_PER_TIMEOUT, ClusterConfig, ClusterSpec, Role
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.feed_messages import FeedComplete, PassesEnded, Split, StepGrant
from tensorflowonspark.messages import (
    Contributed,
    Heartbeat,
    Member,
    Members,
    NoMoreFeeds,
    PortReleased,
    Progress,
    ReleasePort,
    StatusRequest,
    Stop,
    TensorFlowImported,
    WaitsFor,
)
from tensorflowonspark.node.status import node_status
from tensorflowonspark.processes import PIPE_CLOSED_EXIT, kill_group
from tensorflowonspark.transport import Credentials

__all__ = ["Link", "NodeSetup"]


@dataclass(frozen=True)
class NodeSetup:
    """What a node needs before it knows the other nodes."""

    config: ClusterConfig
    number: int
    host: str
    credentials: Credentials
    gpus: tuple[str, ...] = ()
    feed_socket: str = ""  # where it receives rows; empty if it is not fed
    local_directory: str = ""  # private, for temporary files
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # Hadoop's settings, for file systems
    supervisor_pid: int = 0

    @property
    def spec(self) -> ClusterSpec:
        """The roles of the cluster."""
        return self.config.spec

    @property
    def role(self) -> Role:
        """The role of this node."""
        return self.config.spec.roles[self.number]


_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_REPORTS = (Progress, TensorFlowImported)
_links: "WeakSet[Link]" = WeakSet()
_ORPHAN_GUARD_SECONDS = 1.0  # for the orphan guard to end this process and to remove its private directory


class Link:
    """Says what the node has to say, and keeps what it was told until it is asked for.

    Parameters
    ----------
    pipe : Connection
        The pipe to the supervisor. When it ends the whole process group is killed.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._owner = os.getpid()
        self._socket = _identity(pipe)
        self._received = 0  # messages
        self._renew_locks()
        _links.add(self)
        self._members: tuple[Member, ...] = ()
        self._feeds: dict[int, FeedComplete] = {}
        self._grants: dict[int, deque[StepGrant]] = defaultdict(deque)
        self._passes: dict[tuple[int, Split], int] = {}
        self._contributions: dict[tuple[int, int], list[Contributed]] = defaultdict(list)
        self._no_more_feeds = False
        self._port_released = False
        self._stopped = False
        self.in_epoch = False  # the program has taken some of an epoch's batches, and not all
        self._waits: list[WaitsFor] = []
        self._on_feed: Callable[[FeedComplete], None] | None = None
        Thread(target=self._receive, daemon=True).start()

    def _renew_locks(self) -> None:
        """Make the locks anew: in a forked child the thread that held one at the fork is missing."""
        self._sending = Lock()
        self._changed = Condition()

    def _require_own_process(self) -> None:
        if os.getpid() != self._owner:
            raise ClusterError(
                f"process {os.getpid()} is a forked child of the node's process {self._owner}, which alone talks to "
                "the cluster: call ctx there, and hand the child what it needs"
            )

    def watch(self, supervisor: int, silence: float) -> None:
        """End the supervisor, and so this process too, if it is not heard for so many seconds: someone stopped it.

        The driver has given both up by then, and may have started others in their place.
        """
        Thread(target=self._watch, args=(supervisor, silence / HEARTBEATS_PER_TIMEOUT), daemon=True).start()

    def _watch(self, supervisor: int, beat: float) -> None:
        missed, heard = 0, self._received
        while (
            missed <= HEARTBEATS_PER_TIMEOUT
        ):  # beats of this process: one that was stopped itself has not missed what it finds now
            time.sleep(beat)
            missed, heard = (missed + 1 if heard == self._received else 0), self._received
        with suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)

    def send(self, message: object) -> None:
        """Say something to the supervisor.

        Raises
        ------
        ClusterError
            If this is a forked child of the node: a driver that heard it would take it for the node. (What the child
            only reports is dropped.)
        """
        if os.getpid() != self._owner and isinstance(message, _REPORTS):
            return
        self._require_own_process()
        with self._sending, suppress(OSError):  # if it is gone, so is this process in a moment
            self._pipe.send(message)

    def wait_for_members(self) -> tuple[Member, ...]:
        """Return all members of the cluster, when all are there."""
        return self._wait(lambda: self._members or None)

    def follow_feeds(self, on_seal: Callable[[FeedComplete], None]) -> None:
        """Have a function called with each seal, in a thread of its own; those that came before included."""
        with self._changed:
            self._on_feed = on_seal
            for seal in self._feeds.values():
                Thread(target=on_seal, args=(seal,), daemon=True).start()

    def wait_for_feed(self, feed: int) -> FeedComplete | None:
        """Return what feed number `feed` holds, when it is complete or streams; None if there will be none."""
        self._wait(lambda: feed in self._feeds or self._no_more_feeds or None)
        return self._feeds.get(feed)

    def wait_for_file_feed(self, feed: int) -> FeedComplete:
        """Return what the workers have read of files by themselves, whether or not any other feed comes."""
        return self._wait(lambda: self._feeds.get(feed))

    def wait_for_grant(self, feed: int, seconds: float | None = None) -> StepGrant | None:
        """Return the driver's next word on a stream; None if there was none for so long."""
        with self._changed:
            words = self._grants[feed]
        with self._waiting_for(WaitsFor.ROWS), self._changed:
            if not words:
                self._require_own_process()
            self._changed.wait_for(lambda: words, seconds)
            return words.popleft() if words else None

    def passes(self, feed: int, split: Split) -> int:
        """Return how many passes over a split all workers have ended."""
        return self._passes.get((feed, split), 0)

    def wait_for_contribution(self, collective: int, sender: int) -> bytes:
        """Return what another node has given to a collective."""
        key = collective, sender
        self._wait(lambda: (key in self._contributions and self._contributions[key][-1].last) or None)
        return b"".join(each.piece for each in self._contributions.pop(key))

    def release_port(self) -> None:
        """Have the supervisor release the node's TensorFlow port; return when it has."""
        self.send(ReleasePort())
        self._wait(lambda: self._port_released or None)

    def wait_for_stop(self) -> None:
        """Return when the node is to end."""
        self._wait(lambda: self._stopped or None)

    def _wait(self, find: Callable[[], _T | None]) -> _T:
        with self._waiting_for(WaitsFor.FEED), self._changed:
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
        if isinstance(message, (Heartbeat, StatusRequest)):  # a main thread that they wake would look alive
            self._handle(message)
            return
        with self._changed:
            self._handle(message)
            self._changed.notify_all()

    @singledispatchmethod
    def _handle(self, message: Any) -> None:
        _log.error("the supervisor sent a %s, for which this node has no handler", type(message).__name__)

    @_handle.register
    def _(self, message: Heartbeat) -> None:
        """Do nothing: any message shows that the supervisor is alive."""

    @_handle.register
    def _(self, _message: StatusRequest) -> None:
        waits = max(self._waits, key=lambda each: each.value, default=WaitsFor.NOTHING)
        self.send(node_status(waits, self.in_epoch))

    @_handle.register
    def _(self, message: Members) -> None:
        self._members = message.members

    @_handle.register
    def _(self, message: FeedComplete) -> None:
        self._feeds[message.feed] = message
        if self._on_feed is not None:
            Thread(target=self._on_feed, args=(message,), daemon=True).start()

    @_handle.register
    def _(self, message: StepGrant) -> None:
        self._grants[message.feed].append(message)

    @_handle.register
    def _(self, message: Contributed) -> None:
        self._contributions[message.collective, message.sender].append(message)

    @_handle.register
    def _(self, message: PassesEnded) -> None:
        self._passes[message.feed, message.split] = message.count

    @_handle.register
    def _(self, _message: NoMoreFeeds) -> None:
        self._no_more_feeds = True

    @_handle.register
    def _(self, _message: PortReleased) -> None:
        self._port_released = True

    @_handle.register
    def _(self, _message: Stop) -> None:
        self._stopped = True


def _renew_locks_in_child() -> None:
    for link in list(_links):
        link._renew_locks()


os.register_at_fork(after_in_child=_renew_locks_in_child)


def _identity(pipe: Connection) -> tuple[int, int] | None:
    """Return what tells one file from another; None for one that is closed."""
    try:
        found = os.fstat(pipe.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
