"""The node's link to its supervisor, and through it to the driver."""

import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread
from typing import Any, TypeVar
from weakref import WeakSet

from tensorflowonspark.config import ClusterSpec, Role
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.feed_messages import FeedComplete, PassesEnded, Split, StepGrant
from tensorflowonspark.messages import (
    HEARTBEATS_PER_TIMEOUT,
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
    """All that a node must know before it knows the others."""

    spec: ClusterSpec
    number: int
    role: Role
    host: str
    credentials: Credentials
    program: bytes = field(repr=False)  # the user's function and its arguments, by cloudpickle
    gpus: tuple[str, ...]
    feed_socket: str  # where it takes rows; empty if it is not fed
    local_directory: str  # for temporary files: one of its own, which goes with it
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # settings of file systems
    silence: float = 30.0  # seconds without a word from the supervisor after which that is given up
    supervisor: int = 0  # its pid
    attempt: int = 0  # how often the cluster was started before
    first_feed: int = 0  # that the program is given


_T = TypeVar("_T")
_REPORTS = (Progress, TensorFlowImported)
_links: "WeakSet[Link]" = WeakSet()
_LEASH_SECONDS = 1.0  # for the leash of this process (`children`), which removes its private directory as well


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
        self._words = 0  # that were heard
        self._renew_locks()
        _links.add(self)
        self._members: tuple[Member, ...] = ()
        self._seals: dict[int, FeedComplete] = {}
        self._confirmed: dict[int, deque[StepGrant]] = defaultdict(deque)
        self._passes: dict[tuple[int, Split], int] = {}
        self._gathered: dict[tuple[int, int], list[Contributed]] = defaultdict(list)
        self._no_more_feeds = False
        self._port_released = False
        self._stopped = False
        self.in_epoch = False  # the program has taken some of an epoch's batches, and not all
        self._waits: list[WaitsFor] = []
        self._on_seal: Callable[[FeedComplete], None] | None = None
        Thread(target=self._listen, daemon=True).start()

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
        missed, heard = 0, self._words
        while (
            missed <= HEARTBEATS_PER_TIMEOUT
        ):  # beats of this process: one that was stopped itself has not missed what it finds now
            time.sleep(beat)
            missed, heard = (missed + 1 if heard == self._words else 0), self._words
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

    def follow_seals(self, on_seal: Callable[[FeedComplete], None]) -> None:
        """Have a function called with each seal, in a thread of its own; those that came before included."""
        with self._changed:
            self._on_seal = on_seal
            for seal in self._seals.values():
                Thread(target=on_seal, args=(seal,), daemon=True).start()

    def wait_for_seal(self, feed: int) -> FeedComplete | None:
        """Return what feed number `feed` holds, when it is complete or streams; None if there will be none."""
        self._wait(lambda: feed in self._seals or self._no_more_feeds or None)
        return self._seals.get(feed)

    def wait_for_own(self, feed: int) -> FeedComplete:
        """Return what the workers have read of files by themselves, whether or not any other feed comes."""
        return self._wait(lambda: self._seals.get(feed))

    def wait_for_confirmed(self, feed: int, seconds: float | None = None) -> StepGrant | None:
        """Return the driver's next word on a stream; None if there was none for so long."""
        with self._changed:
            words = self._confirmed[feed]
        with self._waiting_for(WaitsFor.ROWS), self._changed:
            if not words:
                self._require_own_process()
            self._changed.wait_for(lambda: words, seconds)
            return words.popleft() if words else None

    def passes(self, feed: int, split: Split) -> int:
        """Return how many passes over a split all workers have ended."""
        return self._passes.get((feed, split), 0)

    def wait_for_gathered(self, collective: int, sender: int) -> bytes:
        """Return what another node has given to a collective."""
        key = collective, sender
        self._wait(lambda: (key in self._gathered and self._gathered[key][-1].last) or None)
        return b"".join(each.piece for each in self._gathered.pop(key))

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

    def _listen(self) -> None:
        with suppress(Exception):  # whatever is read where the program has closed the pipe, and has opened another file
            while True:
                message = self._pipe.recv()
                self._words += 1
                if isinstance(message, Heartbeat):
                    continue  # it wakes nobody: a main thread that wakes up is a sign of life
                if isinstance(message, StatusRequest):
                    waits = max(self._waits, key=lambda each: each.value, default=WaitsFor.NOTHING)
                    self.send(node_status(waits, self.in_epoch))
                    continue
                with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        if _identity(self._pipe) != self._socket:
            os._exit(PIPE_CLOSED_EXIT)
        time.sleep(_LEASH_SECONDS)
        kill_group(os.getpid())

    def _take(self, message: Any) -> None:
        if isinstance(message, Members):
            self._members = message.members
        elif isinstance(message, FeedComplete):
            self._seals[message.feed] = message
            if self._on_seal is not None:
                Thread(target=self._on_seal, args=(message,), daemon=True).start()
        elif isinstance(message, StepGrant):
            self._confirmed[message.feed].append(message)
        elif isinstance(message, Contributed):
            self._gathered[message.collective, message.sender].append(message)
        elif isinstance(message, PassesEnded):
            self._passes[message.feed, message.split] = message.count
        elif isinstance(message, NoMoreFeeds):
            self._no_more_feeds = True
        elif isinstance(message, PortReleased):
            self._port_released = True
        elif isinstance(message, Stop):
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
