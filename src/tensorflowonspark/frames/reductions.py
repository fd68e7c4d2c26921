"""Many rows to one: of a whole DataFrame, or of each group of one."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import arrow_type, map_in_arrow, plainly_named, select
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.frames.fields import fields_of
from tensorflowonspark.frames.functions import BlockFunction, Form, read
from tensorflowonspark.frames.maps import taken_by
from tensorflowonspark.frames.reducing import Reduction, reduce_group, reduce_partition
from tensorflowonspark.ml.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.types import StructType

__all__ = ["aggregate", "reduce_blocks", "reduce_rows"]


def reduce_blocks(
    function: Any,
    frame: "DataFrame",
    *,
    fill: Mapping[str, Any] | None = None,
    schema: "str | StructType | None" = None,
) -> Any:
    """Return to what a function reduces all rows, some at a time and then the results of that; this reads all rows.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        Takes, for each column ``x``, an array of shape ``(rows, ...)`` as parameter ``x`` or ``x_input``, and returns
        one row's values by the same columns. In what order and how many rows come at a time is not said.
    frame : DataFrame
        The rows.
    fill : mapping, optional
        What stands for a null, by column; where there is nothing, a null is an error.
    schema : str or StructType, optional
        What a plain function gives, as in ``"x array<float>"``; by itself it is tried on two rows of ones.

    Returns
    -------
    numpy.ndarray, numpy scalar or dict
        The values of the one column, or of several by name.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame.
    FeedError
        If there is no row.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "x array<double>")
    >>> reduce_blocks(lambda x: x.sum(axis=0), df).tolist()
    [4.0, 6.0]
    """
    return _reduce(read(function, frame, Form.REDUCED_BLOCKS, schema=schema), frame, fill)


def reduce_rows(
    function: Any,
    frame: "DataFrame",
    *,
    fill: Mapping[str, Any] | None = None,
    schema: "str | StructType | None" = None,
) -> Any:
    """Return to what a function of two rows reduces all rows; this reads all rows.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        Takes each column ``x`` twice, as ``x_1`` and ``x_2``, and returns one row's values by the same columns. It must
        not matter which two come first.
    frame, fill, schema
        As for `reduce_blocks`.

    Returns
    -------
    numpy.ndarray, numpy scalar or dict
        As of `reduce_blocks`.

    Examples
    --------
    >>> int(reduce_rows(lambda id_1, id_2: id_1 + id_2, spark.range(11)))
    55
    """
    return _reduce(read(function, frame, Form.REDUCED_ROWS, schema=schema), frame, fill)


def aggregate(
    function: Any,
    grouped: "GroupedData",
    *,
    fill: Mapping[str, Any] | None = None,
    schema: "str | StructType | None" = None,
) -> "DataFrame":
    """Return a DataFrame with a row for each group: its keys, and to what a function reduces its rows.

    Nothing is computed before Spark asks for rows.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        As for `reduce_blocks`.
    grouped : GroupedData
        What ``df.groupBy`` gives.
    fill, schema
        As for `reduce_blocks`.

    Examples
    --------
    >>> df = spark.createDataFrame([("a", 1.0), ("a", 2.0), ("b", 5.0)], "key string, x double")
    >>> aggregate(lambda x: x.sum(), df.groupBy("key")).orderBy("key").show()
    +---+---+
    |key|  x|
    +---+---+
    |  a|3.0|
    |  b|5.0|
    +---+---+
    <BLANKLINE>
    """
    from pyspark.sql.types import StructField, StructType

    if not hasattr(grouped, "_df"):
        raise SpecError(f"{type(grouped).__name__}: expected groups, as df.groupBy(...) gives them")
    frame = grouped._df
    keys = grouped.count().schema.fields[:-1]
    groups = _groups(grouped, [each.name for each in keys])
    names = list(frame.columns)
    reduction = _reduction(read(function, frame, Form.REDUCED_BLOCKS, schema=schema), frame, fill)
    whole = StructType([*keys, *[StructField(name, type_) for name, type_ in reduction.types]])
    reduce = partial(reduce_group, reduction, pa.schema([(each.name, arrow_type(each.dataType)) for each in keys]))

    def in_arrow(key: Any, table: Any) -> Any:  # Spark looks at how many arguments it has
        return reduce(key, table.rename_columns(names))

    def in_pandas(key: Any, frame: Any) -> Any:  # before Spark 4.0
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return reduce(key, table.rename_columns(names)).to_pandas()

    return (
        groups.applyInArrow(in_arrow, whole)
        if hasattr(groups, "applyInArrow")
        else groups.applyInPandas(in_pandas, whole)
    )


def _groups(grouped: "GroupedData", keys: list[str]) -> "GroupedData":
    """Return the same groups of columns that Spark finds by their names, as it does for a function of groups."""
    frame = grouped._df
    plain, _ = plainly_named(frame)
    if plain is frame:
        return grouped
    made = [name for name in keys if name not in frame.columns]
    if made:
        raise SpecError(
            f"the DataFrame is grouped by {made[0]!r}, which is none of its columns ({frame.columns}): with names that "
            "Spark must quote, make it a column first (df.withColumn)"
        )
    return plain.groupBy(*[plain.columns[frame.columns.index(name)] for name in keys])


def _reduction(block: BlockFunction, frame: "DataFrame", fill: Mapping[str, Any] | None) -> Reduction:
    return Reduction(ship(frame.sparkSession, block.artefact), taken_by(block.fields, fill), block.types)


def _reduce(block: BlockFunction, frame: "DataFrame", fill: Mapping[str, Any] | None) -> Any:
    from pyspark.sql.types import StructField, StructType

    reduction = _reduction(block, frame, fill)
    step = partial(reduce_partition, reduction)
    row = StructType([StructField(name, type_) for name, type_ in block.types])
    partials = map_in_arrow(select(frame, reduction.taken.columns), step, row)
    # A shuffle to one task, and not `coalesce`, which would compute all partitions in it.
    rows = map_in_arrow(partials.repartition(1), step, row).collect()
    if not rows:
        raise FeedError("there is no row to reduce: the DataFrame is empty")
    dtypes = {name: field.dtype for name, field in fields_of(partials, partials.columns).items()}
    values = {
        name: value if dtypes[name] == "string" else np.asarray(value, dtypes[name])[()]
        for name, value in rows[0].asDict().items()
    }
    return values if len(values) > 1 else next(iter(values.values()))
