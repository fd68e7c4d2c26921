"""Frames on a socket: a kind, a length and that many bytes, which are a pickle, a text or a batch of Arrow's.

A supervisor uses no other kind than messages, and so it does not import Arrow.
"""

import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING

from tensorflowonspark.transport.compression import Compression, note_speed, stream_of
from tensorflowonspark.transport.credentials import Credentials
from tensorflowonspark.transport.pickled import ConnectionLost, connection_errors
from tensorflowonspark.transport.silence import is_unanswered, watch
from tensorflowonspark.transport.tls import TlsSocket

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD = struct.Struct(">BQ")  # the kind and the length
_JOINED_BYTES = 64 << 10  # that are sent with the head, and received at once
_LINGER_SECONDS = 2.0  # for the other side to take the last bytes and to end the connection
_ERROR_BYTES = 64 << 10
_BATCH_BYTES = 1 << 40  # more is no length


class Frame(IntEnum):
    """What a frame has in it."""

    CALL = 1  # a pickle: what is called, and its header
    MESSAGE = 2  # a pickle
    FILE = 3  # a pickle: a file that the receiver may open
    TAKEN = 4  # nothing: the file is stored
    NOT_OPENED = 5  # nothing: the file can't be opened there
    SCHEMA = 6  # Arrow's message of the schema of the batches that follow
    BATCH = 7  # Arrow's message of a batch
    STREAM = 8  # a stream of Arrow's of one batch, which has dictionaries or is compressed
    END = 9  # nothing: no more of the call comes from this side
    ERROR = 10  # a text: the call has failed


class Refused(ConnectionLost):
    """The other side has answered with an error."""


_KINDS = frozenset(Frame)
BATCHES = frozenset({Frame.BATCH, Frame.STREAM})
_all: "weakref.WeakSet[FramedSocket]" = weakref.WeakSet()


