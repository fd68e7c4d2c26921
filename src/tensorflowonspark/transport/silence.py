"""Silent hosts: a connection over TCP is broken off when the other host has acknowledged nothing for too long.

The kernel's own limit, ``TCP_USER_TIMEOUT``, also ends a connection whose other side only reads nothing for that time,
as a process that is stopped, or a program that takes no rows. So a thread looks for what the host has not acknowledged.
"""

import os
import socket
import struct
import time
import weakref
from contextlib import suppress
from threading import Lock, Thread
from typing import Protocol

_CHECKS = 10  # in the shortest patience of all; each takes the kernel and Python microseconds for each connection
_CHECK_SECONDS = (0.5, 5.0)  # at least and at most between two of them
_LEAST_SECONDS = 5.0  # a side that reads nothing does not answer the kernel's first question, but those that follow
_SILENT_SECONDS = 10  # after which the kernel asks whether the other host is there
_MOST_QUESTIONS = 127  # that the kernel allows: the time is counted here
# The kernel doubles the time between two tries to send: a break of the network would last up to twice as long. Linux
# has the option TCP_RTO_MAX_MS since 6.15. It gives up after about 15 tries, which must take longer than the patience.
_TCP_RTO_MAX_MS, _TRIES, _RETRY_SECONDS = 44, 8, (1.0, 120.0)
_INFO = struct.Struct("=3xB20xI28xI")  # struct tcp_info: probes, unacked, last_ack_recv


class Watched(Protocol):
    """A connection."""

    def break_off(self, reason: str) -> None:
        """End it for both sides; threads that wait for it fail with the reason."""


class _Silence:
    """What is known of one connection: when the last answer came, and since when one has been missing."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self._socket = sock
        self.patience = max(patience, _LEAST_SECONDS)
        self._answered = self._since = 0.0

    def lasts(self) -> bool:
        """Return whether the other host has been silent for too long."""
        probes, unacked, ago = _info(self._socket)
        now = time.monotonic()
        answered = now - ago / 1000
        if not (probes or unacked) or answered > self._answered + _CHECK_SECONDS[0] / 2:
            self._answered, self._since = answered, now
        return now - self._since > self.patience


def _info(sock: socket.socket) -> tuple[int, int, int]:
    """Return how many questions and packets are unanswered, and the age of the last answer in milliseconds."""
    probes, unacked, ago = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return probes, unacked, ago


def is_unanswered(sock: socket.socket) -> bool:
    """Return whether the other host has not acknowledged all that was sent to it: a host that is up does so at once."""
    return sock.family != socket.AF_UNIX and any(_info(sock)[:2])


_watched: "weakref.WeakKeyDictionary[Watched, _Silence]" = weakref.WeakKeyDictionary()
_lock = Lock()
_checking = False  # whether a thread does


def watch(connection: Watched, sock: socket.socket, patience: float) -> None:
    """Break a connection off when its host has been silent for so many seconds."""
    global _checking  # noqa: PLW0603
    for option, value in (
        (socket.TCP_KEEPIDLE, _SILENT_SECONDS),
        (socket.TCP_KEEPINTVL, _SILENT_SECONDS // 2),
        (socket.TCP_KEEPCNT, _MOST_QUESTIONS),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    least, most = _RETRY_SECONDS
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, int(1000 * min(max(patience / _TRIES, least), most)))
    with _lock:
        _watched[connection] = _Silence(sock, patience)
        begins, _checking = not _checking, True
    if begins:
        try:
            Thread(target=_check_regularly, name="silence", daemon=True).start()
        except RuntimeError:  # no thread can be started: the next connection tries again
            _checking = False


def _check_regularly() -> None:
    """Check all connections until there are none."""
    least, most = _CHECK_SECONDS
    while patience := _check():
        time.sleep(min(max(patience / _CHECKS, least), most))


def _check() -> float:
    """Check all connections; return the shortest patience, 0 without a connection."""
    global _checking  # noqa: PLW0603
    with _lock:
        watched = list(_watched.items())
        _checking = bool(watched)
    for connection, silence in watched:
        with suppress(OSError):  # it is closed
            if silence.lasts():
                connection.break_off(f"its host has not answered for {silence.patience:g} s")
    return min((silence.patience for _, silence in watched), default=0.0)


def _forget_parents() -> None:
    """Begin anew in a forked child, which has no such thread."""
    global _lock, _checking
    _lock, _checking = Lock(), False
    _watched.clear()


os.register_at_fork(after_in_child=_forget_parents)
