"""Where a node takes rows: a Unix socket for tasks on its own host, TCP for the others, one cache behind both."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.messages import PartSummary
from tensorflowonspark.node.cache import Cache
from tensorflowonspark.node.setup import NodeSetup

__all__ = ["Receiver"]

_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminating zero, man 7 unix


class Receiver:
    """Listens for parts from its making on, whatever the user's program does meanwhile."""

    def __init__(self, setup: NodeSetup) -> None:
        self.cache = Cache(setup.local_directory, setup.number)
        self.socket = _reachable(Path(setup.feed_socket))
        self._near = transport.Server(self.socket, setup.token, on_put=self._take)
        self._far = transport.Server((setup.host, 0), setup.token, on_put=self._take)

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._far.port)

    def _take(self, header: tuple[int, int, int], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> PartSummary:
        feed, partition, attempt = header
        return self.cache.store(feed, partition, attempt, schema, batches)


def _reachable(socket: Path) -> str:
    """Return a path for a socket that is short enough for one.

    The kernel takes 107 bytes, and Spark's local directories are deeper. On Linux a directory that this process has
    open is reached through ``/proc``, by this user alone, for as long as this process lives.
    """
    if len(os.fsencode(socket)) <= _SOCKET_PATH_BYTES or sys.platform != "linux":
        return str(socket)
    descriptor = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/{os.getpid()}/fd/{descriptor}/{socket.name}"
