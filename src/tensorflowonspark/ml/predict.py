"""A model over the rows of a Spark task, in Spark's Python worker.

Rows go from Arrow to numpy without being touched, through the model some hundreds at a time, and back into Arrow as
columns beside those that came.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import arrow_type, flat_columns, summarize, to_array, to_batch
from tensorflowonspark.errors import FeedError
from tensorflowonspark.ml.loading import Shipped, loaded
from tensorflowonspark.ml.outputs import Columns, OutputInfo, result_values
from tensorflowonspark.node.elements import Options, Selection
from tensorflowonspark.parts import Contents

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Plan", "Taken", "features_of", "predict", "this_partition"]

_BATCH_BYTES = 4 << 20
_LEAST_ROWS, _MOST_ROWS = 32, 8192


@dataclass(frozen=True)
class Taken:
    """What a model is given.

    Attributes
    ----------
    columns : tuple of str
        The columns; one comes by itself, several by name.
    by_column : mapping
        Shapes, casts and fill, by column.
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
class Plan:
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

    model: Shipped
    taken: Taken
    outputs: tuple[tuple[tuple[OutputInfo, ...], Columns], ...]
    types: tuple[tuple[str, "DataType"], ...]
    batch_rows: int | None
    invalid: str = "error"


def predict(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.StructArray]:
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


def _answer(plan: Plan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.StructArray:
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


def _is_good(plan: Plan, row: pa.RecordBatch) -> bool:
    try:
        features_of(plan.taken, row)
    except FeedError:
        return False
    return True


def _results(plan: Plan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.RecordBatch:
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


def features_of(taken: Taken, batch: pa.RecordBatch, partition: int = 0, row: int = 0) -> Any:
    """Return what a model is given, as numpy arrays.

    Raises
    ------
    FeedError
        It names the column and the row that can't be had.
    """
    flat = flat_columns(batch.select(list(taken.columns)))
    summary = summarize(flat, partition, row)
    contents = Contents({}, columns=summary, schema=flat.schema.serialize().to_pybytes())
    asked = taken.columns[0] if len(taken.columns) == 1 else list(taken.columns)
    try:
        selection = Selection(contents, Options(features=asked, **taken.by_column), inference=True)  # type: ignore[typeddict-item]
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
