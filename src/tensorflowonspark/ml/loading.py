"""A model that was sent to Spark's Python workers, as a function of arrays that each of them loads once."""

import io
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorflowonspark.columns import Ragged
from tensorflowonspark.keras import keep_sources
from tensorflowonspark.keras.saving import inference_call
from tensorflowonspark.ml.artefact import Artefact
from tensorflowonspark.ml.code import Code
from tensorflowonspark.ml.inputs import to_inputs
from tensorflowonspark.ml.recipe import Frozen, load_model
from tensorflowonspark.task.host import local_directory

__all__ = ["Shipped", "loaded", "prepare_tensorflow"]

Call = Callable[[Any], dict[str, Any]]

_KEPT_MODELS = 4  # in a worker's memory
_models: "OrderedDict[tuple[Any, ...], Call]" = OrderedDict()


@dataclass(frozen=True)
class Shipped:
    """A model on the executors.

    Attributes
    ----------
    file : str
        Its data's, as Spark has copied it.
    artefact : Artefact
        All but its data.
    layers : tuple of str
        Whose outputs are wanted; none for the model's own.
    custom_objects : Code
        What the user says that a Keras model is made of, beside what came with it.
    """

    file: str
    artefact: Artefact
    layers: tuple[str, ...] = ()
    custom_objects: Code = field(default_factory=Code)


def loaded(shipped: Shipped) -> Call:
    """Return what gives a model's outputs, by name, for the features of some rows; it is kept for later tasks."""
    code = shipped.artefact.code.digest, shipped.custom_objects.digest  # a class can change where the model does not
    key = shipped.file, shipped.layers, shipped.artefact.signature, shipped.artefact.tags, code
    if key not in _models:
        _models[key] = _load(shipped)
    _models.move_to_end(key)
    while len(_models) > _KEPT_MODELS:
        _models.popitem(last=False)
    return _models[key]


def _load(shipped: Shipped) -> Call:
    artefact = replace(shipped.artefact, data=_received(shipped.file))
    if artefact.kind == "function":
        return _function(artefact)
    prepare_tensorflow()
    return _saved_model(artefact) if artefact.kind == "saved_model" else _keras_model(artefact, shipped)


def _received(name: str) -> bytes:
    """Return the data of a file that Spark has copied."""
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name)).read_bytes()


def prepare_tensorflow() -> None:
    """Let TensorFlow keep to this task's share of the machine."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    keep_sources(local_directory())  # which Spark removes: it ends its workers with no time to tidy up
    import tensorflow as tf

    cores = int(os.environ.get("OMP_NUM_THREADS") or 1)  # Spark sets it to the cores of a task
    try:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
    except RuntimeError:
        pass  # it runs already, as where another stage has used it


def _keras_model(artefact: Artefact, shipped: Shipped) -> Call:
    import tensorflow as tf

    frozen = Frozen(artefact.kind, file=artefact.data, code=artefact.code)
    model = load_model(frozen, shipped.custom_objects.load(artefact.kind))
    names = list(shipped.layers) or [output.tensor.name for output in artefact.outputs]
    if shipped.layers:
        keras = import_module(artefact.kind)
        model = keras.Model(model.inputs, [model.get_layer(name).output for name in shipped.layers])

    predict = inference_call(model)

    @tf.function(reduce_retracing=True)
    def call(features: Any) -> Any:
        return predict(to_inputs(features, artefact.inputs))

    return lambda features: _by_name(call(_tensors(features)), names)


def _saved_model(artefact: Artefact) -> Call:
    import tensorflow as tf

    # Spark ends its workers with no time to tidy up: nothing stays on the disk. Tables are filled when it is loaded.
    with tempfile.TemporaryDirectory(prefix="tfos-", dir=local_directory() or None) as unpacked:
        with zipfile.ZipFile(io.BytesIO(artefact.data)) as archive:
            archive.extractall(unpacked)
        exported = tf.saved_model.load(unpacked, tags=list(artefact.tags) or None)
    # Without a signature it is a function of the project's own making (see `frames.graphs`).
    function = exported.signatures[artefact.signature] if artefact.signature else exported.function
    types = {each.name: tf.as_dtype(each.dtype) for each in artefact.inputs}

    def call(features: Any) -> dict[str, Any]:
        taken = to_inputs(_tensors(features), artefact.inputs)
        if not isinstance(taken, Mapping):
            taken = {artefact.inputs[0].name: taken}
        cast = {name: each if each.dtype == types[name] else tf.cast(each, types[name]) for name, each in taken.items()}
        return _by_name(function(**cast), [])

    call.model = exported  # type: ignore[attr-defined] # its variables live as long as it does
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
    return {name: _plain(each) for name, each in results.items()}


def _plain(result: Any) -> Any:
    """Return a tensor as an array; a ragged one stays what it is."""
    return result.numpy() if hasattr(result, "numpy") and not hasattr(result, "nested_row_splits") else result
