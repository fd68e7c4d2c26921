"""RDDs that are fed without a conversion to a DataFrame."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark import RDD

_Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class BatchRDD:
    """An RDD, and a function that converts its partitions to Arrow record batches.

    `Cluster.train` feeds it in place of a DataFrame. Driver and tasks do not look into the batches, so their columns
    may have any type of Arrow; the program reads them with `Feed.partitions`.

    `to_batches` yields record batches of one schema. Errors name the rows by `unit`, in the plural, and the function by
    which the program reads them, `read_with`.
    """

    rdd: "RDD[Any]"
    to_batches: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]
    unit: str = "rows"
    read_with: str = "feed.partitions"

    def map_in_arrow(self, function: _Function) -> "RDD[Any]":
        """Return the rows of the batches that a function yields for the batches of each partition."""
        return self.rdd.mapPartitions(partial(_rows, function, self.to_batches))


def _rows(
    function: _Function, to_batches: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]], elements: Iterator[Any]
) -> Iterator[Any]:
    """Run in a Spark task: convert the elements, apply the function, and yield its rows."""
    from pyspark.sql import Row

    for batch in function(to_batches(elements)):
        yield from (Row(**values) for values in batch.to_pylist())
