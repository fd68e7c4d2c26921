"""A model applied to the rows of a DataFrame, in Spark's Python workers.

Rows go from Arrow to numpy without being touched, through the model some hundreds at a time, and back into Arrow as
columns beside those that came.

Where Spark has scalar functions on Arrow (4.1 and newer), only the columns that the model takes go to Spark's Python
workers, and only the results come back. Older ones send whole rows both ways.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import (
    arrow_type,
    flat_columns,
    map_in_arrow,
    plainly_named,
    summarize,
    to_array,
    to_batch,
)
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.ml.distribution import DistributedModel, loaded
from tensorflowonspark.ml.outputs import Columns, OutputInfo, result_values
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["PredictPlan", "TakenColumns", "features_of", "predict", "this_partition", "with_results"]

_BATCH_BYTES = 4 << 20
_LEAST_ROWS, _MOST_ROWS = 32, 8192


@dataclass(frozen=True)
class TakenColumns:
    """What a model is given.

    Attributes
    ----------
    columns : tuple of str
        The columns; one comes by itself, several by name.
    by_column : mapping
        Shapes, dtypes and fill, by column.
    parameters : mapping, optional
        The column of each parameter of a function, which gets all by these names.
    advice : str
        Is added to errors about values that it can't be given.
    """

    columns: tuple[str, ...]
    by_column: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, str] | None = None
    advice: str = ""


@dataclass(frozen=True)
class PredictPlan:
    """What a task is to do.

    Attributes
    ----------
    model : Shipped
        The model.
    taken : Taken
        What it is given.
    outputs : tuple
        The outputs in groups, each with the names of its columns; none if the outputs have the columns' names.
    types : tuple
        The result columns with their Spark types.
    batch_rows : int or None
        How many rows the model gets at the most; None for as many as are a few megabytes.
    invalid : str
        What is done with rows that it can't be given.
    """

    model: DistributedModel
    taken: TakenColumns
    outputs: tuple[tuple[tuple[OutputInfo, ...], Columns], ...]
    types: tuple[tuple[str, "DataType"], ...]
    batch_rows: int | None
    invalid: str = "error"


def predict(plan: PredictPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.StructArray]:
    """Yield the results of each batch: a struct of the result columns for each row, null where it does not fit."""
    partition = this_partition()
    schema = pa.schema([(name, arrow_type(type_)) for name, type_ in plan.types])
    row = 0
    for batch in batches:
        yield _answer(plan, schema, batch, partition, row)
        row += batch.num_rows


def this_partition() -> int:
    """Return the number of the partition that this Spark task works on."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def _answer(plan: PredictPlan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.StructArray:
    if not batch.num_rows:
        return _structs(schema.empty_table().combine_chunks(), schema)
    try:
        return _structs(_results(plan, schema, batch, partition, row), schema)
    except FeedError:
        if plan.invalid == "error":
            raise
    good = [at for at in range(batch.num_rows) if _is_good(plan, batch.slice(at, 1))]
    if not good:
        return pa.nulls(batch.num_rows, pa.struct(list(schema)))
    taken = _structs(_results(plan, schema, batch.take(pa.array(good, pa.int64())), partition, row), schema)
    places = np.full(batch.num_rows, -1)
    places[good] = np.arange(len(good))
    return taken.take(pa.array(places, pa.int64(), mask=places < 0))


def _structs(results: "pa.RecordBatch | pa.Table", schema: pa.Schema) -> pa.StructArray:
    columns = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in results.columns]
    return pa.StructArray.from_arrays(columns, fields=list(schema))


def _is_good(plan: PredictPlan, row: pa.RecordBatch) -> bool:
    try:
        features_of(plan.taken, row)
    except FeedError:
        return False
    return True


