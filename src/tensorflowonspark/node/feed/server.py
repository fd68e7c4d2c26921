"""The server that receives a node's rows: a Unix socket for tasks on its host, TCP for others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader, PartHeader
from tensorflowonspark.node.driver_link import NodeSetup
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.inference import InferenceServer

__all__ = ["FeedServer"]


class FeedServer:
    """Listens for parts, and for rows to be answered, from its making on, whatever the user's program does meanwhile.

    Parameters
    ----------
    setup : NodeSetup
        Says where.
    tell : callable
        Takes messages to the driver.
    """

    def __init__(self, setup: NodeSetup, tell: Callable[[object], None]) -> None:
        self.cache = Cache(setup.local_directory, setup.number, tell)
        self.answerer: InferenceServer | None = None
        self.socket = transport.short_path(Path(setup.feed_socket))
        self._near = transport.Server(self.socket, setup.credentials, on_put=self._take, on_exchange=self._answer)
        self._far = transport.Server(
            (setup.host, 0),
            setup.credentials,
            directory=setup.local_directory,
            on_put=self._take,
            on_exchange=self._answer,
        )

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._far.port)

    def _take(self, header: PartHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | transport.Mapped]) -> int:
        """Store a part; return its number of rows, by which the sender checks that all have arrived."""
        _require(PartHeader, header)
        return self.cache.store(header, schema, items, report=not header.is_move).rows

    def _answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _require(InferenceHeader, header)
        if self.answerer is None:
            raise FeedError("the program on this node has not said what answers inference: call ctx.serve(function)")
        return self.answerer.answer(header, batches)


def _require(kind: type, header: object) -> None:
    if not isinstance(header, kind):
        raise FeedError(f"a sender must begin with a {kind.__name__}, and this one began with {type(header).__name__}")
