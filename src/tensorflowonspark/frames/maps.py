"""A function's results as columns of a DataFrame; nothing is computed before Spark asks for rows."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.columns import arrow_type, map_in_arrow, select, to_batch
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.analysis import Field
from tensorflowonspark.frames.functions import BlockFunction, Form, read
from tensorflowonspark.ml.distribution import distribute, loaded
from tensorflowonspark.ml.predict import PredictPlan, TakenColumns, features_of, this_partition, with_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["map_blocks", "map_rows", "taken_by"]

_WHOLE = 1 << 40  # rows: a block is what Spark sends at a time


def map_blocks(
    function: Any,
    frame: "DataFrame",
    *,
    trim: bool = False,
    feed_dict: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    schema: "str | StructType | None" = None,
) -> "DataFrame":
    """Return a DataFrame with what a function makes of blocks of rows, as further columns.

    Parameters
    ----------
    function : tf.function, concrete function, Keras model or callable
        Takes an array of shape ``(rows, ...)`` for each column, by parameters that are named like them, and returns a
        dict of arrays by column (or one array, whose column has the function's name). How many rows a block has is
        Spark's choice (``spark.sql.execution.arrow.maxRecordsPerBatch`` at the most).
    frame : DataFrame
        The rows.
    trim : bool
        Whether only the results are kept; then a block may give any number of rows.
    feed_dict : mapping, optional
        Columns by parameter, for parameters that are not named like theirs.
    fill : mapping, optional
        What stands for a null, by column; where there is nothing, a null is an error.
    schema : str or StructType, optional
        What a plain function gives, as in ``"y array<float>"``; by itself it is tried on two rows of ones.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> df = spark.createDataFrame([(1.0,), (2.0,)], "x double")
    >>> map_blocks(lambda x: {"y": x + 3}, df).show()
    +---+---+
    |  x|  y|
    +---+---+
    |1.0|4.0|
    |2.0|5.0|
    +---+---+
    <BLANKLINE>
    >>> map_blocks(lambda x: {"most": np.max(x, keepdims=True)}, df.coalesce(1), trim=True).collect()
    [Row(most=2.0)]
    """
    block = read(function, frame, Form.BLOCKS, feed_dict, schema)
    taken = taken_by(block.fields, fill)
    return _trimmed(block, taken, frame) if trim else _beside(block, taken, frame)


def map_rows(
    function: Any,
    frame: "DataFrame",
    *,
    feed_dict: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    schema: "str | StructType | None" = None,
) -> "DataFrame":
    """Return a DataFrame with what a function makes of each row, as further columns.

    The rows' arrays may differ in length, those that come in as those that go out. A `tf.function` gets many rows at a
    time where the lengths are known and the same (see `analyze`), as by `tf.vectorized_map`.

    Parameters
    ----------
    function : tf.function, concrete function, Keras model or callable
        Takes one row's values by parameters that are named like their columns, and returns a dict of one row's results
        by column (or one result, whose column has the function's name).
    frame, feed_dict, fill, schema
        As for `map_blocks`.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0],), ([3.0],)], "x array<double>")
    >>> map_rows(lambda x: {"total": x.sum(), "twice": 2 * x}, df).show()
    +----------+-----+----------+
    |         x|total|     twice|
    +----------+-----+----------+
    |[1.0, 2.0]|  3.0|[2.0, 4.0]|
    |     [3.0]|  3.0|     [6.0]|
    +----------+-----+----------+
    <BLANKLINE>
    """
    block = read(function, frame, Form.ROWS, feed_dict, schema)
    return _beside(block, taken_by(block.fields, fill, by_row=True), frame)


def _beside(block: BlockFunction, taken: TakenColumns, frame: "DataFrame") -> "DataFrame":
    double = [name for name, _ in block.types if name in frame.columns]
    if double:
        raise SpecError(
            f"the function gives a column {double[0]!r}, which the DataFrame has already: give the result another name"
        )
    return with_results(_plan(block, taken, frame), frame)


def _trimmed(block: BlockFunction, taken: TakenColumns, frame: "DataFrame") -> "DataFrame":
    from pyspark.sql.types import StructField, StructType

    plan = _plan(block, taken, frame)
    results = StructType([StructField(name, type_) for name, type_ in block.types])
    return map_in_arrow(select(frame, plan.taken.columns), partial(_only_results, plan), results)


def _plan(block: BlockFunction, taken: TakenColumns, frame: "DataFrame") -> PredictPlan:
    return PredictPlan(distribute(frame.sparkSession, block.artefact), taken, (), block.types, _WHOLE)


def taken_by(fields: Mapping[str, Field], fill: Mapping[str, Any] | None, *, by_row: bool = False) -> TakenColumns:
    """Return what a function is given; only one of rows takes arrays that differ in length."""
    shapes = {
        field.name: (None,) * field.varying + field.shape[field.varying :]
        for field in fields.values()
        if field.shape and (field.is_fixed or by_row)
    }
    parameters = {name: field.name for name, field in fields.items()}
    return TakenColumns(tuple(dict.fromkeys(parameters.values())), {"shapes": shapes, "fill": fill or {}}, parameters)


def _only_results(plan: PredictPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what the function makes of each block (runs in Spark's Python workers)."""
    schema = pa.schema([(name, arrow_type(type_)) for name, type_ in plan.types])
    function, row = loaded(plan.model), 0
    for batch in batches:
        if batch.num_rows:
            results = function(features_of(plan.taken, batch, this_partition(), row))
            yield to_batch(results, schema, len(next(iter(results.values()))))
        row += batch.num_rows
