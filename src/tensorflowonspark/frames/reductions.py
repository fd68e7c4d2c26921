"""Reductions of the rows of a DataFrame, or of each group, to one row."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import arrow_type, map_in_arrow, plainly_named, select, to_batch
from tensorflowonspark.declarations import takes
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.frames.analysis import fields_of
from tensorflowonspark.frames.block_plans import ReduceOptions, read
from tensorflowonspark.frames.python_functions import Form
from tensorflowonspark.ml.distribution import loaded
from tensorflowonspark.ml.features import features_of
from tensorflowonspark.ml.predict import PredictPlan, this_partition
from tensorflowonspark.ml.worker_errors import short_errors
from tensorflowonspark.renamed import takes_old_keywords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ReduceKeywords

_MAX_PARTIAL_RESULTS = 256  # of a partition, before they are reduced to one: bounds memory, and calls are few


@short_errors
def reduce_partition(plan: PredictPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for a partition, unless it is empty."""
    held: list[Mapping[str, Any]] = []
    row = 0
    for batch in batches:
        if batch.num_rows:
            held.append(_reduced(plan, batch, this_partition(), row))
        if len(held) == _MAX_PARTIAL_RESULTS:
            held = [_again(plan, held)]
        row += batch.num_rows
    if held:
        yield _as_row(_again(plan, held), plan.schema)


