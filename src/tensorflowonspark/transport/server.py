"""Servers, which serve only peers that have proved their membership, and the paths of their Unix sockets."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import ClusterError, error_text
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import Credentials
from tensorflowonspark.transport.framed_socket import BATCHES, Frame, FramedSocket
from tensorflowonspark.transport.handshake import prove_to_client
from tensorflowonspark.transport.pickled import HEADER_BYTES, MESSAGE_BYTES, ConnectionLost, pack, unpack
from tensorflowonspark.transport.receiver import Listener, Receiver
from tensorflowonspark.transport.shared_file import FileRef, open_shared

if TYPE_CHECKING:
    import pyarrow as pa

_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminating zero, man 7 unix


def short_path(socket: Path) -> str:
    """Return a path at which this process can listen on a socket; it is short enough for the kernel.

    The limit is 107 bytes, and paths in Spark's local directories are longer. On Linux the path leads through ``/proc``
    to a directory that this process has open until it ends.
    """
    if len(os.fsencode(socket)) <= _PATH_BYTES or sys.platform != "linux":
        return str(socket)
    descriptor = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{socket.name}"


_log = logging.getLogger(__name__)
_BACKLOG = 4096  # connections that wait in the kernel until they are accepted; it may allow fewer
_MAX_UNPROVED = 64  # connections, unless more are expected; at one more, the oldest is closed
_NO_FILES_SECONDS = 0.05  # until the next attempt, when this process has no free file descriptor
_CLOSING_SECONDS = 2.0
_ERROR_CHARACTERS = 5000

PutHandler = Callable[[Any, "pa.Schema", Iterator["pa.RecordBatch | Mapped"]], Any]
ExchangeHandler = Callable[[Any, Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
ChannelHandler = Callable[[Channel], Listener | None]


@dataclass(frozen=True)
class Mapped:
    """Batches in a file that the sender has passed."""

    batches: list[pa.RecordBatch]
    size: int  # of the file


class _After(Enum):
    """What may follow a call on its connection."""

    CALL = "another one"
    RECEIVER = "messages of a channel, in the receiver's thread"
    END = "nothing"


class Server:
    """Listens on a Unix socket's path, or a host and port, until ``close``.

    Each connection has a thread, but for channels with a `Listener`: one thread receives from all of these.

    A connection is closed unless its peer proves that it belongs to the cluster (`handshake`). With TLS, a peer at a
    port must have the certificate too. Of peers that have not proved it yet a limited number is connected at a time.

    Of the ports 0 selects a free one, and a range the first one of it that is free; one that can't be bound is an
    `OSError`. Calls for another node than that of the identity are refused: addresses and paths may lead to a wrong
    node, since those of two containers can be alike, and a port passes from one process to the next.

    A channel ends when `on_channel` returns, unless it returns a `Listener` for what follows. `on_put` gets the header,
    schema and batches of each stream, and returns the reply; `on_exchange` gets the header and batches of each
    exchange, and yields a batch for each.
    """

    def __init__(
        self,
        address: str | tuple[str, int | range],
        credentials: Credentials,
        *,
        identity: str = "",
        on_channel: ChannelHandler | None = None,
        on_put: PutHandler | None = None,
        on_exchange: ExchangeHandler | None = None,
    ) -> None:
        self._credentials = credentials
        self._identity = identity
        self._on_channel = on_channel
        self._on_put = on_put
        self._on_exchange = on_exchange
        self._encrypted = bool(credentials.certificate) and not isinstance(address, str)
        self._changed = threading.Condition()
        self._unproved: dict[FramedSocket, None] = {}  # the oldest first
        self._max_unproved = _MAX_UNPROVED
        self._members: dict[FramedSocket, bool] = {}  # with whether a call is being served
        self._closed = False
        self._listener = _listen(address)
        self._receiver = Receiver(_text_for_peer) if on_channel else None
        self.port = 0 if isinstance(address, str) else int(self._listener.getsockname()[1])
        _all.add(self)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def expect(self, peers: int) -> None:
        """Allow this number of peers, if it is above the default, to connect to the port at the same time."""
        self._max_unproved = max(peers, self._max_unproved)

    def close(self) -> None:
        """Stop listening; break off calls that do not end within two seconds, and channels, which never do."""
        with self._changed:
            self._closed = True
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; a forked child may hold it
            for each in [*self._unproved, *(sock for sock, busy in self._members.items() if not busy)]:
                each.abort()
            self._changed.wait_for(lambda: not any(self._members.values()), _CLOSING_SECONDS)
            for each in self._members:
                each.abort()
        self._listener.close()
        if self._receiver is not None:
            self._receiver.close()

    # ---- connections

    def _accept(self) -> None:
        while not self._closed:
            try:
                raw, _ = self._listener.accept()
                sock = FramedSocket(raw, self._credentials, encrypted=self._encrypted, server=True)
            except OSError:  # closed; or this process has no free file descriptor, and may soon have one
                time.sleep(_NO_FILES_SECONDS)
                continue
            with self._changed:
                self._unproved[sock] = None
                if len(self._unproved) > self._max_unproved:
                    oldest = next(iter(self._unproved))
                    oldest.abort()
                    del self._unproved[oldest]
            try:
                threading.Thread(target=self._serve, args=(sock,), name="connection", daemon=True).start()
            except RuntimeError:  # no thread can be started
                self._forget(sock)
                sock.close()

    def _serve(self, sock: FramedSocket) -> None:
        """Serve one connection until its end, or until the receiver has it."""
        after = _After.CALL
        try:
            prove_to_client(sock, self._credentials.token, self._identity)
            with self._changed:
                self._unproved.pop(sock, None)
                self._members[sock] = False
            while after is _After.CALL and not self._closed:
                after = self._serve_call(sock)
                if after is _After.CALL:
                    self._set_busy(sock, False)
            if after is not _After.RECEIVER:
                self._forget(sock)  # `close` does not wait for what follows
                sock.close_gently()
        except ConnectionLost:
            sock.close()
        finally:
            if after is not _After.RECEIVER:
                self._forget(sock)

    def _forget(self, sock: FramedSocket) -> None:
        with self._changed:
            self._unproved.pop(sock, None)
            self._members.pop(sock, None)
            self._changed.notify_all()

    def _set_busy(self, sock: FramedSocket, busy: bool) -> None:
        with self._changed:
            self._members[sock] = busy
            self._changed.notify_all()

    # ---- calls

    def _serve_call(self, sock: FramedSocket) -> _After:
        """Serve the next call; return what may follow."""
        data = sock.expect(Frame.CALL, HEADER_BYTES)
        self._set_busy(sock, True)
        try:
            kind, header = unpack(data)
            if kind == "channel":
                return self._serve_channel(sock)
            items = _Items(sock)
            if kind == "put":
                self._serve_put(sock, header, items)
            else:
                self._serve_exchange(sock, header, items)
        except Exception as error:
            sock.send(Frame.ERROR, _text_for_peer(error).encode(errors="replace"))
            return _After.END
        return _After.CALL

    def _serve_channel(self, sock: FramedSocket) -> _After:
        if self._on_channel is None or self._receiver is None:
            raise ConnectionLost("this server has no channels")
        channel = Channel(sock)
        listener = self._on_channel(channel)
        if listener is None:
            channel.close()
            return _After.END

        def end() -> None:
            listener.on_end()
            self._forget(sock)
            sock.close()

        self._receiver.add(channel, Listener(listener.on_message, end))
        return _After.RECEIVER

    def _serve_put(self, sock: FramedSocket, header: Any, items: _Items) -> None:
        if self._on_put is None:
            raise ConnectionLost("this server accepts no rows")
        answer = pack(self._on_put(header, items.schema, iter(items)), MESSAGE_BYTES)
        items.skip()
        sock.send(Frame.MESSAGE, answer)

    def _serve_exchange(self, sock: FramedSocket, header: Any, items: _Items) -> None:
        if self._on_exchange is None:
            raise ConnectionLost("this server answers no exchanges")
        begun = False
        for answer in self._on_exchange(header, iter(items)):
            if not begun:
                sock.send_schema(answer.schema)
                begun = True
            sock.send_batch(answer)
        sock.send(Frame.END)
        items.skip()


class _Items:
    """What a client sends in a call until its end mark: batches, and files with batches."""

    def __init__(self, sock: FramedSocket) -> None:
        self.schema = sock.receive_schema(HEADER_BYTES)
        self._socket = sock
        self._ended = False

    def __iter__(self) -> Iterator[pa.RecordBatch | Mapped]:
        while not self._ended:
            try:
                kind, data = self._socket.receive(HEADER_BYTES)
            except ConnectionLost as error:
                raise ConnectionLost(f"the sender ended before the end of its partition ({error})") from None
            if kind in BATCHES:
                yield self._socket.read_batch(kind, data)
            elif kind is Frame.FILE:
                yield from self._mapped(unpack(data))
            elif kind is Frame.END:
                self._ended = True
            else:
                raise ConnectionLost(f"the sender sent {kind.name} where rows were expected")

    def _mapped(self, piece: Any) -> Iterator[Mapped]:
        if not isinstance(piece, FileRef):
            raise ConnectionLost(f"the sender sent a {type(piece).__name__} instead of a file")
        try:
            mapped = [Mapped(open_shared(piece), piece.size)]
        except OSError:
            self._socket.send(Frame.NOT_OPENED)
            return
        yield mapped.pop()  # without a reference here: the receiver may free it before the next one arrives
        self._socket.send(Frame.TAKEN)  # the receiver has stored it, and the sender may continue

    def skip(self) -> None:
        """Receive what was not asked for."""
        for _ in self:
            pass


def _text_for_peer(error: Exception) -> str:
    """Return an exception as a short text.

    One that nobody raised on purpose has its type in it, and its traceback goes to this process's log.
    """
    import pyarrow as pa

    text = error_text(error, _ERROR_CHARACTERS)
    if not isinstance(error, (ClusterError, OSError, pa.ArrowException)):
        text = f"{type(error).__name__}: {text}"
        frames = "".join(traceback.format_tb(error.__traceback__))
        CONSOLE.log(_log, logging.ERROR, "a call of another process failed:\n%s%s", frames, text)
    return text


def _listen(address: str | tuple[str, int | range]) -> socket.socket:
    """Return a socket that listens at a path, or at the first address of a host name that can be bound."""
    if isinstance(address, str):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener
    host, ports = address
    problem = OSError(f"no address of {host}")
    for port in ports if isinstance(ports, range) else (ports,):
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
            except OSError as error:
                problem = error
    if isinstance(ports, range) and len(ports) > 1:
        problem = OSError(problem.errno, f"no port of {ports[0]} to {ports[-1]} is free at {host} ({problem})")
    raise problem


_all: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_parents() -> None:
    """Close the parent's servers in a forked child, which would keep their ports open after the parent's end."""
    for each in list(_all):
        each._listener.close()


os.register_at_fork(after_in_child=_forget_parents)
