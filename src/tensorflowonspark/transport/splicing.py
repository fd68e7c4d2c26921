"""Connections whose bytes the kernel moves from one socket to another, each by two threads."""

import fcntl
import os
import socket
from contextlib import suppress
from threading import Lock, Thread

__all__ = ["SplicedConnections", "shut_down"]

_PIPE_BYTES = 1 << 20  # moved at once; the kernel's default limit


class SplicedConnections:
    """Forwards bytes between peers and a server until both sides of a connection have ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._peers: set[socket.socket] = set()
        self._closed = False

    def add(self, peer: socket.socket, server: socket.socket, for_peer: bytes, for_server: bytes) -> None:
        """Forward a connection, and close it at its end.

        Parameters
        ----------
        peer, server : socket.socket
            The two sides.
        for_peer, for_server : bytes
            What each is sent first.
        """
        with self._lock:
            self._peers.add(peer)
            if self._closed:
                shut_down(peer)

        def run() -> None:
            try:
                _forward(peer, server, for_peer, for_server)
            finally:
                self._close(peer, server)

        try:
            Thread(target=run, daemon=True).start()
        except RuntimeError:  # no thread can be started
            self._close(peer, server)

    def close(self) -> None:
        """End all connections, and those that are added later."""
        with self._lock:
            self._closed = True
            for peer in self._peers:
                shut_down(peer)  # wakes the threads that wait for it, which close it

    def _close(self, peer: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._peers.discard(peer)
            peer.close()
        server.close()


def _forward(peer: socket.socket, server: socket.socket, for_peer: bytes, for_server: bytes) -> None:
    for each in (peer, server):
        each.settimeout(None)
    back = Thread(target=_forward_one_way, args=(server, peer, for_peer), daemon=True)
    back.start()
    _forward_one_way(peer, server, for_server)
    back.join()


def _forward_one_way(source: socket.socket, sink: socket.socket, first: bytes) -> None:
    """Forward bytes in one direction until the end: they do not enter this process."""
    reading, writing = os.pipe()
    try:
        with suppress(PermissionError):  # this user has many pipes; a smaller one suffices
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        sink.sendall(first)
        while count := os.splice(source.fileno(), writing, _PIPE_BYTES):
            while count:
                count -= os.splice(reading, sink.fileno(), count)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            shut_down(each)
    finally:
        os.close(reading)
        os.close(writing)


def shut_down(connection: socket.socket) -> None:
    """End a connection, for every process that holds it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
