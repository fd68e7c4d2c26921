"""Prediction: a model applied to the rows of a DataFrame, in Spark's Python workers.

Feature columns become NumPy views of Arrow memory; the model takes some hundreds of rows per call; the results become
Arrow columns beside the existing ones.

Spark 4.1 and newer, which has scalar functions on Arrow, sends only the feature columns to its Python workers and
receives only the results. Older versions send whole rows both ways.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import arrow_type, map_in_arrow, plainly_named, to_batch
from tensorflowonspark.driver.spark.repartition import new_column
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.ml.distribution import DistributedModel, loaded
from tensorflowonspark.ml.features import TakenColumns, call_in_pieces, features_of
from tensorflowonspark.ml.outputs import OutputGroups, result_values
from tensorflowonspark.ml.worker_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tensorflowonspark.ml.row_progress import RowCounter


@dataclass(frozen=True)
class PredictPlan:
    """The work of a task."""

    model: DistributedModel
    taken: TakenColumns
    types: "StructType"  # the result columns
    outputs: OutputGroups = ()  # in groups, each with its columns; empty if they have the columns' names
    batch_rows: int | None = None  # of a call, at most; None for as many as hold a few megabytes
    invalid: str = "error"  # ``error``, ``keep`` or ``skip`` the rows that the model can't take
    counter: "RowCounter | None" = None  # of progress

    @property
    def schema(self) -> pa.Schema:
        """The result columns in Arrow."""
        return pa.schema([(each.name, arrow_type(each.dataType)) for each in self.types])


@short_errors
def predict(plan: PredictPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.StructArray]:
    """Yield the results of each batch: a struct of the result columns for each row, null for an invalid row."""
    partition = this_partition()
    schema, row = plan.schema, 0
    for batch in batches:
        yield _predict_batch(plan, schema, batch, partition, row)
        row += batch.num_rows
    if plan.counter is not None:
        plan.counter.add(row)


def this_partition() -> int:
    """Return the number of the partition that this Spark task processes."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def _predict_batch(
    plan: PredictPlan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int
) -> pa.StructArray:
    if not batch.num_rows:
        return _structs(schema.empty_table().combine_chunks(), schema)
    try:
        return _structs(_results(plan, schema, batch, partition, row), schema)
    except FeedError:
        if plan.invalid == "error":
            raise
    valid, _ = valid_rows(plan.taken, batch)
    if not valid:
        return pa.nulls(batch.num_rows, pa.struct(list(schema)))
    results = _structs(_results(plan, schema, batch.take(pa.array(valid, pa.int64())), partition, row), schema)
    places = np.full(batch.num_rows, -1)
    places[valid] = np.arange(len(valid))
    return results.take(pa.array(places, pa.int64(), mask=places < 0))


def _structs(results: "pa.RecordBatch | pa.Table", schema: pa.Schema) -> pa.StructArray:
    columns = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in results.columns]
    return pa.StructArray.from_arrays(columns, fields=list(schema))


