"""DataFrames in other partitions, which have the same rows in the same order whenever Spark computes them."""

from typing import TYPE_CHECKING

import numpy as np

from tensorflowonspark.columns import plainly_named, spark_hash, split_column, unused_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNKNOWN_SLOTS = 4  # for each worker
_TRIED = 100  # numbers for each partition, to which one of them goes


def spread(frame: "DataFrame", workers: int) -> "DataFrame":
    """Return the rows in partitions each of which has a share of the rows of every partition before.

    Each worker gets as many partitions.
    """
    context = getattr(frame.sparkSession, "sparkContext", None)  # over Spark Connect there is none
    tasks: int = _UNKNOWN_SLOTS * workers if context is None else context.defaultParallelism
    return repartitioned(frame, -(-max(tasks, workers) // workers) * workers)


def repartitioned(frame: "DataFrame", partitions: int) -> "DataFrame":
    """Return the rows in so many partitions, whenever Spark computes them in the same ones and in the same order.

    Spark sorts the rows of each partition by a hash of their values and deals them out in turn. So a task that it runs
    again deals them out as before: no row is lost or doubled, as with a column of random numbers it could be, whose
    values follow from the order of the rows. What a partition gets from several hosts it gets in the order in which
    they answer, so it is sorted as well: by a hash, or if it is the only one, by the rows' places in the DataFrame.
    That costs about 0.2 µs for a row.
    """
    from pyspark.sql import functions as f

    if partitions == 1:
        place = new_column(frame, "place")
        placed = frame.withColumn(place, f.monotonically_increasing_id())
        return placed.repartition(1).sortWithinPartitions(place).drop(place)
    plain, columns = plainly_named(frame)
    return plain.repartition(partitions).sortWithinPartitions(f.xxhash64(*plain.columns)).select(*columns)


def round_robin(frame: "DataFrame", tasks: int, marks: str = "") -> "DataFrame":
    """Return the rows in as many partitions as there are tasks, so that each row's place says in which one it is.

    Spark sorts the rows of each partition by a hash of their values. A row's place in that order is the same whenever
    Spark computes it, and with any number of tasks, to which the rows are dealt in turn. Each task has its rows in the
    order of a hash of their places (`columns/places.py`). Two more columns, the last ones, have the place of each row,
    and the hash of its values.

    A boolean column `marks` marks rows of another split: places count the rows without a mark first.
    """
    from pyspark.sql import functions as f

    plain, columns = plainly_named(frame)
    hashed, place = new_column(plain, "hash"), new_column(plain, "place")
    turn = new_column(plain, "turn")
    order = [hashed] if not marks else [plain.columns[frame.columns.index(marks)], hashed]
    # The first row of each partition goes to another task.
    partition, number = split_column(place)
    first = f.xxhash64(partition) % tasks
    targets = f.array(*map(f.lit, _targets(tasks))).cast("array<bigint>")
    placed = (
        plain.withColumn(hashed, f.xxhash64(*plain.columns))
        .sortWithinPartitions(*order)
        .withColumn(place, f.monotonically_increasing_id())
        .withColumn(turn, f.element_at(targets, (f.pmod(first + number, f.lit(tasks)) + 1).cast("int")))
    )
    parted = placed.repartition(tasks, turn).sortWithinPartitions(f.hash(place), place)
    return parted.select(*columns, place, hashed)


def _targets(partitions: int) -> list[int]:
    """Return a number for each partition that Spark's hash partitioning sends to it."""
    numbers = np.arange(partitions * _TRIED)
    found = dict(zip((spark_hash(numbers) % partitions).tolist(), numbers.tolist(), strict=True))
    return [found[each] for each in range(partitions)]


def new_column(frame: "DataFrame", name: str) -> str:
    """Return the name of a column that a DataFrame does not have: the given one, or that with underscores."""
    return unused_name(frame.columns, name)
