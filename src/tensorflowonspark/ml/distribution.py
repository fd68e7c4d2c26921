"""Distribution of models to Spark's Python workers: copied to each executor and loaded once."""

import atexit
import io
import os
import pickle
import shutil
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import Ragged
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.keras import keep_sources
from tensorflowonspark.keras.saving import inference_call
from tensorflowonspark.ml.code import Code, code_for
from tensorflowonspark.ml.inputs import to_inputs
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.serialization import Serialized, load_model
from tensorflowonspark.supervisor.host import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DistributedModel", "distribute", "loaded", "prepare_tensorflow"]

Call = Callable[[Any], dict[str, Any]]

_KEPT_MODELS = 4  # in a worker's memory
_models: "OrderedDict[tuple[Any, ...], Call]" = OrderedDict()


@dataclass(frozen=True)
class DistributedModel:
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
    artefact: ModelBundle
    layers: tuple[str, ...] = ()
    custom_objects: Code = field(default_factory=Code)


def loaded(shipped: DistributedModel) -> Call:
    """Return what gives a model's outputs, by name, for the features of some rows; it is kept for later tasks."""
    code = shipped.artefact.code.digest, shipped.custom_objects.digest  # a class can change where the model does not
    key = shipped.file, shipped.layers, shipped.artefact.signature, shipped.artefact.tags, code
    if key not in _models:
        _models[key] = _load(shipped)
    _models.move_to_end(key)
    while len(_models) > _KEPT_MODELS:
        _models.popitem(last=False)
    return _models[key]


def _load(shipped: DistributedModel) -> Call:
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


def _keras_model(artefact: ModelBundle, shipped: DistributedModel) -> Call:
    import tensorflow as tf

    frozen = Serialized(artefact.kind, file=artefact.data, code=artefact.code)
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


def _saved_model(artefact: ModelBundle) -> Call:
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


def _function(artefact: ModelBundle) -> Call:
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


_kept: list[str] = []  # a directory: executors fetch from there whenever they come to it
_shipped: set[tuple[str, str]] = set()


def distribute(
    spark: "SparkSession",
    artefact: ModelBundle,
    layers: tuple[str, ...] = (),
    custom_objects: Mapping[str, Any] | None = None,
) -> DistributedModel:
    """Have Spark send a model to the executors; return what they need to load it."""
    name = f"model-{artefact.digest}"
    session = _identity(spark)
    if (session, name) not in _shipped:
        _send(spark, name, artefact.data)
        _shipped.add((session, name))
    return DistributedModel(name, replace(artefact, data=b"", layers={}), layers, code_for(custom_objects))


def _send(spark: "SparkSession", name: str, data: bytes) -> None:
    if not _kept:
        _kept.append(tempfile.mkdtemp(prefix="tfos-models-"))
        atexit.register(_remove, _kept[0], os.getpid())
    path = Path(_kept[0], name)
    if not path.exists():
        path.write_bytes(data)
    if is_remote(spark):
        spark.addArtifacts(str(path), file=True)
    else:
        spark.sparkContext.addFile(str(path))


def _remove(directory: str, owner: int) -> None:
    """Remove a directory at the end of the process that has made it, and not at that of a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _identity(spark: "SparkSession") -> str:
    return str(spark.session_id if is_remote(spark) else spark.sparkContext.applicationId)
