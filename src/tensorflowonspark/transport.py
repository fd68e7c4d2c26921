"""The connections of a cluster: Arrow Flight with a token. The only file that opens or accepts one.

Three things travel here. A *channel* (Flight's ``DoExchange``) carries pickled messages both ways, for as long as both
ends live: its end is how either side learns that the other is gone. A *stream* (``DoPut``) carries the Arrow batches
of one partition to a node and is answered when all of it has been taken; one that ends without its end mark was
broken off and does not count. On one host the batches need not travel: files that hold them are handed over instead
(`handover`). A *dialogue* (``DoExchange`` with a header) sends batches and gets one back for each.

Nothing is read from a peer before it has shown the cluster's token, so that unpickling is safe.
"""

import hmac
import pickle
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.handover import Piece, open_piece

__all__ = ["Channel", "ConnectionLost", "Dialogue", "Mapped", "PutStream", "Server", "dial", "dial_near", "new_token"]

_END_MARK = b"end of partition"
_TAKEN, _NOT_REACHED = b"taken", b"not reached"
_HEADER = "authorization"
# gRPC asks a silent peer for a sign of life: a host that vanished without closing its connections is noticed.
_KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000)]
_TOKEN_BYTES = 32
_CLOSING_SECONDS = 2.0
_PIECE_BYTES = 64 << 20  # of one message: Arrow sends none above 2 GiB, and the receiver holds one at a time

PutHandler = Callable[[Any, pa.Schema, Iterator["pa.RecordBatch | Mapped"]], Any]
DialogueHandler = Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ChannelHandler = Callable[["Channel"], None]


@dataclass(frozen=True)
class Mapped:
    """Batches that were handed over in a file."""

    batches: list[pa.RecordBatch]
    size: int  # of the file


class ConnectionLost(ConnectionError):
    """The peer is gone, or refused."""


def new_token() -> str:
    """Return a fresh secret for one cluster."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Channel:
    """One end of a two-way stream of messages.

    ``send`` may be called from any thread, ``receive`` from one.
    """

    def __init__(self, reader: Any, writer: Any, hang_up: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._hang_up = hang_up
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send one message.

        Raises
        ------
        ConnectionLost
            If the channel is closed, on whichever side.
        """
        data = pickle.dumps(message)
        with self._lock:
            # Writing to a stream whose call has ended crashes the process: hence the lock and the check.
            if self._writer is None:
                raise ConnectionLost("the channel is closed")
            try:
                self._writer.write_metadata(data)
            except (pa.ArrowException, OSError) as error:
                raise ConnectionLost(_told(error)) from error

    def receive(self) -> Any:
        """Return the next message; wait for it if need be.

        Raises
        ------
        ConnectionLost
            If the other side closed the channel, or is gone.
        """
        try:
            return pickle.loads(self._reader.read_chunk().app_metadata)
        except StopIteration:
            raise ConnectionLost("the other side closed the channel") from None
        except (pa.ArrowException, OSError) as error:
            raise ConnectionLost(_told(error)) from error

    def close(self) -> None:
        """Say that no more will be sent; the other side's ``receive`` ends."""
        with self._lock:
            if self._writer is not None:
                self._writer = None
                self._hang_up()


class PutStream:
    """The sending end of one partition's batches."""

    def __init__(self, client: flight.FlightClient, header: object, schema: pa.Schema, token: str) -> None:
        descriptor = flight.FlightDescriptor.for_command(pickle.dumps(header))
        with _connection_errors():
            self._writer, self._answers = client.do_put(descriptor, schema, _options(token))

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch, in pieces that are small enough for a message; waits when the receiver is behind."""
        with _connection_errors():
            for piece in _pieces(batch):
                self._writer.write_batch(piece)

    def hand_over(self, piece: Piece) -> bool:
        """Hand over a file; return whether the receiver could open it. Waits until it has."""
        with _connection_errors():
            self._writer.write_metadata(pickle.dumps(piece))
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        return bool(answer.to_pybytes() == _TAKEN)

    def finish(self) -> Any:
        """Mark the end, wait until everything was taken, and return the receiver's answer."""
        with _connection_errors():
            self._writer.write_metadata(_END_MARK)
            self._writer.done_writing()
            answer = self._answers.read()
        if answer is None:
            self._raise_refusal()
        with _connection_errors():
            result = pickle.loads(answer)
            self._writer.close()
            return result

    def _raise_refusal(self) -> NoReturn:
        with _connection_errors():
            self._writer.close()  # raises what the receiver raised
        raise ConnectionLost("the receiver ended without an answer")


