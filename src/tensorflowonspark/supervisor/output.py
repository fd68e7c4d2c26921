"""Capture of a node's output: lines are forwarded, and the last ones are kept."""

import fcntl
import logging
import os
import re
import select
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock, Thread
from typing import Any

from tensorflowonspark.terminal import CONSOLE, plain

_READ_BYTES = 64 * 1024
_LINE_BYTES = 64 * 1024  # a longer line is forwarded in chunks
_TAIL_LINES = 100
_SETTLE_SECONDS = 0.01  # between two looks at the pipe
# The level of a line of native code ("2026-01-01 12:00:00.1: W tensorflow/...", or newer "W0101 12:00:00.1 2905
# port.cc:1] ...") or of Python's logging ("WARNING:root:...").
_LEVEL = re.compile(r"^(?:[\d-]+ [\d:.]+: ([IWEF]) |([IWEF])\d{4} |(DEBUG|INFO|WARNING|ERROR|CRITICAL):)")
# Native INFO is of no interest to users, and neither are the errors that TensorFlow logs on every host without a GPU.
_CHATTER = re.compile(r"before absl::InitializeLog|failed call to cuInit|Unable to register cu\w+ factory")
_LETTERS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}


def level_of(line: str) -> int:
    """Return the logging level of a line of output: INFO unless the line states another.

    Examples
    --------
    >>> level_of("W0000 00:00:1795226816.3 2905 port.cc:153] slow") == logging.WARNING
    True
    """
    match = _LEVEL.match(line)
    if match is None:
        return logging.INFO
    if _CHATTER.search(line):
        return logging.DEBUG
    old, new, name = match.groups()
    return int(getattr(logging, name)) if name else _LETTERS[old or new]


def _unread_bytes(descriptor: int) -> int:
    """Return how many bytes a pipe holds."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _log_file() -> Iterator[Any]:
    yield sys.stderr


class Output:
    """Reads a node's output in a thread until its end.

    The descriptor is the reading end of the pipe that is the node's standard output and standard error. The name is a
    prefix of each line in the executor's log, to which lines go with `echo`. Lines of lower levels are not forwarded.
    `on_lines` is called with tuples of lines, in the thread.
    """

    def __init__(
        self, descriptor: int, *, name: str, level: int, echo: bool, on_lines: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._descriptor = descriptor
        self._name = name
        self._level = level
        self._echo = echo
        self._on_lines = on_lines
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reading = Lock()  # held from a read until its lines are forwarded
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def tail(self, wait_seconds: float = 0.0) -> str:
        """Wait at most `wait_seconds` for the end of the output; return its last lines."""
        self._thread.join(wait_seconds)
        return "\n".join(self._tail)

    def settle(self, seconds: float) -> None:
        """Wait at most so long until all whole lines that the node has written so far are forwarded."""
        end = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < end:
            if self._reading.acquire(timeout=seconds):
                unread = _unread_bytes(self._descriptor)
                self._reading.release()
                if not unread:
                    return
            time.sleep(_SETTLE_SECONDS)

    def _read(self) -> None:
        rest = b""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while poll.poll():
            with self._reading:
                chunk = os.read(self._descriptor, _READ_BYTES)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                self._deliver(lines)
        if rest:
            self._deliver([rest])

    def _deliver(self, raw: list[bytes]) -> None:
        # A progress bar redraws its line after "\r": the last version is the visible one.
        lines = [line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace") for line in raw]
        texts = [plain(line) for line in lines]
        self._tail.extend(texts)
        if self._echo:
            for line in texts:
                text = f"[{self._name}] {line}\n"
                CONSOLE.put(partial(sys.stderr.write, text), _log_file, 1, len(text))
        wanted = tuple(line for line in lines if level_of(line) >= self._level)
        if wanted:
            self._on_lines(wanted)
