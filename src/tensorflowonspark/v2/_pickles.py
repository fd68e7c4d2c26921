"""Rows of an RDD on their way to the nodes, as the pickled batches that Spark holds them in.

Spark keeps the elements of a Python RDD as pickled lists, and unpickles them only for a function of Python's. What
sends rows to a node wants nothing of them: it is given the lists as bytes, and the node that takes the rows unpickles
them, once. To the rest of the project such an RDD is a DataFrame with one binary column, a list of rows in each row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["PickledRows", "from_pickles", "in_batches", "to_pickles"]

# Of one Arrow batch; a node tells the driver of each one that its program has taken.
_BATCH_BYTES, _BATCH_LISTS = 1 << 20, 16

Arrow = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class PickledRows:
    """What `Cluster.train` needs of a DataFrame, made of an RDD.

    Parameters
    ----------
    rdd : pyspark.RDD
        Of any Python objects.
    queue : str
        The column's name: the queue of the nodes that the rows go to.
    """

    isStreaming = False
    apart = True  # programs of 2.x take rows as they like, and no steps together

    def __init__(self, rdd: "RDD[Any]", queue: str) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        self._pickles = to_pickles(rdd)
        self._queue = queue
        self.schema = StructType([StructField(queue, BinaryType())])
        self.columns = [queue]

    def mapInArrow(self, function: Arrow, _schema: str) -> "RDD[Any]":
        """Return the rows of what a function makes of each partition."""
        return self._pickles.mapPartitions(partial(_rows_of, function, self._queue))


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


def _rows_of(function: Arrow, queue: str, pickles: Iterator[bytes]) -> Iterator[Any]:
    """Run in a Spark task: what DataFrame.mapInArrow and collect do."""
    from pyspark.sql import Row

    for batch in function(in_batches(pickles, queue)):
        yield from (Row(**values) for values in batch.to_pylist())