def _results(plan: PredictPlan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.RecordBatch:
    features = features_of(plan.taken, batch, partition, row)
    model = loaded(plan.model)
    found: dict[str, list[Any]] = {}
    step = plan.batch_rows or _rows_at_a_time(batch)
    for start in range(0, batch.num_rows, step):
        for name, values in model(_slice(features, start, start + step)).items():
            found.setdefault(name, []).append(values)
    values = {name: pieces[0] if len(pieces) == 1 else np.concatenate(pieces) for name, pieces in found.items()}
    results: dict[str, Any] = {} if plan.outputs else values
    for outputs, columns in plan.outputs:
        results.update(result_values(outputs, columns, values))
    return to_batch(results, schema, batch.num_rows)


def _rows_at_a_time(batch: pa.RecordBatch) -> int:
    """Return so many rows that a call costs little beside them, and what the network makes of them stays small."""
    return int(min(max(_BATCH_BYTES * batch.num_rows // max(1, batch.nbytes), _LEAST_ROWS), _MOST_ROWS))


def features_of(taken: TakenColumns, batch: pa.RecordBatch, partition: int = 0, row: int = 0) -> Any:
    """Return what a model is given, as numpy arrays.

    Raises
    ------
    FeedError
        It names the column and the row that can't be had.
    """
    flat = flat_columns(batch.select(list(taken.columns)))
    summary = summarize(flat, partition, row)
    contents = SplitManifest({}, columns=summary, schema=flat.schema.serialize().to_pybytes())
    asked = taken.columns[0] if len(taken.columns) == 1 else list(taken.columns)
    try:
        options = FeatureOptions(features=asked, **taken.by_column)  # type: ignore[arg-type]
        selection = Selection(contents, options, inference=True)
    except FeedError as error:
        if not taken.advice:
            raise
        raise FeedError(f"{error}. {taken.advice}") from None
    arrays = {name: to_array(flat.column(name), kind) for name, kind in selection.kinds.items()}
    if taken.parameters is not None:
        return {parameter: arrays[column] for parameter, column in taken.parameters.items()}
    return selection.pick_features(arrays)


def _slice(features: Any, start: int, stop: int) -> Any:
    if isinstance(features, Mapping):
        return {name: _slice(each, start, stop) for name, each in features.items()}
    return features[start:stop]


_RESULTS = "tensorflowonspark_results"


def with_results(plan: PredictPlan, frame: "DataFrame", keep: Sequence[str] | None = None) -> "DataFrame":
    """Return a DataFrame with the result columns beside its own, or beside those of them that are to be kept."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    types = StructType([StructField(name, type_) for name, type_ in plan.types])
    places = list(range(len(frame.columns))) if keep is None else [frame.columns.index(name) for name in keep]
    if not hasattr(f, "arrow_udf"):
        whole = StructType([*[frame.schema.fields[place] for place in places], *types.fields])
        return map_in_arrow(frame, partial(_beside, plan, places), whole)
    # Not to be called again for each use of a result, which Spark does with functions that it takes for cheap.
    plain, own = plainly_named(frame)
    taken = [own[frame.columns.index(name)] for name in plan.taken.columns]
    answered = plain.withColumn(_RESULTS, _function(plan, types).asNondeterministic()(*taken))
    if plan.invalid == "skip":
        answered = answered.where(f.col(_RESULTS).isNotNull())
    results = [f.col(_RESULTS).getField(name).alias(name) for name in types.names]
    return answered.select(*[own[place] for place in places], *results)


def _function(plan: PredictPlan, types: "StructType") -> Any:
    from pyspark.sql.functions import arrow_udf

    if len(plan.taken.columns) == 1:

        def of_one(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return predict(plan, (pa.RecordBatch.from_arrays([each], [*plan.taken.columns]) for each in arrays))

        return arrow_udf(of_one, types)

    def of_several(groups: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return predict(plan, (pa.RecordBatch.from_arrays(list(group), [*plan.taken.columns]) for group in groups))

    return arrow_udf(of_several, types)


def _beside(plan: PredictPlan, places: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with their results (runs in Spark's Python workers)."""
    waiting: list[pa.RecordBatch] = []

    def features() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            waiting.append(batch)
            yield batch.select(list(plan.taken.columns))

    for results in predict(plan, features()):
        batch = waiting.pop().select(places)
        columns = [*batch.columns, *results.flatten()]
        answered = pa.RecordBatch.from_arrays(columns, [*batch.schema.names, *[name for name, _ in plan.types]])
        yield answered.filter(results.is_valid()) if plan.invalid == "skip" else answered
