"""Client side of a connection: channels, streams and exchanges."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.messages import NodeReady
from tensorflowonspark.processes import open_private, place
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import CERTIFIED_NAME, Credentials
from tensorflowonspark.transport.shared_file import FileRef
from tensorflowonspark.transport.wire import (
    END_MARK,
    HEADER_BYTES,
    MESSAGE_BYTES,
    NODE_HEADER,
    TAKEN,
    TOKEN_HEADER,
    ConnectionLost,
    bearer,
    connection_errors,
    location,
    pack,
    unpack,
)

__all__ = ["Connection", "Exchange", "PutStream", "connect", "connect_local", "is_listening", "near_socket"]

# gRPC pings a silent peer, which detects a host that vanished without closing its connections. The time-out of the
# reply has two names: one for newer versions of gRPC and one for older ones.
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]
_LISTENING_SECONDS = 2.0  # for a host to answer
# Not shared with other clients of this process: their pings would end it, and the same path may lead to another socket.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
_BATCH_BYTES = 64 << 20  # in one message: Arrow sends none above 2 GiB, and the receiver holds one at a time


class PutStream:
    """The sending end of a stream of one partition's batches."""

    def __init__(
        self, client: flight.FlightClient, header: object, schema: pa.Schema, options: flight.FlightCallOptions
    ) -> None:
        descriptor = flight.FlightDescriptor.for_command(pack(header, HEADER_BYTES))
        with connection_errors():
            self._writer, self._answers = client.do_put(descriptor, schema, options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch, split into messages; wait while the receiver is behind."""
        with connection_errors():
            for piece in _split(batch):
                self._writer.write_batch(piece)

    def send_file(self, piece: FileRef) -> bool:
        """Pass a file and wait for the reply; return whether the receiver could open the file."""
        with connection_errors():
            self._writer.write_metadata(pack(piece, HEADER_BYTES))
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        return bool(answer.to_pybytes() == TAKEN)

    def finish(self) -> Any:
        """Send the end mark and wait until all rows are stored; return the receiver's reply."""
        with connection_errors():
            self._writer.write_metadata(END_MARK)
            self._writer.done_writing()
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        with connection_errors():
            result = unpack(answer.to_pybytes(), MESSAGE_BYTES)
            self._writer.close()
            return result

    def _raise_refusal(self) -> NoReturn:
        with connection_errors():
            self._writer.close()  # raises what the receiver raised
        raise ConnectionLost("the receiver ended without a reply")


class Exchange:
    """The client end of an exchange, which sends a batch and receives one.

    Sending and receiving alternate: two ends that both wrote without reading would wait for each other for ever.
    """

    def __init__(
        self, client: flight.FlightClient, header: object, schema: pa.Schema, options: flight.FlightCallOptions
    ) -> None:
        descriptor = flight.FlightDescriptor.for_command(pack(header, HEADER_BYTES))
        with connection_errors():
            self._writer, self._reader = client.do_exchange(descriptor, options)
            try:
                self._writer.begin(schema)
            except BaseException:
                self._end()
                raise

    def _end(self) -> None:
        """Finish a call that has failed: Arrow would do so with its last reference, and warn on standard error."""
        with suppress(pa.ArrowException, OSError):
            self._writer.close()

    def request(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send a batch, split into messages; yield the reply to each."""
        for piece in _split(batch):
            with connection_errors():
                self._writer.write_batch(piece)
                try:
                    answer = self._reader.read_chunk().data
                except StopIteration:
                    raise ConnectionLost("the other side ended without a reply") from None
            yield answer

    def drain(self) -> Iterator[pa.RecordBatch]:
        """End the requests; yield the batches that the other side still sends."""
        try:
            with connection_errors():
                self._writer.done_writing()
            while True:
                with connection_errors():
                    try:
                        answer = self._reader.read_chunk().data
                    except StopIteration:
                        break
                yield answer
        except Exception:
            self._end()
            raise
        with connection_errors():
            self._writer.close()

    def cancel(self) -> None:
        """Break the exchange off, from any thread: a call that waits for the other side fails."""
        self._reader.cancel()

    def close(self) -> None:
        """End the exchange."""
        with connection_errors():
            try:
                self._writer.done_writing()
            except BaseException:
                self._end()
                raise
            self._writer.close()


class Connection:
    """A connection to a server, which is established by the first call.

    Parameters
    ----------
    address : str or (str, int)
        A Unix socket's path, or a host and port.
    credentials : Credentials
        The cluster's.
    keepalive : bool
        Whether a host is detected that vanishes. A server ends the connection of a client that sends these pings while
        a call of it waits for minutes ("too_many_pings").
    identity : str
        The node that all calls are for; another one refuses them.

    Attributes
    ----------
    is_local : bool
        Whether it leads to a Unix socket.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        credentials: Credentials,
        *,
        keepalive: bool = True,
        identity: str = "",
    ) -> None:
        self.is_local = isinstance(address, str)
        options = _KEEPALIVE if keepalive else []
        if self.is_local or not keepalive:
            options = [*options, *_OWN_CONNECTION]
        self._options = flight.FlightCallOptions(
            headers=[(TOKEN_HEADER.encode(), bearer(credentials.token)), (NODE_HEADER.encode(), identity.encode())]
        )
        own = credentials.certificate.encode()
        if own and not isinstance(address, str):
            self._client = flight.FlightClient(
                location(address, tls=True),
                tls_root_certs=own,
                cert_chain=own,
                private_key=credentials.key.encode(),
                override_hostname=CERTIFIED_NAME,
                generic_options=options,
            )
        else:
            self._client = flight.FlightClient(location(address), generic_options=options)

    def channel(self) -> Channel:
        """Open a channel."""
        with connection_errors():
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(b""), self._options)
        return Channel(reader, writer, writer.done_writing, writer.close)

    def put(self, header: object, schema: pa.Schema) -> PutStream:
        """Open a stream for one partition."""
        return PutStream(self._client, header, schema, self._options)

    def exchange(self, header: object, schema: pa.Schema) -> Exchange:
        """Open an exchange for batches of a schema."""
        return Exchange(self._client, header, schema, self._options)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def connect(
    address: str | tuple[str, int], credentials: Credentials, *, keepalive: bool = True, identity: str = ""
) -> Connection:
    """Return a connection to a Unix socket's path, or to a host and port; `identity` is that of the node there."""
    return Connection(address, credentials, keepalive=keepalive, identity=identity)


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
    >>> [piece.num_rows for piece in _split(pa.record_batch({"x": range(5)}))]
    [5]
    """
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def is_listening(address: str) -> bool:
    """Return whether a process listens at an address, as in ``"host:port"``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENING_SECONDS).close()
    except OSError:
        return False
    return True
