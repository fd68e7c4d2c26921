"""A TCP port in front of a server that passes on a few kilobytes until a peer has authenticated itself.

gRPC reads a call's whole message before it asks anybody whether the caller may speak: gigabytes, from anyone who can
reach the port. It holds any number of connections, and gives each two minutes for a handshake: strangers use up the
files that the process may open. So a server listens where they don't find it, and this is what they reach. It looks at
the first bytes of a connection for what only members of the cluster can show (`TokenShown`, `HandshakeDone`), and then
moves bytes both ways without looking at them.
"""

import fcntl
import hmac
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from typing import Protocol

from tensorflowonspark.transport.wire import bearer

__all__ = ["AuthProxy", "HandshakeDone", "TokenShown"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # how every client of gRPC begins, RFC 9113, section 3.4
_STRANGER_BYTES = 16 << 10  # until the token is seen: settings and one call's headers take less than one of these
_STRANGER_SECONDS = 10.0  # for the same; it takes milliseconds unless the host is very busy
_STRANGERS = 64  # connections that have not shown the token yet; one more, and the oldest is closed
_BACKLOG = 128
_RECORD_HEADER, _ENCRYPTED = 5, 23  # of TLS: the length of a record's header, and the kind of all encrypted ones
# What a server sends to everybody around its certificate: 315 bytes, and at most 20 more with longer hashes; an alert
# has 24. Before it answers the first call it has sent a member 150 more, and usually a kilobyte of tickets.
_FLIGHT_BYTES = 400
_PIPE_BYTES = 1 << 20  # moved at once; as much as the kernel lets everybody have


class Introduction(Protocol):
    """What the gate looks for in the first bytes of one connection."""

    begin: bytes  # how every connection of a member begins
    in_answers: bool  # the server's answers show it: a peer that has sent enough waits for them

    def sent(self, data: bytes) -> bool:
        """Take what the peer has sent; return whether it has shown now that it is a member."""
        ...

    def answered(self, data: bytes) -> bool:
        """Take what the server has answered; return whether that shows that the peer is a member."""
        ...


class TokenShown:
    """The token, in the headers of a connection's first call, which gRPC sends as they are.

    Parameters
    ----------
    token : str
        The token.
    """

    begin = _PREFACE
    in_answers = False

    def __init__(self, token: str) -> None:
        self._shown = bearer(token)
        self._sent = b""

    def sent(self, data: bytes) -> bool:
        """Look for the token in all that was sent."""
        self._sent += data
        start = self._sent.find(b"Bearer ")
        while start >= 0:
            if hmac.compare_digest(self._sent[start : start + len(self._shown)], self._shown):
                return True
            start = self._sent.find(b"Bearer ", start + 1)
        return False

    def answered(self, _data: bytes) -> bool:
        """Take no notice: a server answers strangers too."""
        return False


class HandshakeDone:
    """A TLS handshake in which the peer has shown the cluster's certificate.

    What is in the handshake's last messages is encrypted, but their sizes are not: to a peer that has not shown the
    certificate the server sends its own one, with some hundred bytes around it, and then at most an alert. More than
    that (session tickets, HTTP/2's settings, answers) comes only after it has verified the peer's. (Before TLS 1.3 no
    record is of the kind that is counted here before that moment.)

    Parameters
    ----------
    certificate : str
        The server's, PEM.

    References
    ----------
    RFC 8446, sections 2 and 5.1
    """

    begin = b"\x16\x03"  # a handshake's record
    in_answers = True

    def __init__(self, certificate: str) -> None:
        self._left = len(ssl.PEM_cert_to_DER_cert(certificate)) + _FLIGHT_BYTES
        self._record = b""

    def sent(self, _data: bytes) -> bool:
        """Take no notice: a stranger may send anything."""
        return False

    def answered(self, data: bytes) -> bool:
        """Count the bytes of encrypted records."""
        self._record += data
        while len(self._record) >= _RECORD_HEADER:
            kind, size = self._record[0], int.from_bytes(self._record[3:5], "big")
            if len(self._record) < _RECORD_HEADER + size:
                break
            self._record = self._record[_RECORD_HEADER + size :]
            self._left -= size if kind == _ENCRYPTED else 0
        return self._left < 0


class AuthProxy:
    """Holds a TCP port from its making until `close`; lets peers in from `open` on.

    Parameters
    ----------
    address : (str, int)
        Host and port; port 0 takes a free one.
    introduction : callable
        Returns, for each connection, what a peer must show.

    Raises
    ------
    OSError
        If the port can't be had.
    """

    def __init__(self, address: tuple[str, int], introduction: Callable[[], Introduction]) -> None:
        self._introduction = introduction
        self._listener = _listening(address)
        self.port = int(self._listener.getsockname()[1])
        self._inside: str | tuple[str, int] = ""
        self._lock = Lock()
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came
        self._guests: set[socket.socket] = set()
        self._closed = False

    def open(self, inside: str | tuple[str, int]) -> None:
        """Begin to let peers in to the Unix socket of this path, or to this host and port."""
        self._inside = inside
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Give up the port, and every connection through it."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._strangers, *self._guests]
        for connection in connections:
            _break(connection)  # wakes the thread that waits for it, which closes it
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                outer, _ = self._listener.accept()
            except OSError:  # closed; or this process has no file to spare, and some moments later it may have
                time.sleep(0.05)
                continue
            with self._lock:
                if self._closed:
                    outer.close()
                    return
                self._strangers[outer] = None
                if len(self._strangers) > _STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    _break(oldest)
            Thread(target=self._serve, args=(outer,), daemon=True).start()

    def _serve(self, outer: socket.socket) -> None:
        """See one connection to its end."""
        family = socket.AF_UNIX if isinstance(self._inside, str) else socket.AF_INET
        try:
            with suppress(OSError), socket.socket(family) as inner:
                if self._introduced(outer, inner):
                    with self._lock:
                        self._strangers.pop(outer, None)
                        self._guests.add(outer)
                    _join(outer, inner)
        finally:
            with self._lock:
                self._strangers.pop(outer, None)
                self._guests.discard(outer)
                outer.close()

    def _introduced(self, outer: socket.socket, inner: socket.socket) -> bool:
        """Pass on what a stranger sends and gets until it has shown who it is; return whether it has."""
        end = time.monotonic() + _STRANGER_SECONDS
        shown = self._introduction()
        for each in (outer, inner):
            each.settimeout(_STRANGER_SECONDS)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = _beginning(outer, shown.begin, end)
        if not first:
            return False
        inner.connect(self._inside)
        if inner.family == socket.AF_INET:
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inner.sendall(first)
        shown.sent(first)
        room = _STRANGER_BYTES - len(first)
        waiting = select.poll()
        waiting.register(outer, select.POLLIN)
        waiting.register(inner, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            for descriptor, _ in waiting.poll(1000 * left):
                from_peer = descriptor == outer.fileno()
                source, sink = (outer, inner) if from_peer else (inner, outer)
                came = source.recv(min(room, _STRANGER_BYTES) if from_peer else _STRANGER_BYTES)
                if not came:
                    return False
                sink.sendall(came)
                if shown.sent(came) if from_peer else shown.answered(came):
                    return True
                room -= len(came) if from_peer else 0
            if room <= 0:
                if not shown.in_answers:
                    return False
                waiting.modify(outer, 0)
        return False


def _beginning(outer: socket.socket, expected: bytes, end: float) -> bytes:
    """Return a connection's first bytes, if they are those that are expected, and come in time; else none."""
    first = b""
    while len(first) < len(expected):
        first += (came := outer.recv(len(expected) - len(first)))
        if not came or not expected.startswith(first) or time.monotonic() > end:
            return b""
    return first


def _listening(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at the first address that a host's name stands for and that can be had."""
    problem = OSError(f"no address of {address[0]}")
    for family, _, _, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = error
    raise problem


def _join(outer: socket.socket, inner: socket.socket) -> None:
    """Move bytes both ways until both sides have ended."""
    for each in (outer, inner):
        each.settimeout(None)
    back = Thread(target=_move, args=(inner, outer), daemon=True)
    back.start()
    _move(outer, inner)
    back.join()


def _move(source: socket.socket, sink: socket.socket) -> None:
    """Move bytes one way until the end, in the kernel: they do not come into this process."""
    reading, writing = os.pipe()
    try:
        with suppress(PermissionError):  # this user has many pipes: a smaller one will do
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while count := os.splice(source.fileno(), writing, _PIPE_BYTES):
            while count:
                count -= os.splice(reading, sink.fileno(), count)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            _break(each)
    finally:
        os.close(reading)
        os.close(writing)


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
