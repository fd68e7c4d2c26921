"""The task of an inference: sends the rows of its partition to a node, and returns that node's results."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader
from tensorflowonspark.messages import NodeEndpoint, Servers, ServersWanted
from tensorflowonspark.task.feeder import ask_driver, choose, connect_to, find_cause, lost_error, near

_MOST_LOST = 3  # nodes that are lost with the same rows: these may be what ends them
_NOTE = "results can be computed only while the cluster runs, inside its with block; after a restart ask again"


def infer_partition(
    endpoints: tuple[NodeEndpoint, ...],
    credentials: transport.Credentials,
    kept: list[str],
    schema: bytes,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Send the rows of a Spark task to a node; yield its results.

    The endpoints are the nodes that answered when the DataFrame was made; the columns `kept` stand before the results,
    which have the serialized schema. If the rows get no results, since the node's function has failed or no node is
    left, it raises `FeedError`.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    with _Dialogue(endpoints, credentials, InferenceHeader(task.partitionId(), schema)) as dialogue:
        for batch in batches:
            if not batch.num_rows:
                continue
            results = dialogue.request(batch)
            columns = [*(batch.column(name) for name in kept), *results.columns]
            yield pa.RecordBatch.from_arrays(columns, [*kept, *results.schema.names])


class _Dialogue:
    """The rows of one partition and their results; if a node is lost, another one gets the rows that have none yet."""

    def __init__(
        self, endpoints: tuple[NodeEndpoint, ...], credentials: transport.Credentials, header: InferenceHeader
    ) -> None:
        self._endpoints = endpoints
        self._credentials = credentials
        self._header = header
        self._lost: list[NodeEndpoint] = []
        self._answered = 0  # rows
        self._endpoint = endpoints[0]  # that the connection leads to
        self._connection = ExitStack()
        self._exchange: transport.Exchange | None = None

    def __enter__(self) -> "_Dialogue":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._exchange is not None:
            with suppress(transport.ConnectionLost):  # of a node that is lost after it has answered all rows
                self._exchange.close()
        self._connection.close()

    def request(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of a batch."""
        lost = 0
        while True:
            try:
                exchange = self._exchange = self._exchange or self._connect(batch.schema)
                results = pa.Table.from_batches(exchange.request(batch)).combine_chunks().to_batches()[0]
            except transport.ConnectionLost as error:
                lost += 1
                self._move_on(error, last=lost == _MOST_LOST)
                continue
            if results.num_rows != batch.num_rows:
                raise FeedError(
                    f"partition {self._header.partition}: {batch.num_rows} rows went to {self._endpoint.name}, "
                    f"{results.num_rows} came back"
                )
            self._answered += results.num_rows
            return results

    def _connect(self, schema: pa.Schema) -> transport.Exchange:
        """Connect to a node that is near, or else to one of those that the driver knows to answer now."""
        left = [each for each in self._endpoints if each not in self._lost]
        if not near(left):
            driver = self._endpoint.driver
            reply = ask_driver(self._endpoint, self._credentials, ServersWanted())
            if isinstance(reply, Servers) and reply.endpoints:
                self._endpoints = tuple(replace(each, driver=driver) for each in reply.endpoints)
            # A node may be up whose connection has broken: it is asked again if it is the only one.
            left = [each for each in self._endpoints if each not in self._lost] or list(self._endpoints)
        self._endpoint = choose(left, self._header.partition)
        node = self._connection.enter_context(connect_to(self._endpoint, self._credentials))
        return node.exchange(self._header, schema)

    def _move_on(self, error: transport.ConnectionLost, *, last: bool) -> None:
        """Leave the node that is lost; raise why, if the cluster has failed with it or is gone."""
        self._connection.close()
        self._exchange = None
        self._lost.append(self._endpoint)
        cause = find_cause(self._endpoint, self._credentials)
        if cause == "" and not last:
            return
        at = f"{self._endpoint.name} on {self._endpoint.host} did not answer after {self._answered} rows ({_NOTE})"
        raise lost_error(f"partition {self._header.partition}: {at}", cause, error) from error
