"""A model over the rows of a Spark task, in Spark's Python worker.

The model is loaded once in each worker process and kept for its later tasks. Rows go from Arrow to numpy without
being touched, through the model some hundreds at a time, and back into Arrow as columns beside those that came.
"""

import io
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import Ragged, flat_columns, summarize, to_array, to_batch
from tensorflowonspark.errors import FeedError
from tensorflowonspark.ml.artefact import Artefact
from tensorflowonspark.ml.inputs import to_inputs
from tensorflowonspark.ml.outputs import Columns, OutputInfo, result_values
from tensorflowonspark.ml.recipe import load_model
from tensorflowonspark.ml.shipping import received
from tensorflowonspark.node.elements import Options, Selection
from tensorflowonspark.parts import Contents

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Plan", "predict"]

_BATCH_BYTES = 4 << 20
_LEAST_ROWS, _MOST_ROWS = 32, 8192
_KEPT_MODELS = 4  # in a worker's memory
_models: "OrderedDict[tuple[str, tuple[str, ...]], Call]" = OrderedDict()
_unpacked: list[tempfile.TemporaryDirectory[str]] = []

Call = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What a task is to do.

    Attributes
    ----------
    file : str
        The model's, as Spark ships it.
    artefact : Artefact
        The model, without its data.
    layers : tuple of str
        Whose outputs are wanted; none for the model's own.
    outputs : tuple
        The outputs in groups, each with the names of its columns.
    columns : tuple of str
        What the model is given.
    by_column : mapping
        Shapes, casts and fill, by column.
    types : tuple
        The result columns with their Spark types.
    batch_rows : int or None
        How many rows the model gets at the most; None for as many as are a few megabytes.
    invalid : str
        What is done with rows that it can't be given.
    custom_objects : mapping
        What a Keras model is made of beside Keras's own.
    """

    file: str
    artefact: Artefact
    layers: tuple[str, ...]
    outputs: tuple[tuple[tuple[OutputInfo, ...], Columns], ...]
    columns: tuple[str, ...]
    by_column: Mapping[str, Mapping[str, Any]]
    types: tuple[tuple[str, "DataType"], ...]
    batch_rows: int | None
    invalid: str
    custom_objects: Mapping[str, Any]


def predict(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.StructArray]:
    """Yield the results of each batch: a struct of the result columns for each row, null where it does not fit."""
    from pyspark import TaskContext

    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    schema = pa.schema([(name, _arrow_type(type_)) for name, type_ in plan.types])
    row = 0
    for batch in batches:
        yield _answer(plan, schema, batch, partition, row)
        row += batch.num_rows


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
        _features(plan, row, 0, 0)
    except FeedError:
        return False
    return True


def _results(plan: Plan, schema: pa.Schema, batch: pa.RecordBatch, partition: int, row: int) -> pa.RecordBatch:
    features = _features(plan, batch, partition, row)
    model = _loaded(plan)
    found: dict[str, list[Any]] = {}
    step = plan.batch_rows or _rows_at_a_time(batch)
    for start in range(0, batch.num_rows, step):
        for name, values in model(_slice(features, start, start + step)).items():
            found.setdefault(name, []).append(np.asarray(values))
    values = {name: pieces[0] if len(pieces) == 1 else np.concatenate(pieces) for name, pieces in found.items()}
    results: dict[str, Any] = {}
    for outputs, columns in plan.outputs:
        results.update(result_values(outputs, columns, values))
    return to_batch(results, schema, batch.num_rows)


def _rows_at_a_time(batch: pa.RecordBatch) -> int:
    """Return so many rows that a call costs little beside them, and what the network makes of them stays small."""
    return int(min(max(_BATCH_BYTES * batch.num_rows // max(1, batch.nbytes), _LEAST_ROWS), _MOST_ROWS))


def _features(plan: Plan, batch: pa.RecordBatch, partition: int, row: int) -> Any:
    """Return what the model is given, as numpy arrays.

    Raises
    ------
    FeedError
        It names the column and the row that can't be had.
    """
    flat = flat_columns(batch.select(list(plan.columns)))
    summary = summarize(flat, partition, row)
    contents = Contents({}, columns=summary, schema=flat.schema.serialize().to_pybytes())
    asked = plan.columns[0] if len(plan.columns) == 1 else list(plan.columns)
    selection = Selection(contents, Options(features=asked, **plan.by_column), inference=True)  # type: ignore[typeddict-item]
    return selection.pick_features({name: to_array(flat.column(name), kind) for name, kind in selection.kinds.items()})


def _slice(features: Any, start: int, stop: int) -> Any:
    if isinstance(features, Mapping):
        return {name: _slice(each, start, stop) for name, each in features.items()}
    return features[start:stop]


def _loaded(plan: Plan) -> Call:
    key = plan.file, plan.layers
    if key not in _models:
        _models[key] = _load(plan)
    _models.move_to_end(key)
    while len(_models) > _KEPT_MODELS:
        _models.popitem(last=False)
    return _models[key]


def _load(plan: Plan) -> Call:
    artefact = replace(plan.artefact, data=received(plan.file))
    if artefact.kind == "function":
        return _function(artefact)
    _prepare_tensorflow()
    return _saved_model(artefact) if artefact.kind == "saved_model" else _keras_model(artefact, plan)


def _prepare_tensorflow() -> None:
    """Let TensorFlow keep to this task's share of the machine."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import tensorflow as tf

    cores = int(os.environ.get("OMP_NUM_THREADS") or 1)  # Spark sets it to the cores of a task
    try:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
    except RuntimeError:
        pass  # it runs already, as where another stage has used it


