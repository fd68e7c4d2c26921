"""Compressed batches: on a network that is slow, and of rows that become smaller.

A fast network is faster than any compression: there batches are sent as they are. The kernel knows how fast a
connection is. It counts the bytes that were acknowledged, and the time in which bytes waited for the network, not for
the other side to read (``tcpi_busy_time`` and ``tcpi_rwnd_limited`` of ``struct tcp_info``).
"""

import math
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_INFO = struct.Struct("=120xQ40xQQ")  # struct tcp_info: bytes_acked, busy_time and rwnd_limited in microseconds
_SLOW = 150e6  # bytes in a second: a network of 1 Gbit/s carries 120
_KNOWN_BYTES = 1 << 20  # of a connection, after which its speed counts
_LEAST_BYTES = 16 << 10  # of a batch that is tried
_SAVED = 0.9  # as a part of the batch: what is larger is not worth it
_PAUSE_BYTES = 256 << 20  # of batches that follow such a one, and that are not tried

_speeds: dict[str, float] = {}  # by host: bytes in a second of the last connection that has sent enough


def note_speed(sock: socket.socket) -> None:
    """Note how fast the network to a connection's host is, for all connections to it: one alone may be short."""
    if sock.family == socket.AF_UNIX:
        return
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    if len(info) < _INFO.size:  # Linux is older than 4.10
        return
    sent, busy, waited = _INFO.unpack(info)
    if sent > _KNOWN_BYTES and busy > waited:
        _speeds[sock.getpeername()[0]] = 1e6 * sent / (busy - waited)


def is_slow(sock: socket.socket) -> bool:
    """Return whether the network to a connection's host is slow, as far as that is known."""
    if sock.family == socket.AF_UNIX:
        return False
    note_speed(sock)
    return _speeds.get(sock.getpeername()[0], math.inf) < _SLOW


class Compression:
    """Compresses the batches of one connection, if its network is slow and they become smaller."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._pause = 0  # bytes that are sent as they are, before the next trial

    def compress(self, batch: "pa.RecordBatch") -> "pa.Buffer | None":
        """Return a stream of a batch, compressed; None if the batch is better sent as it is."""
        if self._pause > 0:
            self._pause -= batch.nbytes
            return None
        if batch.nbytes < _LEAST_BYTES or not is_slow(self._socket):
            return None
        data = stream_of(batch, "zstd")
        if len(data) < _SAVED * batch.nbytes:
            return data
        self._pause = _PAUSE_BYTES
        return None


def stream_of(batch: "pa.RecordBatch", compression: str | None = None) -> "pa.Buffer":
    """Return Arrow's stream of one batch, with its dictionaries; it may be compressed, as by "zstd"."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
