"""A TCP port in front of a server that forwards at most a few kilobytes until a peer has authenticated itself.

gRPC reads the whole message of a call before it checks whether the caller is authorized: gigabytes, from anyone who can
reach the port. It accepts any number of connections and gives each two minutes for a handshake, so unauthenticated
peers use up the files that the process may open. The server therefore listens where only this process can connect, and
the proxy listens on the port. It searches the first bytes of a connection for a proof of membership
(`TokenAuthentication`, `TlsAuthentication`), and then forwards bytes in both directions without reading them.
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

__all__ = ["AuthProxy", "TlsAuthentication", "TokenAuthentication"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of every gRPC client, RFC 9113, section 3.4
_AUTHENTICATION_BYTES = 16 << 10  # before the token: settings and the headers of one call take less than 1 KiB
_AUTHENTICATION_SECONDS = 10.0  # for the same; it takes milliseconds unless the host is very busy
_MAX_UNAUTHENTICATED = 64  # connections; at one more, the oldest is closed
_BACKLOG = 128
_RECORD_HEADER, _ENCRYPTED = 5, 23  # of TLS: the length of a record's header, and the kind of all encrypted records
# Bytes that a server sends to every peer around its certificate: 315, and at most 20 more with longer hashes; an alert
# has 24. Before it answers the first call it has sent a member 150 more, and usually a kilobyte of tickets.
_FLIGHT_BYTES = 400
_PIPE_BYTES = 1 << 20  # moved at once; the kernel's default limit


class Authentication(Protocol):
    """The proof of membership in the first bytes of one connection."""

    prefix: bytes  # the first bytes of every member's connection
    by_server: bool  # the server's bytes are the proof: a peer that has sent enough waits for them

    def on_peer_bytes(self, data: bytes) -> bool:
        """Process bytes of the peer; return whether they complete the proof."""
        ...

    def on_server_bytes(self, data: bytes) -> bool:
        """Process bytes of the server; return whether they complete the proof."""
        ...


class TokenAuthentication:
    """The token, in the headers of a connection's first call, which gRPC sends uncompressed.

    Parameters
    ----------
    token : str
        The token.
    """

    prefix = _PREFACE
    by_server = False

    def __init__(self, token: str) -> None:
        self._expected = bearer(token)
        self._sent = b""

    def on_peer_bytes(self, data: bytes) -> bool:
        """Search all bytes of the peer for the token."""
        self._sent += data
        start = self._sent.find(b"Bearer ")
        while start >= 0:
            if hmac.compare_digest(self._sent[start : start + len(self._expected)], self._expected):
                return True
            start = self._sent.find(b"Bearer ", start + 1)
        return False

    def on_server_bytes(self, _data: bytes) -> bool:
        """Ignore them: a server answers every peer."""
        return False


class TlsAuthentication:
    """A TLS handshake in which the peer has presented the cluster's certificate.

    The last messages of the handshake are encrypted, but their sizes are visible: a peer that has not presented the
    certificate gets the server's own one, with some hundred bytes around it, and then at most an alert. More than that
    (session tickets, HTTP/2 settings, answers) follows only after the server has verified the peer's certificate.
    (Before TLS 1.3 no record is of the counted kind before that moment.)

    Parameters
    ----------
    certificate : str
        The server's, PEM.

    References
    ----------
    RFC 8446, sections 2 and 5.1
    """

    prefix = b"\x16\x03"  # the record of a handshake
    by_server = True

    def __init__(self, certificate: str) -> None:
        self._remaining = len(ssl.PEM_cert_to_DER_cert(certificate)) + _FLIGHT_BYTES
        self._record = b""

    def on_peer_bytes(self, _data: bytes) -> bool:
        """Ignore them: an unauthenticated peer may send anything."""
        return False

    def on_server_bytes(self, data: bytes) -> bool:
        """Count the bytes of encrypted records."""
        self._record += data
        while len(self._record) >= _RECORD_HEADER:
            kind, size = self._record[0], int.from_bytes(self._record[3:5], "big")
            if len(self._record) < _RECORD_HEADER + size:
                break
            self._record = self._record[_RECORD_HEADER + size :]
            self._remaining -= size if kind == _ENCRYPTED else 0
        return self._remaining < 0


class AuthProxy:
    """Binds a TCP port until `close`, and forwards authenticated connections from `open` on.

    Parameters
    ----------
    address : (str, int)
        Host and port; port 0 selects a free one.
    authentication : callable
        Returns the `Authentication` of a new connection.

    Raises
    ------
    OSError
        If the port can't be bound.
    """

    def __init__(self, address: tuple[str, int], authentication: Callable[[], Authentication]) -> None:
        self._authentication = authentication
        self._listener = _listen(address)
        self.port = int(self._listener.getsockname()[1])
        self._upstream: str | tuple[str, int] = ""
        self._lock = Lock()
        self._unauthenticated: dict[socket.socket, None] = {}  # oldest first
        self._authenticated: set[socket.socket] = set()
        self._closed = False

    def open(self, upstream: str | tuple[str, int]) -> None:
        """Begin to forward connections to the Unix socket of this path, or to this host and port."""
        self._upstream = upstream
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close the port and every connection through it."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._unauthenticated, *self._authenticated]
        for connection in connections:
            _shut_down(connection)  # wakes the thread that waits for it, which closes it
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed; or this process has no free file descriptor, and may soon have one
                time.sleep(0.05)
                continue
            with self._lock:
                if self._closed:
                    peer.close()
                    return
                self._unauthenticated[peer] = None
                if len(self._unauthenticated) > _MAX_UNAUTHENTICATED:
                    oldest = next(iter(self._unauthenticated))
                    del self._unauthenticated[oldest]
                    _shut_down(oldest)
            Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        """Forward one connection until its end."""
        family = socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET
        try:
            with suppress(OSError), socket.socket(family) as server:
                if self._authenticate(peer, server):
                    with self._lock:
                        self._unauthenticated.pop(peer, None)
                        self._authenticated.add(peer)
                    _forward(peer, server)
        finally:
            with self._lock:
                self._unauthenticated.pop(peer, None)
                self._authenticated.discard(peer)
                peer.close()

    def _authenticate(self, peer: socket.socket, server: socket.socket) -> bool:
        """Forward bytes until the peer is authenticated; return whether it is."""
        end = time.monotonic() + _AUTHENTICATION_SECONDS
        authentication = self._authentication()
        for each in (peer, server):
            each.settimeout(_AUTHENTICATION_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        prefix = _read_prefix(peer, authentication.prefix, end)
        if not prefix:
            return False
        server.connect(self._upstream)
        if server.family == socket.AF_INET:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(prefix)
        authentication.on_peer_bytes(prefix)
        room = _AUTHENTICATION_BYTES - len(prefix)
        waiting = select.poll()
        waiting.register(peer, select.POLLIN)
        waiting.register(server, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            for descriptor, _ in waiting.poll(1000 * left):
                from_peer = descriptor == peer.fileno()
                source, sink = (peer, server) if from_peer else (server, peer)
                data = source.recv(min(room, _AUTHENTICATION_BYTES) if from_peer else _AUTHENTICATION_BYTES)
                if not data:
                    return False
                sink.sendall(data)
                if authentication.on_peer_bytes(data) if from_peer else authentication.on_server_bytes(data):
                    return True
                room -= len(data) if from_peer else 0
            if room <= 0:
                if not authentication.by_server:
                    return False
                waiting.modify(peer, 0)
        return False


def _read_prefix(peer: socket.socket, expected: bytes, end: float) -> bytes:
    """Return the first bytes of a connection if they are the expected ones and arrive in time, else none."""
    prefix = b""
    while len(prefix) < len(expected):
        prefix += (data := peer.recv(len(expected) - len(prefix)))
        if not data or not expected.startswith(prefix) or time.monotonic() > end:
            return b""
    return prefix


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at the first address of a host name that can be bound."""
    problem = OSError(f"no address of {address[0]}")
    for family, _, _, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = error
    raise problem


def _forward(peer: socket.socket, server: socket.socket) -> None:
    """Forward bytes in both directions until both sides have ended."""
    for each in (peer, server):
        each.settimeout(None)
    back = Thread(target=_forward_one_way, args=(server, peer), daemon=True)
    back.start()
    _forward_one_way(peer, server)
    back.join()


def _forward_one_way(source: socket.socket, sink: socket.socket) -> None:
    """Forward bytes in one direction until the end, in the kernel: they do not enter this process."""
    reading, writing = os.pipe()
    try:
        with suppress(PermissionError):  # this user has many pipes; a smaller one suffices
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while count := os.splice(source.fileno(), writing, _PIPE_BYTES):
            while count:
                count -= os.splice(reading, sink.fileno(), count)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            _shut_down(each)
    finally:
        os.close(reading)
        os.close(writing)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