class Dialogue:
    """The asking end of a dialogue: a batch goes out, a batch comes back.

    It takes turns, and never writes before it has read: two ends that both write, each to one that does not read,
    would wait for each other for ever.
    """

    def __init__(self, client: flight.FlightClient, header: object, schema: pa.Schema, token: str) -> None:
        descriptor = flight.FlightDescriptor.for_command(pickle.dumps(header))
        with _connection_errors():
            self._writer, self._reader = client.do_exchange(descriptor, _options(token))
            self._writer.begin(schema)

    def ask(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send a batch, in pieces that are small enough for a message; yield what comes back for each."""
        for piece in _pieces(batch):
            with _connection_errors():
                self._writer.write_batch(piece)
                try:
                    answer = self._reader.read_chunk().data
                except StopIteration:
                    raise ConnectionLost("the other side ended without an answer") from None
            yield answer

    def close(self) -> None:
        """Say that nothing more will be asked."""
        with _connection_errors():
            self._writer.done_writing()
            self._writer.close()


class Dialled:
    """A connection to a server; it is made by the first call on it."""

    def __init__(self, location: str, token: str) -> None:
        self._client = flight.FlightClient(location, generic_options=_KEEPALIVE)
        self._token = token

    def channel(self) -> Channel:
        """Open a channel."""
        with _connection_errors():
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(b""), _options(self._token))
        return Channel(reader, writer, writer.done_writing)

    def put(self, header: object, schema: pa.Schema) -> PutStream:
        """Open a stream for one partition."""
        return PutStream(self._client, header, schema, self._token)

    def dialogue(self, header: object, schema: pa.Schema) -> Dialogue:
        """Open a dialogue about batches of a schema."""
        return Dialogue(self._client, header, schema, self._token)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def dial(address: str | tuple[str, int], token: str) -> Dialled:
    """Return a connection to a Unix socket's path, or to a host and port."""
    return Dialled(_location(address), token)


def dial_near(socket: str, host: str, port: int, token: str) -> Dialled:
    """Return a connection to a node: through its Unix socket if that is on this host, and else over TCP."""
    return dial(socket if Path(socket).exists() else (host, port), token)


class Server(flight.FlightServerBase):
    """Listens on one address, a Unix socket's path or a host and port, from its making until ``close``.

    Parameters
    ----------
    address : str or (str, int)
        Path, or host and port; port 0 takes a free one.
    token : str
        What a peer must show.
    on_channel : callable, optional
        Called with each new channel, in a thread of its own; the channel ends when it returns.
    on_put : callable, optional
        Called with the header, schema and batches of each stream; what it returns is the answer.
    on_dialogue : callable, optional
        Called with the header and batches of each dialogue; it yields a batch for each.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        token: str,
        *,
        on_channel: ChannelHandler | None = None,
        on_put: PutHandler | None = None,
        on_dialogue: DialogueHandler | None = None,
    ) -> None:
        super().__init__(_location(address), middleware={"token": _TokenCheck(token)})
        self._on_channel = on_channel
        self._on_put = on_put
        self._on_dialogue = on_dialogue

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one channel or dialogue (called by Flight)."""
        if descriptor.command:
            self._converse(pickle.loads(descriptor.command), reader, writer)
            return
        if self._on_channel is None:
            raise flight.FlightUnauthorizedError("this server has no channels")
        channel = Channel(reader, writer, lambda: None)
        try:
            self._on_channel(channel)
        finally:
            channel.close()

    def _converse(self, header: Any, reader: Any, writer: Any) -> None:
        if self._on_dialogue is None:
            raise flight.FlightUnauthorizedError("this server answers nothing")
        begun = False
        for answer in self._on_dialogue(header, (chunk.data for chunk in reader)):
            if not begun:
                writer.begin(answer.schema)
                begun = True
            writer.write_batch(answer)

    def do_put(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take one partition's batches (called by Flight)."""
        if self._on_put is None:
            raise flight.FlightUnauthorizedError("this server takes no rows")
        answer = self._on_put(pickle.loads(descriptor.command), reader.schema, _until_end_mark(reader, writer))
        writer.write(pickle.dumps(answer))

    def close(self) -> None:
        """Stop listening; calls that don't end are given up after two seconds, never waited for."""
        closer = threading.Thread(target=self.shutdown, daemon=True)
        closer.start()
        closer.join(_CLOSING_SECONDS)


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Refuses every call that does not carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> None:
        shown = headers.get(_HEADER, [""])[0].encode()
        if not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("this cluster does not know you")


def _until_end_mark(reader: Any, writer: Any) -> Iterator[pa.RecordBatch | Mapped]:
    """Yield the batches of a stream, and the files that are handed over; raise if it breaks off."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise ConnectionLost("the sender ended before the end of its partition") from None
        if chunk.data is not None:
            yield chunk.data
        elif chunk.app_metadata is not None:
            word = chunk.app_metadata.to_pybytes()
            if word == _END_MARK:
                return
            piece: Piece = pickle.loads(word)
            try:
                mapped = Mapped(open_piece(piece), piece.size)
            except OSError:
                writer.write(_NOT_REACHED)
                continue
            yield mapped
            writer.write(_TAKEN)  # the receiver has put it where it belongs, and the sender may go on


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


class _connection_errors:  # noqa: N801 - reads as a function where it is used
    """Turn Flight's errors into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError)) and not isinstance(error, ConnectionLost):
            raise ConnectionLost(_told(error)) from error


def _told(error: BaseException) -> str:
    """Return what the other side said, without the two libraries' own accounts of how it got here."""
    return re.split(r"\.? (?:Detail|gRPC client debug context):", str(error), maxsplit=1)[0].strip()


def _options(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(_HEADER.encode(), f"Bearer {token}".encode())])


def _location(address: str | tuple[str, int]) -> str:
    if isinstance(address, str):
        return f"grpc+unix://{address}"
    host, port = address
    return f"grpc+tcp://[{host}]:{port}" if ":" in host else f"grpc+tcp://{host}:{port}"
