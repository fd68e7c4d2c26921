"""Rows of an RDD on their way to the nodes, as the pickled batches that Spark holds them in.

Spark keeps the elements of a Python RDD as pickled lists, and unpickles them only for a function of Python's. What
sends rows to a node wants nothing of them: it is given the lists as bytes, and the node that takes the rows unpickles
them, once. To the rest of the project such an RDD is a DataFrame with one binary column, a list of rows in each row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.driver.feed.batch_rdd import BatchRDD

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["from_pickles", "in_batches", "pickled_batches", "to_pickles"]

# Of one Arrow batch; a node tells the driver of each one that its program has taken.
_BATCH_BYTES, _BATCH_LISTS = 1 << 20, 16


def pickled_batches(rdd: "RDD[Any]", queue: str) -> BatchRDD:
    """Return an RDD as batches of pickled lists of rows, in one column with the name of the nodes' queue."""
    return BatchRDD(to_pickles(rdd), partial(in_batches, queue=queue), "lists of rows", "ctx.get_data_feed")


def to_pickles(rdd: "RDD[Any]") -> "RDD[bytes]":
    """Return an RDD of the pickled lists that an RDD consists of."""
    from pyspark import RDD
    from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer, NoOpSerializer

    held = rdd._jrdd_deserializer
    if type(held) not in (AutoBatchedSerializer, BatchedSerializer) or type(held.serializer) is not CPickleSerializer:
        rdd = rdd._reserialize(AutoBatchedSerializer(CPickleSerializer()))  # text as from sc.textFile, pairs of zip
    return RDD(rdd._jrdd, rdd.ctx, NoOpSerializer())


def from_pickles(pickles: "RDD[bytes]", function: Callable[[Iterator[bytes]], Iterator[bytes]]) -> "RDD[Any]":
    """Return the RDD of the elements whose pickled lists a function makes of each partition's."""
    from pyspark import RDD
    from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer, NoOpSerializer

    made: Any = pickles.mapPartitions(function)
    made._jrdd_deserializer = NoOpSerializer()
    return RDD(made._jrdd, made.ctx, AutoBatchedSerializer(CPickleSerializer()))


def in_batches(pickles: Iterator[bytes], queue: str) -> Iterator[pa.RecordBatch]:
    """Yield pickled lists as Arrow batches, some in each."""
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
