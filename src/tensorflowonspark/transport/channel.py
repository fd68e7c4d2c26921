"""Two-way streams of messages; the end of a stream signals the loss of the other side."""

import pickle
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorflowonspark.messages import READ_BY_SUPERVISORS, ToDriver, ToNode
from tensorflowonspark.transport.framed_socket import Frame, FramedSocket
from tensorflowonspark.transport.pickled import MESSAGE_BYTES, ConnectionLost, pack, unpack

_COMPRESSED_BYTES = 4 << 10  # the least that is worth it


class Packed:
    """A message that is pickled once: for many receivers, or for one behind a process that passes it on.

    It is compressed only where that is asked for, and not if it is small: the list of all nodes goes to each of them,
    so its bytes grow with the square of their number, and much of it repeats itself. A message that is too large is a
    `ValueError`.
    """

    def __init__(self, message: object, *, compressed: bool = False) -> None:
        self.data = pack(message, MESSAGE_BYTES)
        if compressed and len(self.data) >= _COMPRESSED_BYTES:
            self.data = pack(_Compressed(zlib.compress(self.data, level=1)), MESSAGE_BYTES)


@dataclass(frozen=True)
class Sealed:
    """A message in another one, whose receiver passes it on."""

    content: Packed


def seal(message: object) -> object:
    """Return a message between a node and the driver as it is sent to the supervisor, which reads only some."""
    is_read = isinstance(message, READ_BY_SUPERVISORS) or not isinstance(message, (ToDriver, ToNode))
    return message if is_read else Sealed(Packed(message))


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

    The socket carries nothing else from now on.
    """

    def __init__(self, sock: FramedSocket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._closed = False

    def send(self, message: object) -> None:
        """Send a message, or the content of a `Packed`.

        If either side has closed the channel, it raises `ConnectionLost`, and `ValueError` if the message is too large.
        """
        data = message.data if isinstance(message, Packed) else pack(message, MESSAGE_BYTES)
        with self._lock:
            if self._closed:
                raise ConnectionLost("the channel is closed")
            self._socket.send(Frame.MESSAGE, data)

    def receive(self) -> Any:
        """Wait for the next message and return it.

        If the other side has closed the channel, has ended, or sent invalid data, it raises `ConnectionLost`.
        """
        try:
            return unpack(self._socket.expect(Frame.MESSAGE, MESSAGE_BYTES))
        except ConnectionLost:
            with self._lock:
                self._closed = True
            raise

    def arriving(self) -> Iterator[Any]:
        """Yield the messages that come, and None where the next one has not come; nothing waits.

        It raises what `receive` does, after the messages that came before.
        """
        try:
            for frame in self._socket.arriving(MESSAGE_BYTES):
                if frame is not None and frame[0] is not Frame.MESSAGE:
                    raise ConnectionLost(f"the other side sent {frame[0].name} where MESSAGE was expected")
                yield frame and unpack(frame[1])
        except ConnectionLost:
            with self._lock:
                self._closed = True
            raise

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def is_unanswered(self) -> bool:
        """Whether the host of the other side does not answer."""
        return self._socket.is_unanswered

    def close(self) -> None:
        """Close the channel, which ends ``receive`` on the other side."""
        with self._lock:
            self._closed = True
            self._socket.end()
