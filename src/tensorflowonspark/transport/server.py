"""The end that is called: nothing is read from a peer before it has shown the token."""

import hmac
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.handover import Piece, open_piece
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.common import (
    END_MARK,
    NOT_REACHED,
    TAKEN,
    TOKEN_HEADER,
    ConnectionLost,
    location,
)

__all__ = ["ChannelHandler", "DialogueHandler", "Mapped", "PutHandler", "Server"]

_CLOSING_SECONDS = 2.0

PutHandler = Callable[[Any, pa.Schema, Iterator["pa.RecordBatch | Mapped"]], Any]
DialogueHandler = Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ChannelHandler = Callable[["Channel"], None]


@dataclass(frozen=True)
class Mapped:
    """Batches that were handed over in a file."""

    batches: list[pa.RecordBatch]
    size: int  # of the file


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
        super().__init__(location(address), middleware={"token": _TokenCheck(token)})
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
        shown = headers.get(TOKEN_HEADER, [""])[0].encode()
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
            if word == END_MARK:
                return
            piece: Piece = pickle.loads(word)
            try:
                mapped = [Mapped(open_piece(piece), piece.size)]
            except OSError:
                writer.write(NOT_REACHED)
                continue
            yield mapped.pop()  # and keep no hold of it here: it may be let go while the next is waited for
            writer.write(TAKEN)  # the receiver has put it where it belongs, and the sender may go on
