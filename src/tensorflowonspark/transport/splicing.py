"""Forwarding of bytes between two sockets, in the kernel."""

import fcntl
import os
import socket
from contextlib import suppress
from threading import Thread

__all__ = ["forward", "shut_down"]

_PIPE_BYTES = 1 << 20  # moved at once; the kernel's default limit


def forward(peer: socket.socket, server: socket.socket, for_peer: bytes = b"", for_server: bytes = b"") -> None:
    """Forward bytes in both directions until both sides have ended.

    Parameters
    ----------
    peer, server : socket.socket
        The two sides.
    for_peer, for_server : bytes
        What each is sent first.
    """
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
