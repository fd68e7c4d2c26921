"""The node's end of the pipe to its supervisor."""

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread
from typing import Any, TypeVar

from tensorflowonspark.children import kill_group
from tensorflowonspark.messages import Member, Members, NoMoreFeeds, Stop
from tensorflowonspark.parts import Confirmed, PassesEnded, Seal, Split

__all__ = ["Link"]

_T = TypeVar("_T")
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
        self._sending = Lock()
        self._changed = Condition()
        self._members: tuple[Member, ...] = ()
        self._seals: dict[int, Seal] = {}
        self._confirmed: dict[int, deque[Confirmed]] = defaultdict(deque)
        self._passes: dict[tuple[int, Split], int] = {}
        self._no_more_feeds = False
        self._stopped = False
        self._on_seal: Callable[[Seal], None] | None = None
        Thread(target=self._listen, daemon=True).start()

    def send(self, message: object) -> None:
        """Say something to the supervisor."""
        with self._sending, suppress(OSError):  # if it is gone, so is this process in a moment
            self._pipe.send(message)

    def wait_for_members(self) -> tuple[Member, ...]:
        """Return all members of the cluster, when all are there."""
        return self._wait(lambda: self._members or None)

    def follow_seals(self, on_seal: Callable[[Seal], None]) -> None:
        """Have a function called with each seal, in a thread of its own; those that came before included."""
        with self._changed:
            self._on_seal = on_seal
            for seal in self._seals.values():
                Thread(target=on_seal, args=(seal,), daemon=True).start()

    def wait_for_seal(self, feed: int) -> Seal | None:
        """Return what feed number `feed` holds, when it is complete or streams; None if there will be none."""
        self._wait(lambda: feed in self._seals or self._no_more_feeds or None)
        return self._seals.get(feed)

    def wait_for_own(self, feed: int) -> Seal:
        """Return what the workers have read of files by themselves, whether or not any other feed comes."""
        return self._wait(lambda: self._seals.get(feed))

    def wait_for_confirmed(self, feed: int, seconds: float | None = None) -> Confirmed | None:
        """Return the driver's next word on a stream; None if there was none for so long."""
        with self._changed:
            words = self._confirmed[feed]
        with self._changed:
            self._changed.wait_for(lambda: words, seconds)
            return words.popleft() if words else None

    def passes(self, feed: int, split: Split) -> int:
        """Return how many passes over a split all workers have ended."""
        return self._passes.get((feed, split), 0)

    def wait_for_stop(self) -> None:
        """Return when the node is to end."""
        self._wait(lambda: self._stopped or None)

    def _wait(self, find: Callable[[], _T | None]) -> _T:
        with self._changed:
            while (found := find()) is None:
                self._changed.wait()
            return found

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv()
                with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        time.sleep(_LEASH_SECONDS)
        kill_group(os.getpid())

    def _take(self, message: Any) -> None:
        if isinstance(message, Members):
            self._members = message.members
        elif isinstance(message, Seal):
            self._seals[message.feed] = message
            if self._on_seal is not None:
                Thread(target=self._on_seal, args=(message,), daemon=True).start()
        elif isinstance(message, Confirmed):
            self._confirmed[message.feed].append(message)
        elif isinstance(message, PassesEnded):
            self._passes[message.feed, message.split] = message.count
        elif isinstance(message, NoMoreFeeds):
            self._no_more_feeds = True
        elif isinstance(message, Stop):
            self._stopped = True
