"""What connections carry: pickled messages with limits of their size, and the error of a lost connection."""

import pickle
from typing import Any, Protocol

# Limit of a message on a channel: the largest is a program's result, such as a trained model with its weights. Each
# process on its path to the driver holds it in memory.
MESSAGE_BYTES = 1 << 30
HEADER_BYTES = 16 << 20  # limit of a header: the largest has a schema of many thousand columns


class ConnectionLost(ConnectionError):
    """The peer has ended, or has refused the call."""


class NoConnection(ConnectionLost):
    """No connection to the peer could be made."""


class Breakable(Protocol):
    """A connection that may be broken off, and the reason."""

    broken: str


class connection_errors:  # noqa: N801 - reads as a function where it is used
    """Convert errors of the system, of TLS and of Arrow to `ConnectionLost`; with the reason of a broken connection."""

    def __init__(self, connection: "Breakable | None" = None) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, OSError) and self._connection is not None and self._connection.broken:
            raise ConnectionLost(self._connection.broken) from error
        if isinstance(error, ConnectionLost) or not isinstance(error, (OSError, ValueError, MemoryError)):
            return
        if isinstance(error, TimeoutError):
            raise ConnectionLost("the other side does not answer") from error
        raise ConnectionLost(f"the connection failed: {getattr(error, 'strerror', None) or error}") from error


def pack(message: object, limit: int) -> bytes:
    """Return the serialized form of a message.

    If it exceeds the limit of the receiver, it raises `ValueError`.
    """
    data = pickle.dumps(message)
    if len(data) > limit:
        raise ValueError(f"{type(message).__name__} has {len(data)} bytes, outside of 1 to {limit}")
    return data


def unpack(data: bytes) -> Any:
    """Return the message in some bytes of a peer that has proved its membership.

    If they are not a message, it raises `ConnectionLost`.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling may raise anything
        raise ConnectionLost(
            f"the other side sent {len(data)} bytes that are not a message ({type(error).__name__}): both must run the "
            "same version of tensorflowonspark"
        ) from error
