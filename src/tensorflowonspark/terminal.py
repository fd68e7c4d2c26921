"""Terminals and logs, written to by a thread of their own so that nothing waits for a reader that has stopped.

Whoever writes to a terminal that is paused (Ctrl-S), to ``| less`` or to a full pipe waits until somebody reads on. The
cluster must not: the driver's threads that serve supervisors, and the supervisor's that reads its node's output, only
put into a queue what is to be shown. While the writer goes on they wait for room in it; when it is stuck the oldest
lines are dropped, and counted.
"""

import logging
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

__all__ = ["CONSOLE", "Console", "Unblocked", "outlets"]

_log = logging.getLogger(__name__)
_CHARACTERS = 1 << 20  # that wait to be shown
_STUCK_SECONDS = 1.0  # that a file takes nothing, after which nobody waits for the writer
_LOST_SECONDS = 5.0  # without progress, where nobody can tell whether somebody reads: a busy host takes its time too
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
        self._unread_since: float | None = None  # when the file that it waits for was found to take nothing
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
        now = time.monotonic()
        unread = self._unread_since is not None and now - self._unread_since > _STUCK_SECONDS
        return unread or now - self._moved > _LOST_SECONDS

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries)
                self._busy = True
                streams = self._entries[0].streams
            self._wait_until_writable(streams)
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

    def _wait_until_writable(self, streams: Callable[[], Iterator[Any]]) -> None:
        """Return when all streams take something: terminals and pipes that nobody reads do not."""
        with suppress(Exception):  # what is no file of the system never waits
            for stream in streams():
                with suppress(AttributeError, OSError, ValueError):
                    poll = select.poll()
                    poll.register(stream.fileno(), select.POLLOUT)
                    self.wait_for_reader(poll)
        self._unread_since = None

    def wait_for_reader(self, poll: "select.poll") -> None:
        """Return when a file takes something."""
        while not poll.poll(_POLL_MILLISECONDS):
            self._unread_since = self._unread_since or time.monotonic()


class Unblocked:
    """A terminal or pipe that is opened once more, so that nobody who writes waits in it, with a lock of Python's file.

    A terminal takes something as soon as it has room for one character; the rest of a line may have to wait. Other
    files are written to as they are.

    Parameters
    ----------
    file : file
        What is written to.
    console : Console
        Waits for the reader.
    """

    def __init__(self, file: Any, console: Console) -> None:
        self._file = file
        self._console = console
        self._descriptor = _opened_again(file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def write(self, text: str) -> int:
        """Write all of a text, as its reader takes it."""
        if self._descriptor is None:
            return int(self._file.write(text))
        data = text.encode(errors="replace")
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                self._console.wait_for_reader(poll)
        return len(text)

    def flush(self) -> None:
        """Do nothing where nothing is kept back."""
        if self._descriptor is None:
            self._file.flush()


def _opened_again(file: Any) -> int | None:
    """Return another descriptor of a terminal or pipe, which never blocks; None of another file."""
    try:
        number = file.fileno()
        if not (os.isatty(number) or stat.S_ISFIFO(os.fstat(number).st_mode)):
            return None
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (AttributeError, OSError, ValueError):
        return None


def outlets(logger: logging.Logger) -> Iterator[Any]:
    """Yield the files that a logger's records are written to."""
    if not logger.hasHandlers():
        yield sys.stderr
    each: logging.Logger | None = logger
    while each is not None:
        for handler in each.handlers:
            yield getattr(handler, "stream", None)
        each = each.parent if each.propagate else None


CONSOLE = Console()
os.register_at_fork(after_in_child=CONSOLE._reset)
