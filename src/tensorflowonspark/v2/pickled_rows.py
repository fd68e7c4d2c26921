"""Rows of RDDs on their path to the nodes and back, as pickled lists.

Spark holds the elements of a Python RDD as pickled lists and unpickles them only for Python functions. The tasks that
send rows to a node do not need the elements: they send the lists as bytes, and only the node unpickles them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.task.feeder import choose, connect_to, node_lost_error
from tensorflowonspark.v2.inlet import RowsHeader

if TYPE_CHECKING:
    from pyspark import RDD

_BATCH_BYTES, _BATCH_LISTS = 1 << 20, 16  # at most; a node reports each batch that its program has taken


def pickled_batches(rdd: "RDD[Any]", queue: str) -> BatchRDD:
    """Return an RDD as batches of pickled lists of rows, in one column with the name of the nodes' queue."""
    return BatchRDD(_to_pickles(rdd), partial(in_batches, queue=queue), "lists of rows", "ctx.get_data_feed")


def infer(
    rdd: "RDD[Any]", targets: tuple[NodeEndpoint, ...], credentials: transport.Credentials, queue: str, timeout: float
) -> "RDD[Any]":
    """Return the RDD of the results that the nodes give for an RDD's rows; Spark computes it lazily.

    Parameters
    ----------
    rdd : RDD
        The rows.
    targets : tuple of NodeEndpoint
        The nodes.
    credentials : Credentials
        The cluster's.
    queue : str
        The nodes' queue.
    timeout : float
        Seconds without progress after which a partition fails.
    """
    return _from_pickles(_to_pickles(rdd), partial(_infer_partition, targets, credentials, queue, timeout))


def _infer_partition(
    targets: tuple[NodeEndpoint, ...],
    credentials: transport.Credentials,
    queue: str,
    timeout: float,
    pickles: Iterator[bytes],
) -> Iterator[bytes]:
    """Run in a Spark task: send a partition's rows to a node and yield its results."""
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
        action = f"partition {partition}: {target.name} on {target.host} did not answer"
        note = "results can be computed only until cluster.shutdown"
        raise node_lost_error(target, credentials, f"{action} ({note})", error) from error


def _to_pickles(rdd: "RDD[Any]") -> "RDD[bytes]":
    """Return an RDD of the pickled lists that hold an RDD's elements."""
    from pyspark import RDD
    from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer, NoOpSerializer

    held = rdd._jrdd_deserializer
    if type(held) not in (AutoBatchedSerializer, BatchedSerializer) or type(held.serializer) is not CPickleSerializer:
        rdd = rdd._reserialize(AutoBatchedSerializer(CPickleSerializer()))  # as text of sc.textFile and pairs of zip
    return RDD(rdd._jrdd, rdd.ctx, NoOpSerializer())


def _from_pickles(pickles: "RDD[bytes]", function: Callable[[Iterator[bytes]], Iterator[bytes]]) -> "RDD[Any]":
    """Return the RDD of the elements in the pickled lists that a function yields for each partition."""
    from pyspark import RDD
    from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer, NoOpSerializer

    results: Any = pickles.mapPartitions(function)
    results._jrdd_deserializer = NoOpSerializer()
    return RDD(results._jrdd, results.ctx, AutoBatchedSerializer(CPickleSerializer()))


def in_batches(pickles: Iterator[bytes], queue: str) -> Iterator[pa.RecordBatch]:
    """Yield pickled lists as Arrow batches of one column, which is named after the queue."""
    held: list[bytes] = []
    size = 0
    for each in pickles:
        held.append(each)
        size += len(each)
        if size >= _BATCH_BYTES or len(held) >= _BATCH_LISTS:
            yield pa.RecordBatch.from_pydict({queue: pa.array(held, pa.binary())})
            held, size = [], 0
    if held:
        yield pa.RecordBatch.from_pydict({queue: pa.array(held, pa.binary())})