def _results(plan: PredictPlan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.RecordBatch:
    # A function of the user takes a single column as an array.
    features = features_of(plan.taken, batch, partition, row, by_name=plan.model.bundle.kind != "function")
    values = call_in_pieces(loaded(plan.model), features, batch, plan.batch_rows)
    results: dict[str, Any] = {} if plan.outputs else values
    for outputs, columns in plan.outputs:
        results.update(result_values(outputs, columns, values))
    return to_batch(results, schema, batch.num_rows)


def valid_rows(taken: TakenColumns, batch: pa.RecordBatch, partition: int = 0, row: int = 0) -> tuple[list[int], str]:
    """Return the places of the rows of a batch whose values can be converted, and why the first other one can't.

    The partition's number and that of the batch's first row in it are for the reason.
    """
    every = list(range(batch.num_rows))
    try:
        if every:
            features_of(taken, batch)
        return every, ""
    except FeedError:
        valid, reason = [], ""
    for place in every:
        try:
            features_of(taken, batch.slice(place, 1), partition, row + place)
            valid.append(place)
        except FeedError as error:
            reason = reason or str(error)
    return valid, reason


def batch_of_row(value: Any, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the features of one row as a batch, whose types are those of the values.

    `value` is that of the only column, or a mapping or a row of Spark with the values by column. Raises SpecError if a
    column is missing, or its values have no common type.

    Examples
    --------
    >>> batch_of_row(np.array([1.0, 2.0]), ["features"]).schema
    features: list<item: double>
      child 0, item: double
    """
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        value = value.asDict()
    if not isinstance(value, Mapping):
        if len(columns) > 1:
            raise SpecError(f"the model takes the columns {list(columns)}: give the row's values by column, as a dict")
        value = {columns[0]: value}
    missing = [name for name in columns if name not in value]
    if missing:
        raise SpecError(f"the row has no column {', '.join(map(repr, missing))}; it has {list(value)}")
    return pa.RecordBatch.from_arrays([_of_one(name, value[name]) for name in columns], list(columns))


def _of_one(name: str, value: Any) -> pa.Array:
    plain = value.toArray() if hasattr(value, "toArray") else value  # a vector
    if plain is None:
        return pa.nulls(1, pa.float64())
    try:
        return pa.array([plain.tolist() if isinstance(plain, (np.ndarray, np.generic)) else plain])
    except pa.ArrowException as error:
        raise SpecError(f"column {name!r} holds {value!r}, of which no array can be made: {error}") from error


def with_results(plan: PredictPlan, frame: "DataFrame", keep: Sequence[str] | None = None) -> "DataFrame":
    """Return a DataFrame with the result columns beside its own, or beside those in `keep`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType, UserDefinedType

    places = list(range(len(frame.columns))) if keep is None else [frame.columns.index(name) for name in keep]
    if not hasattr(f, "arrow_udf"):
        whole = StructType([*[frame.schema.fields[place] for place in places], *plan.types.fields])
        return map_in_arrow(frame, partial(_add_results, plan, places), whole)
    plain, names = plainly_named(frame)
    if any(isinstance(each.dataType, UserDefinedType) for each in [*frame.schema.fields, *plan.types.fields]):
        # Spark 4.2 and 4.3 can't convert vectors beside a function that takes the columnar batches of a scan. A filter
        # takes rows; this one is always true, and Spark neither removes nor moves it.
        plain = plain.where(f.spark_partition_id() >= 0)
    # Spark calls a deterministic function again for each use of its result.
    taken = [names[frame.columns.index(name)] for name in plan.taken.columns]
    added = new_column(plain, "tensorflowonspark_results")
    predicted = plain.withColumn(added, _function(plan).asNondeterministic()(*taken))
    if plan.invalid == "skip":
        predicted = predicted.where(f.col(added).isNotNull())
    results = [f.col(added).getField(name).alias(name) for name in plan.types.names]
    return predicted.select(*[names[place] for place in places], *results)


def _function(plan: PredictPlan) -> Any:
    from pyspark.sql.functions import arrow_udf

    if len(plan.taken.columns) == 1:

        def of_one(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return predict(plan, (pa.RecordBatch.from_arrays([each], [*plan.taken.columns]) for each in arrays))

        return arrow_udf(of_one, plan.types)

    def of_several(groups: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return predict(plan, (pa.RecordBatch.from_arrays(list(group), [*plan.taken.columns]) for group in groups))

    return arrow_udf(of_several, plan.types)


@short_errors
def _add_results(plan: PredictPlan, places: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with their results, in Spark's Python workers."""
    pending: list[pa.RecordBatch] = []

    def features() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pending.append(batch)
            yield batch.select(list(plan.taken.columns))

    for results in predict(plan, features()):
        batch = pending.pop().select(places)
        columns = [*batch.columns, *results.flatten()]
        predicted = pa.RecordBatch.from_arrays(columns, [*batch.schema.names, *plan.types.names])
        yield predicted.filter(results.is_valid()) if plan.invalid == "skip" else predicted
