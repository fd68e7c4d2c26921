"""Connections to a server: channels, uploads and dialogues."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import CERTIFIED_NAME, Credentials
from tensorflowonspark.transport.shared_file import FileRef
from tensorflowonspark.transport.wire import (
    END_MARK,
    HEADER_BYTES,
    MESSAGE_BYTES,
    TAKEN,
    TOKEN_HEADER,
    ConnectionLost,
    bearer,
    connection_errors,
    location,
    packed,
    unpacked,
)

__all__ = ["Connection", "Dialogue", "PutStream", "connect", "connect_local"]

# gRPC asks a silent peer for a sign of life: a host that vanished without closing its connections is noticed. How long
# it waits for the answer has two settings, of which newer versions take one and older ones the other.
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]
_PIECE_BYTES = 64 << 20  # of one message: Arrow sends none above 2 GiB, and the receiver holds one at a time


class PutStream:
    """The sending end of one partition's batches."""

    def __init__(self, client: flight.FlightClient, header: object, schema: pa.Schema, token: str) -> None:
        descriptor = flight.FlightDescriptor.for_command(packed(header, HEADER_BYTES))
        with connection_errors():
            self._writer, self._answers = client.do_put(descriptor, schema, _options(token))

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch, in pieces that are small enough for a message; waits when the receiver is behind."""
        with connection_errors():
            for piece in _pieces(batch):
                self._writer.write_batch(piece)

    def hand_over(self, piece: FileRef) -> bool:
        """Hand over a file; return whether the receiver could open it. Waits until it has."""
        with connection_errors():
            self._writer.write_metadata(packed(piece, HEADER_BYTES))
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        return bool(answer.to_pybytes() == TAKEN)

    def finish(self) -> Any:
        """Mark the end, wait until everything was taken, and return the receiver's answer."""
        with connection_errors():
            self._writer.write_metadata(END_MARK)
            self._writer.done_writing()
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        with connection_errors():
            result = unpacked(answer.to_pybytes(), MESSAGE_BYTES)
            self._writer.close()
            return result

    def _raise_refusal(self) -> NoReturn:
        with connection_errors():
            self._writer.close()  # raises what the receiver raised
        raise ConnectionLost("the receiver ended without an answer")


class Dialogue:
    """The asking end of a dialogue: a batch goes out, a batch comes back.

    It takes turns, and never writes before it has read: two ends that both write, each to one that does not read,
    would wait for each other for ever.
    """

    def __init__(self, client: flight.FlightClient, header: object, schema: pa.Schema, token: str) -> None:
        descriptor = flight.FlightDescriptor.for_command(packed(header, HEADER_BYTES))
        with connection_errors():
            self._writer, self._reader = client.do_exchange(descriptor, _options(token))
            self._writer.begin(schema)

    def ask(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send a batch, in pieces that are small enough for a message; yield what comes back for each."""
        for piece in _pieces(batch):
            with connection_errors():
                self._writer.write_batch(piece)
                try:
                    answer = self._reader.read_chunk().data
                except StopIteration:
                    raise ConnectionLost("the other side ended without an answer") from None
            yield answer

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Say that nothing more will be asked; yield what the other side had still to say."""
        with connection_errors():
            self._writer.done_writing()
        while True:
            with connection_errors():
                try:
                    answer = self._reader.read_chunk().data
                except StopIteration:
                    break
            yield answer
        with connection_errors():
            self._writer.close()

    def close(self) -> None:
        """Say that nothing more will be asked."""
        with connection_errors():
            self._writer.done_writing()
            self._writer.close()


class Connection:
    """A connection to a server; it is made by the first call on it."""

    def __init__(self, address: str | tuple[str, int], credentials: Credentials) -> None:
        self._token = credentials.token
        own = credentials.certificate.encode()
        if own and not isinstance(address, str):
            self._client = flight.FlightClient(
                location(address, tls=True),
                tls_root_certs=own,
                cert_chain=own,
                private_key=credentials.key.encode(),
                override_hostname=CERTIFIED_NAME,
                generic_options=_KEEPALIVE,
            )
        else:
            self._client = flight.FlightClient(location(address), generic_options=_KEEPALIVE)

    def channel(self) -> Channel:
        """Open a channel."""
        with connection_errors():
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(b""), _options(self._token))
        return Channel(reader, writer, writer.done_writing, writer.close)

    def put(self, header: object, schema: pa.Schema) -> PutStream:
        """Open a stream for one partition."""
        return PutStream(self._client, header, schema, self._token)

    def dialogue(self, header: object, schema: pa.Schema) -> Dialogue:
        """Open a dialogue about batches of a schema."""
        return Dialogue(self._client, header, schema, self._token)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def connect(address: str | tuple[str, int], credentials: Credentials) -> Connection:
    """Return a connection to a Unix socket's path, or to a host and port."""
    return Connection(address, credentials)


def connect_local(socket: str, host: str, port: int, credentials: Credentials) -> Connection:
    """Return a connection to a node: through its Unix socket if that is on this host, and else over TCP."""
    return Connection(socket if socket and Path(socket).exists() else (host, port), credentials)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that are small enough for a message.

    Examples
    --------
    >>> [piece.num_rows for piece in _pieces(pa.record_batch({"x": range(5)}))]
    [5]
    """
    rows = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _options(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(TOKEN_HEADER.encode(), bearer(token))])