class FramedSocket:
    """A connection with another process. One thread may receive while another one sends.

    It closes the socket in the end.
    """

    def __init__(self, sock: socket.socket, credentials: Credentials, *, encrypted: bool, server: bool) -> None:
        self._socket = sock
        self._tls = TlsSocket(sock, credentials, server=server) if encrypted else None
        self._received = memoryview(bytearray(_JOINED_BYTES))
        self._start = self._end = 0  # of the bytes in it that no frame has taken yet
        self._sends_dictionaries = False  # in batches of the schema that was sent last
        self._compression = Compression(sock)
        self._schema: pa.Schema | None = None  # of the batches that come
        self.broken = ""  # why it was broken off
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch(self, sock, credentials.patience)
        _all.add(self)

    @contextmanager
    def handshake(self, seconds: float) -> Iterator[None]:
        """Begin with TLS, if it is used; in this ``with`` block fail after so many seconds without a byte."""
        with connection_errors():
            self._socket.settimeout(seconds)
            if self._tls is not None:
                self._tls.handshake()
            yield
            self._socket.settimeout(None)

    # ---- sending

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Send bytes that are no frame, or a part of one."""
        with connection_errors(self):
            (self._tls or self._socket).sendall(memoryview(data))

    def send(self, kind: Frame, data: "bytes | pa.Buffer" = b"") -> None:
        """Send a frame.

        If the other side has ended, it raises `ConnectionLost`.
        """
        head, rest = _HEAD.pack(kind, len(data)), memoryview(data)
        if len(data) <= _JOINED_BYTES:
            self.send_bytes(head + bytes(rest))
            return
        if self._tls is None:
            with connection_errors(self):
                sent = self._socket.sendmsg([head, rest])  # without a packet of its own for the head
            head, rest = head[sent:], rest[max(0, sent - len(head)) :]
        self.send_bytes(head)
        self.send_bytes(rest)

    def send_schema(self, schema: "pa.Schema") -> None:
        """Begin to send batches."""
        self._sends_dictionaries = _has_dictionaries(schema)
        self.send(Frame.SCHEMA, schema.serialize())

    def send_batch(self, batch: "pa.RecordBatch") -> None:
        """Send a batch of the schema that was sent last."""
        stream = self._compression.compress(batch)
        if stream is None and self._sends_dictionaries:
            stream = stream_of(batch)
        if stream is None:
            self.send(Frame.BATCH, batch.serialize())
        else:
            self.send(Frame.STREAM, stream)

    # ---- receiving

    def read(self, count: int) -> bytes:
        """Receive bytes that are no frame, or a part of one."""
        data = bytearray(count)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        with connection_errors(self):
            done = 0
            while done < len(view):
                if self._start < self._end:
                    count = min(len(view) - done, self._end - self._start)
                    view[done : done + count] = self._received[self._start : self._start + count]
                    self._start += count
                elif len(view) - done >= _JOINED_BYTES:
                    count = self._receive_into(view[done:], socket.MSG_WAITALL)
                else:
                    count = self._end = self._receive_into(self._received)
                    self._start = 0
                    if count:
                        continue
                if not count:
                    raise ConnectionLost("the other side closed the connection")
                done += count

    def _receive_into(self, view: memoryview, flags: int = 0) -> int:
        if self._tls is not None:  # which takes what the kernel has, and so can't wait for all
            return self._tls.recv_into(view, flags & socket.MSG_DONTWAIT)
        return self._socket.recv_into(view, 0, flags)

    def receive(self, limit: int) -> "tuple[Frame, bytes | pa.Buffer]":
        """Wait for the next frame; return its kind, and its bytes (those of a batch as a buffer of Arrow's).

        If the other side reports an error, it raises `Refused`; if that has ended, or sends more than `limit` bytes
        that are no batch, `ConnectionLost`.
        """
        kind, size = _HEAD.unpack(self.read(_HEAD.size))
        if kind in BATCHES and size <= _BATCH_BYTES:
            import pyarrow as pa

            with connection_errors():
                buffer = pa.allocate_buffer(size)
            self._fill(memoryview(buffer).cast("B"))
            return Frame(kind), buffer
        _require_size(kind, size, limit)
        data = self.read(size)
        if kind == Frame.ERROR:
            raise Refused(data.decode(errors="replace"))
        return Frame(kind), data

    def arriving(self, limit: int) -> "Iterator[tuple[Frame, bytes] | None]":
        """Yield the frames that come, none of them a batch, and None where the next one is not there as a whole yet.

        Nothing waits: the caller goes on when the socket can be read.

        At the end, or if the other side sends more than `limit` bytes, it raises `ConnectionLost`.
        """
        arrived, more = bytearray(), True
        while True:
            while (frame := _take_first(arrived, limit)) is None:
                if not more:
                    yield None
                more = self._take_arrived(arrived)
            yield frame

    def _take_arrived(self, arrived: bytearray) -> bool:
        """Append what has come to some bytes; return whether there may be more."""
        if self._start == self._end:
            with connection_errors(self):
                try:
                    count = self._receive_into(self._received, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return False
            if not count:
                raise ConnectionLost("the other side closed the connection")
            self._start, self._end = 0, count
        arrived += self._received[self._start : self._end]
        self._start = self._end
        return self._tls is not None or self._end == len(self._received)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    def expect(self, wanted: Frame, limit: int) -> bytes:
        """Wait for a frame of one kind; return its bytes."""
        kind, data = self.receive(limit)
        if kind is not wanted:
            raise ConnectionLost(f"the other side sent {kind.name} where {wanted.name} was expected")
        return bytes(data)

    def receive_schema(self, limit: int) -> "pa.Schema":
        """Wait for the schema of the batches that follow."""
        return self.read_schema(self.expect(Frame.SCHEMA, limit))

    def read_schema(self, data: "bytes | pa.Buffer") -> "pa.Schema":
        """Return the schema in the bytes of a frame, which is that of the batches that follow."""
        import pyarrow as pa

        try:
            self._schema = schema = pa.ipc.read_schema(pa.py_buffer(data))
        except (pa.ArrowException, OSError) as error:
            raise ConnectionLost(f"the other side sent no schema: {error}") from error
        return schema

    def read_batch(self, kind: Frame, data: "bytes | pa.Buffer") -> "pa.RecordBatch":
        """Return the batch in the bytes of a frame; it is not copied unless it is compressed."""
        import pyarrow as pa

        if self._schema is None:
            raise ConnectionLost("the other side sent a batch before its schema")
        try:
            if kind is Frame.STREAM:
                return pa.ipc.open_stream(data).read_next_batch()
            return pa.ipc.read_record_batch(data, self._schema)
        except (pa.ArrowException, OSError) as error:
            raise ConnectionLost(f"the other side sent no batch of its schema: {error}") from error

    def has_bytes(self) -> bool:
        """Return whether the other side has sent something that was not received, or has ended."""
        if self._start < self._end:
            return True
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def refusal(self) -> str:
        """Return the error that the other side has sent before it ended; "" if it has sent none."""
        try:
            self._socket.settimeout(_LINGER_SECONDS)
            while True:
                self.receive(_ERROR_BYTES)
        except Refused as error:
            return str(error)
        except (ConnectionLost, OSError):
            return ""

    # ---- the end

    def end(self) -> None:
        """Send nothing more; the other side notices it after the last bytes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def break_off(self, reason: str) -> None:
        """End the connection as `abort` does, for a reason."""
        self.broken = reason
        self.abort()

    @property
    def is_unanswered(self) -> bool:
        """Whether the other host does not answer, or the connection was broken off for that."""
        with suppress(OSError):  # it is closed
            return bool(self.broken) or is_unanswered(self._socket)
        return False

    def abort(self) -> None:
        """End the connection for both sides; threads that wait for it fail."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            note_speed(self._socket)
        self.abort()
        self._socket.close()

    def close_gently(self) -> None:
        """Close the connection after the other side has taken the last bytes, or some seconds later.

        Bytes that were not received would let the kernel reset the connection, and drop what it has not sent.
        """
        self.end()
        until = time.monotonic() + _LINGER_SECONDS
        with suppress(OSError):
            while (rest := until - time.monotonic()) > 0:
                self._socket.settimeout(rest)
                if not self._socket.recv_into(self._received):
                    break
        self.close()

    def __del__(self) -> None:
        self._socket.close()


def _require_size(kind: int, size: int, limit: int) -> None:
    """Raise ConnectionLost for a frame, which is no batch, of an unknown kind or with more bytes than allowed."""
    limit = _ERROR_BYTES if kind == Frame.ERROR else limit
    if kind not in _KINDS or size > limit:
        raise ConnectionLost(f"a message of the other side has {size} bytes (kind {kind}), outside of 0 to {limit}")


def _take_first(arrived: bytearray, limit: int) -> tuple[Frame, bytes] | None:
    """Remove the first frame from bytes that have come, and return it; None if it is not there as a whole."""
    if len(arrived) < _HEAD.size:
        return None
    kind, size = _HEAD.unpack_from(arrived)
    _require_size(kind, size, limit)
    end = _HEAD.size + size
    if len(arrived) < end:
        return None
    with memoryview(arrived) as view:
        data = bytes(view[_HEAD.size : end])
    del arrived[:end]
    return Frame(kind), data


def _has_dictionaries(schema: "pa.Schema") -> bool:
    """Return whether values of a schema are in dictionaries, which Arrow sends in messages of their own."""
    waiting = [field.type for field in schema]
    while waiting:
        kind = waiting.pop()
        if hasattr(kind, "index_type"):
            return True
        kind = getattr(kind, "storage_type", kind)
        waiting.extend(kind.field(i).type for i in range(kind.num_fields))
    return False


def _forget_parents() -> None:
    """Close the parent's connections in a forked child, which would keep them open after the parent's end."""
    for each in list(_all):
        each._socket.close()


os.register_at_fork(after_in_child=_forget_parents)
