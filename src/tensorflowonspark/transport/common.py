"""What both ends of a connection share: addresses, the token, errors."""

import re
import secrets
from typing import Any

import pyarrow as pa

__all__ = [
    "END_MARK",
    "NOT_REACHED",
    "TAKEN",
    "TOKEN_HEADER",
    "ConnectionLost",
    "connection_errors",
    "location",
    "new_token",
    "told",
]

END_MARK = b"end of partition"
TAKEN, NOT_REACHED = b"taken", b"not reached"  # a file that was handed over
TOKEN_HEADER = "authorization"  # noqa: S105 - a header's name
_TOKEN_BYTES = 32


class ConnectionLost(ConnectionError):
    """The peer is gone, or refused."""


def new_token() -> str:
    """Return a fresh secret for one cluster."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class connection_errors:  # noqa: N801 - reads as a function where it is used
    """Turn Flight's errors into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError)) and not isinstance(error, ConnectionLost):
            raise ConnectionLost(told(error)) from error


def told(error: BaseException) -> str:
    """Return what the other side said, without the two libraries' own accounts of how it got here."""
    return re.split(r"\.? (?:Detail|gRPC client debug context):", str(error), maxsplit=1)[0].strip()


def location(address: str | tuple[str, int]) -> str:
    """Return what Flight calls a Unix socket's path, or a host and port."""
    if isinstance(address, str):
        return f"grpc+unix://{address}"
    host, port = address
    return f"grpc+tcp://[{host}]:{port}" if ":" in host else f"grpc+tcp://{host}:{port}"
