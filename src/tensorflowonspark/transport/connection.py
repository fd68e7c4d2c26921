"""Client side of a connection: channels, streams and exchanges."""

from __future__ import annotations

import os
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.messages import NodeReady
from tensorflowonspark.processes import open_private, place
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import Credentials
from tensorflowonspark.transport.framed_socket import Frame, FramedSocket
from tensorflowonspark.transport.handshake import prove_to_server
from tensorflowonspark.transport.pickled import (
    HEADER_BYTES,
    MESSAGE_BYTES,
    ConnectionLost,
    NoConnection,
    pack,
    unpack,
)
from tensorflowonspark.transport.shared_file import FileRef

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPT_SECONDS, _AGAIN_SECONDS = 5.0, 0.5  # of an attempt to reach a host, and until the next one
_REFUSED = (ConnectionRefusedError, PermissionError, socket.gaierror)  # waiting does not help
_BATCH_BYTES = 64 << 20  # in one message: the receiver holds one at a time


class Connection:
    """Calls of a server, whose sockets are opened by the first ones and used again by later ones.

    The address is the path of a Unix socket, or a host and port. All calls are for the node of the identity; another
    one refuses them.
    """

    def __init__(self, address: str | tuple[str, int], credentials: Credentials, *, identity: str = "") -> None:
        self.is_local = isinstance(address, str)
        self._address = address
        self._credentials = credentials
        self._identity = identity
        self._opened: weakref.WeakSet[FramedSocket] = weakref.WeakSet()
        self._idle: list[FramedSocket] = []

    def channel(self) -> Channel:
        """Open a channel."""
        return Channel(self._call("channel", None))

    def put(self, header: object, schema: pa.Schema) -> PutStream:
        """Open a stream for one partition."""
        return PutStream(self._call("put", header), schema, self._idle.append)

    def exchange(self, header: object, schema: pa.Schema) -> Exchange:
        """Open an exchange for batches of a schema."""
        return Exchange(self._call("exchange", header), schema, self._idle.append)

    def close(self) -> None:
        """Close the connection, and break off what it still does."""
        for each in list(self._opened):
            each.close()

    def _call(self, kind: str, header: object) -> FramedSocket:
        data = pack((kind, header), HEADER_BYTES)
        sock = self._take_idle() or self._open()
        sock.send(Frame.CALL, data)
        return sock

    def _take_idle(self) -> FramedSocket | None:
        with suppress(IndexError):  # several threads may take one
            while True:
                sock = self._idle.pop()
                if not sock.has_bytes():
                    return sock
                sock.close()  # the server has ended
        return None

    def _open(self) -> FramedSocket:
        """Connect, and let both sides prove that they belong to the cluster."""
        address = self._address
        shown = address if isinstance(address, str) else "{}:{}".format(*address)
        try:
            if isinstance(address, str):
                raw = socket.socket(socket.AF_UNIX)
                raw.connect(address)
            else:
                raw = _reach(address, self._credentials.patience)
        except OSError as error:
            raise NoConnection(f"{shown} can't be reached: {error.strerror or error}") from error
        encrypted = bool(self._credentials.certificate) and not self.is_local
        sock = FramedSocket(raw, self._credentials, encrypted=encrypted, server=False)
        self._opened.add(sock)
        try:
            prove_to_server(sock, self._credentials.token, self._identity, shown)
        except BaseException:
            sock.close()
            raise
        return sock


def _reach(address: tuple[str, int], patience: float) -> socket.socket:
    """Connect to a host; if none answers, try again until patience is over."""
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(address, _ATTEMPT_SECONDS)
        except OSError as error:
            if isinstance(error, _REFUSED) or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_SECONDS)


class _Call:
    """The client end of a call that sends batches.

    The call has begun on the socket, which `release` takes when it has ended well.
    """

    def __init__(self, sock: FramedSocket, schema: pa.Schema, release: Callable[[FramedSocket], None]) -> None:
        self._socket = sock
        self._release = release
        with self._sending():
            sock.send_schema(schema)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Raise the server's error, if it has sent one, in place of the error of a connection that it has closed."""
        try:
            yield
        except ConnectionLost as error:
            raise ConnectionLost(self._socket.refusal() or str(error)) from error


