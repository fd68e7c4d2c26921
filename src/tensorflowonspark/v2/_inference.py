"""Inference by the programs of a cluster of 2.x: tasks send a partition's rows to a node and get its results back."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark import transport
from tensorflowonspark.task.feeder import NodeEndpoint, choose, connect_to, node_lost_error

from ._inlet import RowsHeader
from ._pickles import from_pickles, in_batches, to_pickles

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["answered"]


def answered(
    rdd: "RDD[Any]", targets: tuple[NodeEndpoint, ...], credentials: transport.Credentials, queue: str, timeout: float
) -> "RDD[Any]":
    """Return the RDD of the results, computed when Spark comes to it."""
    return from_pickles(to_pickles(rdd), partial(_partition, targets, credentials, queue, timeout))


def _partition(
    targets: tuple[NodeEndpoint, ...],
    credentials: transport.Credentials,
    queue: str,
    timeout: float,
    pickles: Iterator[bytes],
) -> Iterator[bytes]:
    """Run in a Spark task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    partition = task.partitionId()
    target = choose(targets, partition)
    try:
        with connect_to(target, credentials) as node:
            exchange: transport.Exchange | None = None
            for batch in in_batches(pickles, queue):
                exchange = exchange or node.exchange(RowsHeader(partition, b"", queue, timeout), batch.schema)
                for answer in exchange.request(batch):
                    yield from answer.column(0).to_pylist()
            for answer in exchange.drain() if exchange is not None else ():
                yield from answer.column(0).to_pylist()
    except transport.ConnectionLost as error:
        words = f"partition {partition}: {target.name} on {target.host} did not answer"
        note = "results can be computed only until cluster.shutdown"
        raise node_lost_error(target, credentials, f"{words} ({note})", error) from error
