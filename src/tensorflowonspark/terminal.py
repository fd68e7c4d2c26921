"""Writes in a separate thread, so that no other thread waits for a reader that has stopped.

A thread that writes to a paused terminal (Ctrl-S), to ``| less`` or to a full pipe waits until it is read. The threads
of the driver that serve supervisors, and those of a supervisor that read the node's output, must not wait: they put
their output into a queue. While the writer makes progress they wait for room in the queue; when it is stuck the oldest
lines are dropped and counted. What else must not wait has a writer of its own: log files, MLflow, what follows a
cluster, the messages of a supervisor.
"""

import io
import logging
import os
import re
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from threading import Condition, RLock, Thread
from typing import Any

_log = logging.getLogger(__name__)
_CHARACTERS = 1 << 20  # in the queue, of which the oldest go when a terminal is not read: memory has a bound
_STUCK_SECONDS = 1.0  # without room in a file, after which no thread waits for the writer
_LOST_SECONDS = 5.0  # without progress of a file that can't be polled; a busy host is slow too
_DRAIN_SECONDS = 10.0  # for a slow terminal to show the last lines
_POLL_MILLISECONDS = 100  # without room in a file, until it counts as not read
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
# Sequences of a terminal with what belongs to them (of a title, a link or a clipboard all of it), and single controls.
_CONTROLS = re.compile(
    rf"(?P<colour>{_COLOUR})|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|"
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|"
    r"\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def printable(text: str) -> str:
    r"""Return what a terminal may be sent of the text of another process: all but controls, of which colours pass.

    Others could move the cursor over earlier lines, change the window's title, write to the clipboard or have the
    terminal answer as if that was typed.

    Examples
    --------
    >>> printable("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b[2J\x08text")
    '\x1b[31mred\x1b[0m text'
    """
    return _CONTROLS.sub(lambda match: match["colour"] or "", text)


@dataclass(frozen=True)
class _Entry:
    act: Callable[[], object]
    streams: Callable[[], Iterable[Any]]
    lines: int
    size: int


class Writer:
    """Performs writes in order, in a separate thread.

    The queue holds at most so many characters. After `lost_seconds` without progress the reader has stopped. The thread
    ends after `idle_seconds` without a write, until the next one; by default it stays.
    """

    def __init__(
        self,
        characters: int = _CHARACTERS,
        *,
        lost_seconds: float = _LOST_SECONDS,
        idle_seconds: float | None = None,
    ) -> None:
        self._characters = characters
        self._lost_seconds, self._idle_seconds = lost_seconds, idle_seconds
        self._reset()

    def _reset(self) -> None:
        # A context in which lines can be written beside progress bars.
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        self._lock = RLock()  # entered itself, as in `Monitor`, so that a signal can't leave it locked
        self._changed = Condition(self._lock)
        self._entries: deque[_Entry] = deque()
        self._size = 0
        self._dropped = 0
        self._busy = False
        self._moved = time.monotonic()  # time of the writer's last progress
        self._unread_since: float | None = None  # time since which the writer waits for a file
        self._thread: Thread | None = None

    def put(
        self, act: Callable[[], object], streams: Callable[[], Iterable[Any]] = tuple, lines: int = 0, size: int = 0
    ) -> None:
        """Put a write of so many lines and characters into the queue.

        `streams` returns the files that it writes to: the writer waits until they have room, without holding a lock.
        """
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="writer", daemon=True)
                self._thread.start()
            if not self._entries and not self._busy:
                self._moved = time.monotonic()
            while self._size + size > self._characters and self._size and not self._is_stuck:
                self._changed.wait(_STUCK_SECONDS / 4)
            while self._size + size > self._characters and self._size:
                oldest = next(each for each in self._entries if each.size)  # others, as the progress bar, stay
                self._entries.remove(oldest)
                self._size -= oldest.size
                self._dropped += oldest.lines
            self._entries.append(_Entry(act, streams, lines, size))
            self._size += size
            self._changed.notify_all()

    def log(self, logger: logging.Logger, level: int, text: str, *args: object) -> None:
        """Put a log record into the queue."""

        def write() -> None:
            with self.aside():
                logger.log(level, text, *args)

        self.put(write, lambda: outlets(logger), 1, len(text))

    def drain(self, seconds: float = _DRAIN_SECONDS, most: int = 0) -> bool:
        """Wait until at most so many writes are left, unless the reader has stopped; return whether it is so."""
        end = time.monotonic() + seconds
        with self._lock:
            while self.count > most and not self._is_stuck and time.monotonic() < end:
                self._changed.wait(min(_STUCK_SECONDS / 4, seconds))
            return self.count <= most

    @property
    def count(self) -> int:
        """The number of writes that are not done yet."""
        return len(self._entries) + self._busy

    @property
    def _is_stuck(self) -> bool:
        now = time.monotonic()
        unread = self._unread_since is not None and now - self._unread_since > _STUCK_SECONDS
        return unread or now - self._moved > self._lost_seconds

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._changed.wait_for(lambda: self._entries, self._idle_seconds):
                    self._thread = None
                    return
                self._busy = True
                streams = self._entries[0].streams
            self._wait_until_writable(streams)
            with self._lock:
                self._moved = time.monotonic()
                dropped, self._dropped = self._dropped, 0
                entry = self._entries.popleft()  # the oldest, since others may have been dropped
                self._size -= entry.size
            with suppress(Exception):  # of a closed stream, or of the user's logging handler
                if dropped:
                    _log.warning("%d lines of the nodes' output are left out here: earlier ones were not read", dropped)
                entry.act()
            with self._lock:
                self._busy = False
                self._moved = time.monotonic()
                self._changed.notify_all()

    def _wait_until_writable(self, streams: Callable[[], Iterable[Any]]) -> None:
        """Wait until all streams have room: terminals and pipes that are not read have none."""
        with suppress(Exception):  # an object without a file descriptor never blocks
            for stream in streams():
                with suppress(AttributeError, OSError, ValueError):
                    poll = select.poll()
                    poll.register(stream.fileno(), select.POLLOUT)
                    self.wait_for_reader(poll)
        self._unread_since = None

    def wait_for_reader(self, poll: "select.poll") -> None:
        """Wait until a file has room."""
        while not poll.poll(_POLL_MILLISECONDS):
            self._unread_since = self._unread_since or time.monotonic()

    def note_progress(self) -> None:
        """Note that a file has taken some of a text: a slow reader is none that has stopped."""
        self._unread_since, self._moved = None, time.monotonic()