class PutStream(_Call):
    """The sending end of a stream of one partition's batches."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch, split into messages; wait while the receiver is behind."""
        for piece in _split(batch):
            with self._sending():
                if self._socket.has_bytes():  # before the end only an error comes
                    raise ConnectionLost("the receiver has ended")
                self._socket.send_batch(piece)

    def send_file(self, piece: FileRef) -> bool:
        """Pass a file and wait for the reply; return whether the receiver could open the file."""
        with self._sending():
            self._socket.send(Frame.FILE, pack(piece, HEADER_BYTES))
        return self._socket.receive(0)[0] is Frame.TAKEN

    def finish(self) -> Any:
        """Send the end mark and wait until all rows are stored; return the receiver's reply."""
        with self._sending():
            self._socket.send(Frame.END)
        result = unpack(self._socket.expect(Frame.MESSAGE, MESSAGE_BYTES))
        self._release(self._socket)
        return result


class Exchange(_Call):
    """The client end of an exchange, which sends a batch and receives one.

    Sending and receiving alternate: two ends that both wrote without reading would wait for each other for ever.
    """

    def request(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send a batch, split into messages; yield the reply to each."""
        for piece in _split(batch):
            with self._sending():
                self._socket.send_batch(piece)
            answer = self._answer()
            if answer is None:
                raise ConnectionLost("the other side ended without a reply")
            yield answer

    def drain(self) -> Iterator[pa.RecordBatch]:
        """End the requests; yield the batches that the other side still sends."""
        with self._sending():
            self._socket.send(Frame.END)
        while (answer := self._answer()) is not None:
            yield answer
        self._release(self._socket)

    def _answer(self) -> pa.RecordBatch | None:
        """Return the next batch of the other side; None at its end."""
        kind, data = self._socket.receive(HEADER_BYTES)
        if kind is Frame.SCHEMA:
            self._socket.read_schema(data)
            kind, data = self._socket.receive(HEADER_BYTES)
        return None if kind is Frame.END else self._socket.read_batch(kind, data)

    def cancel(self) -> None:
        """Break the exchange off, from any thread: a call that waits for the other side fails."""
        self._socket.abort()

    def close(self) -> None:
        """End the exchange."""
        for _ in self.drain():
            pass


def connect(address: str | tuple[str, int], credentials: Credentials, *, identity: str = "") -> Connection:
    """Return a connection to a Unix socket's path, or to a host and port; `identity` is that of the node there."""
    return Connection(address, credentials, identity=identity)


@contextmanager
def near_socket(node: NodeReady) -> Iterator[str]:
    """Yield a path of a node's Unix socket, valid in this ``with`` block; "" if the node is not near.

    It is near if a pid means the same to it as to this process, so that each can open the other's files. The path leads
    through the socket's directory, which must be private to this user, and so is the one that was found private.
    """
    directory = _directory_of(node)
    if directory is None:
        yield ""
        return
    try:
        yield f"/proc/self/fd/{directory}/{Path(node.feed_socket).name}"
    finally:
        os.close(directory)


def _directory_of(node: NodeReady) -> int | None:
    """Return a file descriptor of the directory of a node's Unix socket; None if the node is not near."""
    if not (node.feed_socket and node.place and node.place == place()):
        return None
    socket = Path(node.feed_socket)
    try:
        directory = open_private(socket.parent)
    except OSError:  # it is not here, or not this user's
        return None
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(socket.name, dir_fd=directory, follow_symlinks=False).st_mode):
            return directory
    os.close(directory)
    return None


@contextmanager
def connect_local(node: NodeReady, host: str, credentials: Credentials) -> Iterator[Connection]:
    """Connect to a node for a ``with`` block: to its Unix socket if it is near, otherwise over TCP."""
    with near_socket(node) as socket:
        address = socket or (host, node.feed_port)
        with closing(Connection(address, credentials, identity=node.identity)) as connection:
            yield connection


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch as slices that are small enough for a message.

    Examples
    --------
    >>> import pyarrow as pa
    >>> [piece.num_rows for piece in _split(pa.record_batch({"x": range(5)}))]
    [5]
    """
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