def _keras_model(artefact: Artefact, plan: Plan) -> Call:
    import tensorflow as tf

    model = load_model(artefact.kind, artefact.data, plan.custom_objects)
    names = [output.tensor.name for outputs, _ in plan.outputs for output in outputs]
    if plan.layers:
        keras = import_module(artefact.kind)
        model = keras.Model(model.inputs, [model.get_layer(name).output for name in plan.layers])

    @tf.function(reduce_retracing=True)
    def call(features: Any) -> Any:
        return model(to_inputs(features, artefact.inputs), training=False)

    return lambda features: _by_name(call(_tensors(features)), names)


def _saved_model(artefact: Artefact) -> Call:
    import tensorflow as tf

    _unpacked.append(tempfile.TemporaryDirectory(prefix="tfos-"))  # it may read from there later on
    with zipfile.ZipFile(io.BytesIO(artefact.data)) as archive:
        archive.extractall(_unpacked[-1].name)
    loaded = tf.saved_model.load(_unpacked[-1].name)
    function = loaded.signatures[artefact.signature]
    types = {each.name: tf.as_dtype(each.dtype) for each in artefact.inputs}

    def call(features: Any) -> dict[str, Any]:
        taken = to_inputs(_tensors(features), artefact.inputs)
        if not isinstance(taken, Mapping):
            taken = {artefact.inputs[0].name: taken}
        cast = {name: each if each.dtype == types[name] else tf.cast(each, types[name]) for name, each in taken.items()}
        return {name: each.numpy() for name, each in function(**cast).items()}

    call.model = loaded  # type: ignore[attr-defined] # its variables live as long as it does
    return call


def _function(artefact: Artefact) -> Call:
    function = pickle.loads(artefact.data)
    names = [output.tensor.name for output in artefact.outputs]

    def call(features: Any) -> dict[str, Any]:
        if isinstance(features, Mapping):
            features = {name: each.rows() if isinstance(each, Ragged) else each for name, each in features.items()}
        return _by_name(function(features.rows() if isinstance(features, Ragged) else features), names)

    return call


def _tensors(features: Any) -> Any:
    import tensorflow as tf

    if isinstance(features, Mapping):
        return {name: _tensors(each) for name, each in features.items()}
    if isinstance(features, Ragged):
        return tf.RaggedTensor.from_nested_row_splits(features.values, features.splits, validate=False)
    return tf.constant(features)


def _by_name(results: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(results, Mapping):
        results = dict(zip(names, results if isinstance(results, (list, tuple)) else [results], strict=True))
    return {name: each.numpy() if hasattr(each, "numpy") else each for name, each in results.items()}


def _arrow_type(type_: "DataType") -> pa.DataType:
    """Return Arrow's type for one of Spark's; vectors have that in which Spark sends them."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    if isinstance(type_, VectorUDT):
        return _arrow_type(VectorUDT.sqlType())
    if isinstance(type_, StructType):
        return pa.struct([pa.field(each.name, _arrow_type(each.dataType), each.nullable) for each in type_.fields])
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
    return to_arrow_type(type_, **zone)
