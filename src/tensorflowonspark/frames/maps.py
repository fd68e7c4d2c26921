"""Maps: a function's results as columns of a DataFrame, computed lazily by Spark."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow, select, to_batch
from tensorflowonspark.declarations import takes
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.block_plans import MapOptions, read
from tensorflowonspark.frames.python_functions import Form
from tensorflowonspark.ml.distribution import loaded
from tensorflowonspark.ml.features import features_of
from tensorflowonspark.ml.predict import PredictPlan, this_partition, with_results
from tensorflowonspark.ml.worker_errors import short_errors
from tensorflowonspark.renamed import takes_old_keywords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import MapKeywords


@takes_old_keywords(frame="data")
@takes(MapOptions)
def map_blocks(
    function: Any,
    data: "DataFrame",
    *,
    trim: bool = False,
    **options: "Unpack[MapKeywords]",
) -> "DataFrame":
    """Return a DataFrame with the results of a function of blocks of rows as new columns.

    Parameters
    ----------
    function : tf.function, concrete function, Keras model or callable
        Takes an array of shape ``(rows, ...)`` for each parameter, which has the name of a column, and returns a dict
        of arrays of shape ``(rows, ...)`` by the names of the new columns, or one array, whose column has the
        function's name. Spark chooses the rows of a block (at most
        ``spark.sql.execution.arrow.maxRecordsPerBatch``).
    data : DataFrame
        The rows.
    trim : bool
        Whether to return only the results; then a block may have any number of results.
    **options
        Those of `MapOptions`.

    Returns
    -------
    DataFrame
        The columns of `data`, unless `trim`, followed by the results.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame, or a result has the name of a column.
    FeedError
        If no array can hold a column's type.

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
    plan = read(function, data, Form.BLOCKS, **options)
    if not trim:
        return _beside(plan, data)
    return map_in_arrow(select(data, plan.taken.columns), partial(_only_results, plan), plan.types)


@takes_old_keywords(frame="data")
@takes(MapOptions)
def map_rows(
    function: Any,
    data: "DataFrame",
    **options: "Unpack[MapKeywords]",
) -> "DataFrame":
    """Return a DataFrame with the results of a function of each row as new columns.

    Arrays may differ in length from row to row, in inputs and results. A `tf.function` is applied to many rows at once,
    as by `tf.vectorized_map`, if all lengths are known and equal (see `analyze`).

    Parameters
    ----------
    function : tf.function, concrete function, Keras model or callable
        Takes one row's value for each parameter, which has the name of a column, and returns a dict of one row's
        results by the names of the new columns, or one result, whose column has the function's name.
    data : DataFrame
        The rows.
    **options
        Those of `MapOptions`.

    Returns
    -------
    DataFrame
        The columns of `data`, followed by the results.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame, or a result has the name of a column.
    FeedError
        If no array can hold a column's type.

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
    return _beside(read(function, data, Form.ROWS, **options), data)


def _beside(plan: PredictPlan, frame: "DataFrame") -> "DataFrame":
    repeated = [name for name in plan.types.names if name in frame.columns]
    if repeated:
        raise SpecError(
            f"the function returns a column {repeated[0]!r}, which the DataFrame has already: give the result another "
            "name"
        )
    return with_results(plan, frame)


@short_errors
def _only_results(plan: PredictPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of each block (runs in Spark's Python workers)."""
    schema, function, row = plan.schema, loaded(plan.model), 0
    for batch in batches:
        if batch.num_rows:
            results = function(features_of(plan.taken, batch, this_partition(), row))
            yield to_batch(results, schema, len(next(iter(results.values()))))
        row += batch.num_rows
