"""A TCP port in front of a server: from a peer that has not shown the token it lets some kilobytes pass, and no more.

gRPC reads a call's whole message before it asks anybody whether the caller may speak: gigabytes, from anyone who can
reach the port, in as many calls at a time as they like. So a server without TLS listens where nobody finds it, and
this is what strangers reach. It looks for the token in the first bytes of a connection, where gRPC sends a call's
headers as they are, and then moves bytes both ways without looking at them. (With TLS no gate is needed: a peer
without the cluster's key does not get past the handshake.)
"""

import fcntl
import hmac
import os
import select
import socket
import time
from contextlib import suppress
from threading import Lock, Thread

from tensorflowonspark.transport.common import bearer

__all__ = ["Gate"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # how every client of gRPC begins, RFC 9113, section 3.4
_STRANGER_BYTES = 16 << 10  # until the token is seen: settings and one call's headers take less than one of these
_STRANGER_SECONDS = 10.0  # for the same; it takes milliseconds unless the host is very busy
_STRANGERS = 64  # connections that have not shown the token yet; one more, and the oldest is closed
_BACKLOG = 128
_PIPE_BYTES = 1 << 20  # moved at once; as much as the kernel lets everybody have


class Gate:
    """Holds a TCP port from its making until `close`; lets peers in from `open` on.

    Parameters
    ----------
    address : (str, int)
        Host and port; port 0 takes a free one.
    token : str
        What a peer must show.

    Raises
    ------
    OSError
        If the port can't be had.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._shown = bearer(token)
        self._listener = _listening(address)
        self.port = int(self._listener.getsockname()[1])
        self._inside = ""
        self._lock = Lock()
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came
        self._guests: set[socket.socket] = set()
        self._closed = False

    def open(self, inside: str) -> None:
        """Begin to let peers in to the Unix socket of this path."""
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
        try:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as inner:
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
        """Pass on what a stranger says and hears until it has shown the token; return whether it has."""
        end = time.monotonic() + _STRANGER_SECONDS
        outer.settimeout(_STRANGER_SECONDS)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = b""
        while len(said) < len(_PREFACE):
            said += (came := outer.recv(len(_PREFACE) - len(said)))
            if not came or not _PREFACE.startswith(said) or time.monotonic() > end:
                return False
        inner.settimeout(_STRANGER_SECONDS)
        inner.connect(self._inside)
        inner.sendall(said)
        waiting = select.poll()
        waiting.register(outer, select.POLLIN)
        waiting.register(inner, select.POLLIN)
        while (left := end - time.monotonic()) > 0 and len(said) < _STRANGER_BYTES:
            for descriptor, _ in waiting.poll(1000 * left):
                source, sink = (outer, inner) if descriptor == outer.fileno() else (inner, outer)
                came = source.recv(_STRANGER_BYTES)
                if not came:
                    return False
                sink.sendall(came)
                if source is outer:
                    said += came
                    if self._shows_token(said):
                        return True
        return False

    def _shows_token(self, said: bytes) -> bool:
        start = said.find(b"Bearer ")
        while start >= 0:
            if hmac.compare_digest(said[start : start + len(self._shown)], self._shown):
                return True
            start = said.find(b"Bearer ", start + 1)
        return False


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
