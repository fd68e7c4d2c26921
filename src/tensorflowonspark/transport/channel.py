"""Two-way streams of messages; the end of a stream signals the loss of the other side."""

import pickle
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tensorflowonspark.transport.wire import MESSAGE_BYTES, ConnectionLost, pack, peer_error, unpack

__all__ = ["Channel", "Packed"]


_COMPRESSED_BYTES = 4 << 10  # the least that is worth it


class Packed:
    """A message to many receivers that is pickled and compressed once.

    The list of all nodes goes to each of them, so its bytes grow with the square of their number; much of it repeats
    itself.

    Parameters
    ----------
    message : object
        The message.
    """

    def __init__(self, message: object) -> None:
        self.data = pack(message, MESSAGE_BYTES)
        if len(self.data) >= _COMPRESSED_BYTES:
            self.data = pack(_Compressed(zlib.compress(self.data, level=1)), MESSAGE_BYTES)


class _Compressed:
    """A message whose pickle is compressed; unpickling this one returns it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _decompress, (self._data,)


def _decompress(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))


class Channel:
    """One end of a two-way stream of messages.

    ``send`` may be called from any thread, ``receive`` from one.
    """

    def __init__(
        self, reader: Any, writer: Any, close_stream: Callable[[], None], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._close_stream = close_stream
        self._finish = finish
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message, or the content of a `Packed`.

        Raises
        ------
        ConnectionLost
            If either side has closed the channel.
        ValueError
            If the message is too large.
        """
        data = message.data if isinstance(message, Packed) else pack(message, MESSAGE_BYTES)
        with self._lock:
            # Writing to a stream whose call has ended crashes the process: hence the lock and the check.
            if self._writer is None:
                raise ConnectionLost("the channel is closed")
            try:
                self._writer.write_metadata(data)
            except (pa.ArrowException, OSError) as error:
                raise ConnectionLost(peer_error(error)) from error

    def receive(self) -> Any:
        """Wait for the next message and return it.

        Raises
        ------
        ConnectionLost
            If the other side has closed the channel, has ended, or sent invalid data.
        """
        try:
            data = self._reader.read_chunk().app_metadata
        except StopIteration:
            self._end()
            raise ConnectionLost("the other side closed the channel") from None
        except (pa.ArrowException, OSError) as error:
            self._end()
            raise ConnectionLost(peer_error(error)) from error
        return unpack(data, MESSAGE_BYTES)

    def _end(self) -> None:
        """Finish a call that has ended: Arrow would do so with its last reference, and warn on standard error."""
        with self._lock, suppress(pa.ArrowException, OSError):
            self._writer = None
            self._finish()

    def close(self) -> None:
        """Close the channel, which ends ``receive`` on the other side."""
        with self._lock:
            if self._writer is not None:
                self._writer = None
                self._close_stream()
