"""Wire format shared by both ends of a connection: addresses, messages and their bounds, errors."""

import pickle
import re
from typing import Any

import pyarrow as pa

__all__ = [
    "END_MARK",
    "HEADER_BYTES",
    "MESSAGE_BYTES",
    "NOT_REACHED",
    "TAKEN",
    "TOKEN_HEADER",
    "ConnectionLost",
    "bearer",
    "connection_errors",
    "location",
    "packed",
    "told",
    "unpacked",
]

END_MARK = b"end of partition"
TAKEN, NOT_REACHED = b"taken", b"not reached"  # a file that was handed over
TOKEN_HEADER = "authorization"  # noqa: S105 - a header's name
# Of a message on a channel: the largest is what a user's program returned, as a trained model with its weights. Each
# process on its way to the driver holds it, and gRPC takes none above 2 GiB.
MESSAGE_BYTES = 1 << 30
HEADER_BYTES = 16 << 20  # of what is said before rows are sent: the largest is a schema of many thousand columns


class ConnectionLost(ConnectionError):
    """The peer is gone, or refused."""


class connection_errors:  # noqa: N801 - reads as a function where it is used
    """Turn Flight's errors into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError)) and not isinstance(error, ConnectionLost):
            raise ConnectionLost(told(error)) from error


def packed(message: object, limit: int) -> bytes:
    """Return a message as it is sent.

    Raises
    ------
    ValueError
        If it is larger than the other side would take.
    """
    data = pickle.dumps(message)
    if len(data) > limit:
        raise ValueError(_too_large(type(message).__name__, len(data), limit))
    return data


def unpacked(data: Any, limit: int) -> Any:
    """Return the message that came as these bytes, from a peer that has shown the token.

    Raises
    ------
    ConnectionLost
        If they are none, or too many.
    """
    if data is None or len(data) > limit:
        raise ConnectionLost(_too_large("what the other side sent", 0 if data is None else len(data), limit))
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling raises whatever the bytes make it do
        raise ConnectionLost(
            f"the other side sent {len(data)} bytes that are no message ({type(error).__name__}): both must run the "
            "same version of tensorflowonspark"
        ) from error


def _too_large(what: str, size: int, limit: int) -> str:
    return f"{what} has {size} bytes, and a message has between 1 and {limit}"


def told(error: BaseException) -> str:
    """Return what the other side said, without the two libraries' own accounts of how it got here."""
    return re.split(r"\.? (?:Detail|gRPC client debug context):", str(error), maxsplit=1)[0].strip()


def bearer(token: str) -> bytes:
    """Return the value of the header that shows a token."""
    return f"Bearer {token}".encode()


def location(address: str | tuple[str, int], *, tls: bool = False) -> str:
    """Return what Flight calls a Unix socket's path, or a host and port."""
    if isinstance(address, str):
        return f"grpc+unix://{address}"
    host, port = address
    scheme = "grpc+tls" if tls else "grpc+tcp"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
