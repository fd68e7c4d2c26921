"""The server of a node, for rows and for copies of other nodes' checkpoints.

It has a Unix socket for processes on its host, and TCP for others.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader, PartHeader
from tensorflowonspark.messages import NodeReady
from tensorflowonspark.node.copy_folder import CopiesWanted, CopyFolder, CopyHeader
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.inference_server import InferenceServer
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.processes import place
from tensorflowonspark.settings import port_range


class FeedServer:
    """Server for the rows of feeds and of inference, which runs beside the user's program.

    `inference` answers the rows of inference, once the program has set it.
    """

    def __init__(self, setup: NodeSetup, send: Callable[[object], None]) -> None:
        self.cache = Cache(setup.local_directory, setup.number, send)
        self._copies = CopyFolder(setup.run_directory)
        self.inference: InferenceServer | None = None
        serve = partial(
            transport.Server,
            credentials=setup.credentials,
            identity=setup.identity,
            on_put=self._store,
            on_exchange=self._answer,
        )
        self._local = serve(transport.short_path(Path(setup.feed_socket)))
        self._remote = serve((setup.host, port_range(setup.config.ports)))
        self.ready = NodeReady(setup.feed_socket, self._remote.port, setup.identity, place())

    def _store(
        self, header: PartHeader | CopyHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | transport.Mapped]
    ) -> int:
        """Store a part; return its number of rows, by which the sender checks that all have arrived."""
        if isinstance(header, CopyHeader):
            return self._copies.receive(header, (each for each in items if isinstance(each, pa.RecordBatch)))
        _require(PartHeader, header)
        return self.cache.store(header, schema, items, report=header.part.giver is None).rows

    def _answer(
        self, header: InferenceHeader | CopiesWanted, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(header, CopiesWanted):
            return self._copies.answer(header)
        _require(InferenceHeader, header)
        if self.inference is None:
            raise FeedError("the program on this node has no function for inference: call ctx.serve(function)")
        return self.inference.answer(header, batches)


def _require(kind: type, header: object) -> None:
    if not isinstance(header, kind):
        raise FeedError(f"expected a {kind.__name__} first, and received a {type(header).__name__}")
