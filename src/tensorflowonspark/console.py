"""Terminals and logs: a thread of its own writes to them, so that nothing else waits for a reader who has stopped.

Whoever writes to a terminal that is paused (Ctrl-S), to ``| less`` or to a full pipe waits until somebody reads on. The
cluster must not: the driver's threads that serve supervisors, and the supervisor's that reads its node's output, only
put into a queue what is to be shown. While the writer goes on they wait for room in it; when it is stuck the oldest
lines are dropped, and counted.
"""

import logging
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

__all__ = ["CONSOLE", "Console", "outlets"]

_log = logging.getLogger(__name__)
_CHARACTERS = 1 << 20  # that wait to be shown
_STUCK_SECONDS = 1.0  # without progress, after which nobody waits for the writer
_DRAIN_SECONDS = 10.0  # for a slow terminal to show the last lines
_POLL_MILLISECONDS = 100


@dataclass(frozen=True)
class _Entry:
    act: Callable[[], object]
    streams: Callable[[], Iterator[Any]]
    lines: int
    size: int


class Console:
    """Writes what it is given, in order.

    Parameters
    ----------
    characters : int
        How many may wait.
    """

    def __init__(self, characters: int = _CHARACTERS) -> None:
        self._characters = characters
        self._reset()

    def _reset(self) -> None:
        self._changed = Condition()
        self._entries: deque[_Entry] = deque()
        self._size = 0
        self._dropped = 0
        self._busy = False
        self._moved = time.monotonic()  # when the writer last went on
        self._thread: Thread | None = None

    def put(
        self, act: Callable[[], object], streams: Callable[[], Iterator[Any]], lines: int = 0, size: int = 0
    ) -> None:
        """Have something written.

        Parameters
        ----------
        act : callable
            Writes it.
        streams : callable
            Yields the files that it writes to: the writer waits until they take it, and holds no lock meanwhile.
        lines, size : int
            How many lines and characters it has.
        """
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="console", daemon=True)
                self._thread.start()
            if not self._entries and not self._busy:
                self._moved = time.monotonic()
            while self._size + size > self._characters and self._entries and not self._is_stuck:
                self._changed.wait(_STUCK_SECONDS / 4)
            while self._size + size > self._characters and self._entries:
                oldest = self._entries.popleft()
                self._size -= oldest.size
                self._dropped += oldest.lines
            self._entries.append(_Entry(act, streams, lines, size))
            self._size += size
            self._changed.notify_all()

    def log(self, logger: logging.Logger, level: int, text: str, *args: object) -> None:
        """Have a record logged."""
        self.put(lambda: logger.log(level, text, *args), lambda: outlets(logger), 1, len(text))

    def drain(self) -> bool:
        """Wait until all is written, but not for a reader who has stopped; return whether it is."""
        end = time.monotonic() + _DRAIN_SECONDS
        with self._changed:
            while (self._entries or self._busy) and not self._is_stuck and time.monotonic() < end:
                self._changed.wait(_STUCK_SECONDS / 4)
            return not self._entries and not self._busy

    @property
    def _is_stuck(self) -> bool:
        return time.monotonic() - self._moved > _STUCK_SECONDS

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries)
                self._busy = True
                streams = self._entries[0].streams
            _wait_until_writable(streams)
            with self._changed:
                self._moved = time.monotonic()
                dropped, self._dropped = self._dropped, 0
                entry = self._entries.popleft()  # others may have been dropped meanwhile, and this one is the oldest
                self._size -= entry.size
            with suppress(Exception):  # a stream that was closed, or a logging handler of the user's
                if dropped:
                    _log.warning("%d lines of the nodes' output are left out here: nobody read those before", dropped)
                entry.act()
            with self._changed:
                self._busy = False
                self._moved = time.monotonic()
                self._changed.notify_all()


def outlets(logger: logging.Logger) -> Iterator[Any]:
    """Yield the files that a logger's records are written to."""
    if not logger.hasHandlers():
        yield sys.stderr
    each: logging.Logger | None = logger
    while each is not None:
        for handler in each.handlers:
            yield getattr(handler, "stream", None)
        each = each.parent if each.propagate else None


def _wait_until_writable(streams: Callable[[], Iterator[Any]]) -> None:
    """Return when all streams take something: terminals and pipes that nobody reads do not."""
    with suppress(Exception):  # what is no file of the system never waits
        for stream in streams():
            with suppress(AttributeError, OSError, ValueError):
                poll = select.poll()
                poll.register(stream.fileno(), select.POLLOUT)
                while not poll.poll(_POLL_MILLISECONDS):
                    pass


CONSOLE = Console()
os.register_at_fork(after_in_child=CONSOLE._reset)
