"""Export of a stage's model: it takes the columns of a DataFrame by their names, and gives the model's outputs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import Ragged, map_in_arrow, select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import WEIGHTS, format_of
from tensorflowonspark.exports.served_model import Named, ServedModel, dtype_name
from tensorflowonspark.exports.versions import numbered
from tensorflowonspark.exports.writing import NOT_COMPARED, comparison, export, require_writable, write_as
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.jax.saving_alone import inference_function
from tensorflowonspark.keras.structure import TensorInfo, as_inputs, by_output
from tensorflowonspark.ml.calls import keras_call
from tensorflowonspark.ml.features import TakenColumns, features_of
from tensorflowonspark.ml.inputs import input_of_each, to_inputs
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.serialization import load_model
from tensorflowonspark.run_manifest import Record, write_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH = "batch"  # the column of Arrow's bytes


@dataclass(frozen=True)
class Target:
    """Where a stage's model is written, in which format, and how it is compared: as the user gives it."""

    path: str
    format: str | None
    version: "int | Literal['next'] | None"
    check_rows: int
    tolerance: float


@dataclass(frozen=True)
class RowSource:
    """The rows of a DataFrame, with the columns that the model takes."""

    frame: "DataFrame"
    taken: TakenColumns

    def first(self, number: int) -> dict[str, "np.ndarray[Any, Any]"]:
        """Return the first rows by column; of arrays whose lengths differ, those as long as in the first row."""
        batch = _first_rows(self.frame, self.taken.columns, number)
        return alike(features_of(self.taken, batch, by_name=True))


def export_stage(bundle: ModelBundle, source: RowSource, target: Target, manifest: Record) -> str:
    """Write the Keras model of a stage, with the manifest of the run that has trained it; return its path.

    Raises SpecError as `KerasModel.export` does.
    """
    to = format_of(target.path, target.format, numbered=target.version is not None)
    storage.use_session(source.frame.sparkSession)
    model, objects = load_model(bundle), bundle.code.load("keras")
    require_writable(model, to)
    rows = source.first(max(1, target.check_rows))
    compare = NOT_COMPARED if to is WEIGHTS else comparison(target.check_rows, to, rows, target.tolerance)
    served = partial(served_columns, bundle.inputs, column_infos(bundle.inputs, rows), objects)
    write = write_as(to, compare, served, in_directory=target.version is not None)
    with nullcontext(target.path) if target.version is None else numbered(target.path, target.version) as path:
        export(model, path, True, None, write, partial(write_manifest, manifest) if manifest else None)
    return path


def served_columns(
    inputs: Sequence[TensorInfo], columns: Sequence[TensorInfo], objects: Mapping[str, Any], model: Any, *, rows: Any
) -> ServedModel:
    """Return a model that takes columns, which become its inputs as in ``transform``.

    What it gives for the rows, with which an export is compared, is what ``transform`` would.
    """
    predict = inference_call(model)

    def call(values: Named) -> Named:
        return by_output(model, predict(as_inputs(model, to_inputs(values, inputs))))

    predicting = inference_function if keras_backend() == "jax" else inference_call
    reference = keras_call(model, "keras", inputs, predicting=predicting)
    return ServedModel(model, columns, call, rows=rows, reference=reference, objects=objects)


def _first_rows(frame: "DataFrame", columns: Sequence[str], number: int) -> pa.RecordBatch:
    """Return the first rows of some columns as Spark sends them to its Python workers."""
    sent = map_in_arrow(select(frame, columns).limit(number), _serialized, f"{_BATCH} binary").collect()
    batches = [pa.ipc.open_stream(each[_BATCH]).read_next_batch() for each in sent]
    if not any(each.num_rows for each in batches):
        raise SpecError("the DataFrame has no rows: the first ones say which values the model's inputs take")
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _serialized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], [_BATCH])


def alike(features: Mapping[str, Any]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return rows of arrays by column: of those whose lengths differ the ones that are as long as the first.

    Examples
    --------
    >>> alike({"a": Ragged(np.array([1, 2, 3, 4]), (np.array([0, 1, 3, 4]),)), "b": np.array([5, 6, 7])})
    {'a': array([[1],
           [4]]), 'b': array([5, 7])}
    """
    rows = {name: each.rows() if isinstance(each, Ragged) else each for name, each in features.items()}
    shapes = [[np.shape(each[place]) for each in rows.values()] for place in range(len(next(iter(rows.values()))))]
    places = [place for place, shape in enumerate(shapes) if shape == shapes[0]]
    ragged = {name for name, each in features.items() if isinstance(each, Ragged)}
    return {name: np.stack(list(each[places])) if name in ragged else each[places] for name, each in rows.items()}


def column_infos(inputs: Sequence[TensorInfo], rows: Mapping[str, "np.ndarray[Any, Any]"]) -> tuple[TensorInfo, ...]:
    """Return what an exported model takes: the columns, with their dtypes, and the model's shapes where it has these.

    Examples
    --------
    >>> column_infos([TensorInfo("ids", (None,), "int64")], {"words": np.zeros((2, 5), np.int32)})
    (TensorInfo(name='words', shape=(None,), dtype='int32'),)
    """
    found = []
    side_by_side = len(inputs) == 1 < len(rows)
    for (name, values), taken in zip(rows.items(), input_of_each(inputs, list(rows)), strict=True):
        has_shape = taken is not None and not side_by_side and len(taken.shape) == values.ndim - 1
        shape = taken.shape if taken is not None and has_shape else values.shape[1:]
        found.append(TensorInfo(name, shape, dtype_name(values)))
    return tuple(found)
