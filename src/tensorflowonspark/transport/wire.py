"""Wire format of connections: addresses, messages and their size limits, errors."""

import pickle
import re
from typing import Any

import pyarrow as pa

__all__ = [
    "END_MARK",
    "HEADER_BYTES",
    "MESSAGE_BYTES",
    "NODE_HEADER",
    "NOT_OPENED",
    "TAKEN",
    "TOKEN_HEADER",
    "ConnectionLost",
    "bearer",
    "connection_errors",
    "location",
    "pack",
    "peer_error",
    "unpack",
]

END_MARK = b"end of partition"
TAKEN, NOT_OPENED = b"taken", b"not opened"  # replies to a file
TOKEN_HEADER = "authorization"  # noqa: S105 - a header's name
NODE_HEADER = "tfos-node"  # the identity of the node that a call is for
# Limit of a message on a channel: the largest is a program's result, such as a trained model with its weights. Each
# process on its path to the driver holds it in memory, and gRPC accepts none above 2 GiB.
MESSAGE_BYTES = 1 << 30
HEADER_BYTES = 16 << 20  # limit of a header: the largest has a schema of many thousand columns


class ConnectionLost(ConnectionError):
    """The peer has ended, or has refused the call."""


class connection_errors:  # noqa: N801 - reads as a function where it is used
    """Convert Flight's errors to `ConnectionLost`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError)) and not isinstance(error, ConnectionLost):
            raise ConnectionLost(peer_error(error)) from error


def pack(message: object, limit: int) -> bytes:
    """Return the serialized form of a message.

    Raises
    ------
    ValueError
        If it exceeds the limit of the receiver.
    """
    data = pickle.dumps(message)
    if len(data) > limit:
        raise ValueError(_too_large(type(message).__name__, len(data), limit))
    return data


def unpack(data: Any, limit: int) -> Any:
    """Return the message in some bytes of a peer that has shown the token.

    Raises
    ------
    ConnectionLost
        If they are missing, too many, or not a message.
    """
    if data is None or len(data) > limit:
        raise ConnectionLost(_too_large("a message of the other side", 0 if data is None else len(data), limit))
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling may raise anything
        raise ConnectionLost(
            f"the other side sent {len(data)} bytes that are not a message ({type(error).__name__}): both must run the "
            "same version of tensorflowonspark"
        ) from error


def _too_large(what: str, size: int, limit: int) -> str:
    return f"{what} has {size} bytes, outside of 1 to {limit}"


def peer_error(error: BaseException) -> str:
    """Return the other side's error text, without the details that Flight and gRPC append."""
    return re.split(r"\.? (?:Detail|gRPC client debug context):", str(error), maxsplit=1)[0].strip()


def bearer(token: str) -> bytes:
    """Return the value of the header that carries a token."""
    return f"Bearer {token}".encode()


def location(address: str | tuple[str, int], *, tls: bool = False) -> str:
    """Return the Flight location of a Unix socket's path, or of a host and port."""
    if isinstance(address, str):
        return f"grpc+unix://{address}"
    host, port = address
    scheme = "grpc+tls" if tls else "grpc+tcp"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