class Unblocked:
    """A second, non-blocking descriptor of a terminal or pipe: a blocked write would hold the lock of Python's file.

    A terminal accepts data as soon as it has room for one character, and the rest of a line may have to wait. Other
    files are used as they are.
    """

    def __init__(self, file: Any, console: Writer) -> None:
        self._file = file
        self._console = console
        self._descriptor = _reopen(file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __eq__(self, other: object) -> bool:
        return self._file is getattr(other, "_file", other)  # tqdm compares the files of its bars

    def __hash__(self) -> int:
        return hash(self._file)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def write(self, text: str) -> int:
        """Write a text, and wait for room."""
        if self._descriptor is None:
            return int(self._file.write(text))
        data = text.encode(errors="replace")
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
                self._console.note_progress()
            except BlockingIOError:
                self._console.wait_for_reader(poll)
        return len(text)

    def flush(self) -> None:
        """Flush a file that is used as it is; others have no buffer."""
        if self._descriptor is None:
            self._file.flush()


def _reopen(file: Any) -> int | None:
    """Return a non-blocking descriptor of a terminal or pipe; None for other files.

    The standard streams of a notebook are objects of its kernel, with the descriptors of the kernel's own terminal.
    """
    if not isinstance(file, io.TextIOWrapper):
        return None
    try:
        number = file.fileno()
        if not (os.isatty(number) or stat.S_ISFIFO(os.fstat(number).st_mode)):
            return None
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (AttributeError, OSError, ValueError):
        return None


def plain(text: str) -> str:
    """Return a text without the escape codes of terminals, for files.

    Examples
    --------
    >>> plain(f"{chr(27)}[1m64/64{chr(27)}[0m loss: 1.3")
    '64/64 loss: 1.3'
    """
    return _CONTROLS.sub("", text)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def outlets(logger: logging.Logger) -> Iterator[Any]:
    """Yield the files that the records of a logger are written to."""
    if not logger.hasHandlers():
        yield sys.stderr
    each: logging.Logger | None = logger
    while each is not None:
        for handler in each.handlers:
            yield getattr(handler, "stream", None)
        each = each.parent if each.propagate else None


CONSOLE = Writer()
os.register_at_fork(after_in_child=CONSOLE._reset)
