"""Where a node takes rows: a Unix socket for tasks on its own host, TCP for the others, one cache behind both."""

from collections.abc import Iterator

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.messages import PartSummary
from tensorflowonspark.node.cache import Cache
from tensorflowonspark.node.setup import NodeSetup

__all__ = ["Receiver"]


class Receiver:
    """Listens for parts from its making on, whatever the user's program does meanwhile."""

    def __init__(self, setup: NodeSetup) -> None:
        self.cache = Cache(setup.data_directory, setup.number)
        self._near = transport.Server(setup.feed_socket, setup.token, on_put=self._take)
        self._far = transport.Server((setup.host, 0), setup.token, on_put=self._take)

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._far.port)

    def _take(
        self, header: tuple[int, int, int], schema: pa.Schema, batches: Iterator[pa.RecordBatch]
    ) -> PartSummary:
        feed, partition, attempt = header
        return self.cache.store(feed, partition, attempt, schema, batches)