@short_errors
def reduce_group(plan: PredictPlan, keys: pa.Schema, key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    """Return one row for a group: its key, followed by the results."""
    values = [each.as_py() if isinstance(each, pa.Scalar) else each for each in key]
    batch = table.select(list(plan.taken.columns)).combine_chunks().to_batches()[0]
    try:
        row = _as_row(_reduced(plan, batch, 0, 0), plan.schema)
    except FeedError as error:
        group = dict(zip(keys.names, values, strict=True))
        raise FeedError(f"in the group {group} (its rows counted from 0, as partition 0): {error}") from error
    own = [pa.array([value], field.type) for value, field in zip(values, keys, strict=True)]
    return pa.Table.from_arrays([*own, *row.columns], [*keys.names, *row.schema.names])


def _reduced(plan: PredictPlan, batch: pa.RecordBatch, partition: int, row: int) -> dict[str, Any]:
    return loaded(plan.model)(features_of(plan.taken, batch, partition, row))


def _again(plan: PredictPlan, held: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(held) == 1:
        return held[0]
    return loaded(plan.model)({name: np.stack([each[name] for each in held]) for name in held[0]})


def _as_row(result: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return to_batch({name: np.asarray(value)[None] for name, value in result.items()}, schema, 1)


@takes_old_keywords(frame="data")
@takes(ReduceOptions)
def reduce_blocks(
    function: Any,
    data: "DataFrame",
    **options: "Unpack[ReduceKeywords]",
) -> Any:
    """Return the reduction of all rows by a function of blocks, which is applied to its own results again.

    This reads all rows.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        Takes, for each column ``x``, an array of shape ``(rows, ...)`` as parameter ``x`` or ``x_input``, and returns
        one row's values by the same names. The order and number of rows in a block are not defined.
    data : DataFrame
        The rows.
    **options
        Those of `ReduceOptions`.

    Returns
    -------
    numpy.ndarray, numpy scalar or dict
        The value of a single column, or the values of several by name, in the columns' dtypes and shapes.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame.
    FeedError
        If the DataFrame is empty, or no array can hold a column's type.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "x array<double>")
    >>> reduce_blocks(lambda x: x.sum(axis=0), df).tolist()
    [4.0, 6.0]
    """
    return _reduce(read(function, data, Form.REDUCED_BLOCKS, **options), data)


@takes_old_keywords(frame="data")
@takes(ReduceOptions)
def reduce_rows(
    function: Any,
    data: "DataFrame",
    **options: "Unpack[ReduceKeywords]",
) -> Any:
    """Return the reduction of all rows by a function of two rows. This reads all rows.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        Takes each column ``x`` of two rows, as ``x_1`` and ``x_2``, and returns one row's values by the names of the
        columns. It must be commutative and associative.
    data : DataFrame
        The rows.
    **options
        Those of `ReduceOptions`.

    Returns
    -------
    numpy.ndarray, numpy scalar or dict
        The value of a single column, or the values of several by name, in the columns' dtypes and shapes.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame.
    FeedError
        If the DataFrame is empty, or no array can hold a column's type.

    Examples
    --------
    >>> int(reduce_rows(lambda id_1, id_2: id_1 + id_2, spark.range(11)))
    55
    """
    return _reduce(read(function, data, Form.REDUCED_ROWS, **options), data)


@takes(ReduceOptions)
def aggregate(
    function: Any,
    grouped: "GroupedData",
    **options: "Unpack[ReduceKeywords]",
) -> "DataFrame":
    """Return a DataFrame with the keys of each group and the reduction of its rows, computed lazily by Spark.

    Parameters
    ----------
    function : tf.function, concrete function or callable
        A function of blocks, as for `reduce_blocks`. It is called once for each group.
    grouped : GroupedData
        The groups, as ``df.groupBy`` returns them.
    **options
        Those of `ReduceOptions`.

    Returns
    -------
    DataFrame
        The columns of the keys, followed by the results.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame, or `grouped` is not a grouped DataFrame.
    FeedError
        If no array can hold a column's type.

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
    from pyspark.sql.types import StructType

    if not hasattr(grouped, "_df"):
        raise SpecError(f"{type(grouped).__name__}: expected groups, as df.groupBy(...) gives them")
    frame = grouped._df
    keys = grouped.count().schema.fields[:-1]
    groups = _groups(grouped, [each.name for each in keys])
    names = list(frame.columns)
    plan = read(function, frame, Form.REDUCED_BLOCKS, **options)
    whole = StructType([*keys, *plan.types.fields])
    reduce = partial(reduce_group, plan, pa.schema([(each.name, arrow_type(each.dataType)) for each in keys]))
    large = frame.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    sent = pa.schema([(each.name, arrow_type(each.dataType, large=large)) for each in whole])

    def in_arrow(key: Any, table: Any) -> Any:  # Spark counts the parameters, and takes no other types
        return reduce(key, table.rename_columns(names)).cast(sent)

    def in_pandas(key: Any, frame: Any) -> Any:  # before Spark 4.0
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return reduce(key, table.rename_columns(names)).to_pandas()

    return (
        groups.applyInArrow(in_arrow, whole)
        if hasattr(groups, "applyInArrow")
        else groups.applyInPandas(in_pandas, whole)
    )


def _groups(grouped: "GroupedData", keys: list[str]) -> "GroupedData":
    """Return the same groups with names that need no quotes, since Spark resolves the names in a function of groups."""
    frame = grouped._df
    plain, _ = plainly_named(frame)
    if plain is frame:
        return grouped
    derived = [name for name in keys if name not in frame.columns]
    if derived:
        raise SpecError(
            f"the DataFrame is grouped by {derived[0]!r}, which is none of its columns ({frame.columns}): with names "
            "that Spark must quote, make it a column first (df.withColumn)"
        )
    return plain.groupBy(*[plain.columns[frame.columns.index(name)] for name in keys])


def _reduce(plan: PredictPlan, frame: "DataFrame") -> Any:
    step = partial(reduce_partition, plan)
    partials = map_in_arrow(select(frame, plan.taken.columns), step, plan.types)
    # A shuffle to one task; `coalesce` would compute all partitions in that task.
    rows = map_in_arrow(partials.repartition(1), step, plan.types).collect()
    if not rows:
        raise FeedError("there is no row to reduce: the DataFrame is empty")
    dtypes = {name: field.dtype for name, field in fields_of(partials, partials.columns).items()}
    values = {
        name: value if dtypes[name] == "string" else np.asarray(value, dtypes[name])[()]
        for name, value in rows[0].asDict().items()
    }
    return values if len(values) > 1 else next(iter(values.values()))
