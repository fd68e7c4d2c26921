"""A two-way stream of messages, whose end tells either side that the other is gone."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tensorflowonspark.transport.wire import MESSAGE_BYTES, ConnectionLost, packed, told, unpacked

__all__ = ["Channel", "Packed"]


class Packed:
    """A message to many, which is pickled once and not for each: that all know of all takes the most time then.

    Parameters
    ----------
    message : object
        The message.
    """

    def __init__(self, message: object) -> None:
        self.data = packed(message, MESSAGE_BYTES)


class Channel:
    """One end of a two-way stream of messages.

    ``send`` may be called from any thread, ``receive`` from one.
    """

    def __init__(
        self, reader: Any, writer: Any, hang_up: Callable[[], None], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._hang_up = hang_up
        self._finish = finish
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send one message, or what is in a `Packed`.

        Raises
        ------
        ConnectionLost
            If the channel is closed, on whichever side.
        ValueError
            If the message is too large for one.
        """
        data = message.data if isinstance(message, Packed) else packed(message, MESSAGE_BYTES)
        with self._lock:
            # Writing to a stream whose call has ended crashes the process: hence the lock and the check.
            if self._writer is None:
                raise ConnectionLost("the channel is closed")
            try:
                self._writer.write_metadata(data)
            except (pa.ArrowException, OSError) as error:
                raise ConnectionLost(told(error)) from error

    def receive(self) -> Any:
        """Return the next message; wait for it if need be.

        Raises
        ------
        ConnectionLost
            If the other side closed the channel, is gone, or sent what is no message.
        """
        try:
            data = self._reader.read_chunk().app_metadata
        except StopIteration:
            self._end()
            raise ConnectionLost("the other side closed the channel") from None
        except (pa.ArrowException, OSError) as error:
            self._end()
            raise ConnectionLost(told(error)) from error
        return unpacked(data, MESSAGE_BYTES)

    def _end(self) -> None:
        """Finish a call that has ended: Arrow does so with the last reference, and then warns on standard error."""
        with self._lock, suppress(pa.ArrowException, OSError):
            self._writer = None
            self._finish()

    def close(self) -> None:
        """Say that no more will be sent; the other side's ``receive`` ends."""
        with self._lock:
            if self._writer is not None:
                self._writer = None
                self._hang_up()
