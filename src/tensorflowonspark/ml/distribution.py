"""Distribution of models to Spark's Python workers: copied to each executor and loaded once."""

import io
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import Ragged
from tensorflowonspark.keras.hooks import keep_sources, keras_backend
from tensorflowonspark.keras.jax.saving_alone import inference_function
from tensorflowonspark.keras.saving import inference_call
from tensorflowonspark.ml.inputs import held, plain_refusals, to_inputs
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.quiet_start import quiet_start
from tensorflowonspark.ml.sent_models import SENT, SentModel
from tensorflowonspark.ml.serialization import load_model
from tensorflowonspark.ml.structure import as_inputs, by_output, input_structure
from tensorflowonspark.supervisor.host import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Call = Callable[[Any], dict[str, Any]]

_MAX_MODELS = 4  # in a worker's memory: those of a pipeline, which alternate from batch to batch
_models: "OrderedDict[tuple[Any, ...], Call]" = OrderedDict()


@dataclass(frozen=True)
class DistributedModel:
    """A model on the executors."""

    sent: SentModel
    bundle: ModelBundle  # all but its data
    layers: tuple[str, ...] = ()  # whose outputs are computed; none for the model's own outputs


def loaded(distributed: DistributedModel) -> Call:
    """Return a function from the features of some rows to the model's outputs by name; later tasks get the same one."""
    return _kept(distributed.sent.name, distributed.bundle, distributed.layers, lambda: _load(distributed))


def loaded_here(bundle: ModelBundle, layers: tuple[str, ...] = ()) -> Call:
    """Return the function of a model whose data is in this process; later calls get the same one."""
    return _kept(_name(bundle), bundle, layers, lambda: load_call(bundle, layers))


def _kept(name: str, bundle: ModelBundle, layers: tuple[str, ...], load: Callable[[], Call]) -> Call:
    # A class can change where the model does not.
    key = name, layers, bundle.signature, bundle.tags, bundle.code.digest, bundle.distrusted
    if key not in _models:
        _models[key] = load()
    _models.move_to_end(key)
    while len(_models) > _MAX_MODELS:
        _models.popitem(last=False)
    return _models[key]


def _load(distributed: DistributedModel) -> Call:
    bundle = replace(distributed.bundle, data=distributed.sent.read())
    if bundle.kind != "function":
        prepare_tensorflow()
    return load_call(bundle, distributed.layers)


def load_call(bundle: ModelBundle, layers: Sequence[str] = ()) -> Call:
    """Return a function from the features of some rows to a model's outputs by name, in this process.

    With `layers`, the outputs are those of these layers.
    """
    if bundle.kind == "function":
        return _function(bundle)
    return _saved_model(bundle) if bundle.kind == "saved_model" else _keras_model(bundle, layers)


def prepare_tensorflow() -> None:
    """Limit TensorFlow to this task's share of the machine."""
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    keep_sources(local_directory())  # Spark removes it, and kills its workers before they can
    with quiet_start():
        import tensorflow as tf

        cores = int(os.environ.get("OMP_NUM_THREADS") or 1)  # Spark sets it to the cores of a task
        try:
            tf.config.threading.set_intra_op_parallelism_threads(cores)
            tf.config.threading.set_inter_op_parallelism_threads(cores)
        except RuntimeError:
            pass  # TensorFlow has started, for another stage
        tf.config.list_logical_devices()  # which looks for GPUs


def _keras_model(bundle: ModelBundle, layers: Sequence[str]) -> Call:
    import tensorflow as tf

    model = load_model(bundle)
    if layers:
        keras = import_module(bundle.kind)
        outputs = {name: model.get_layer(name).output for name in layers}
        model = keras.Model(input_structure(model), outputs)

    if bundle.kind == "keras" and keras_backend() != "tensorflow":  # as other code in this worker has imported it
        return _on_other_backend(model, bundle)
    predict = inference_call(model)

    @tf.function(reduce_retracing=True)
    def call(features: Any) -> Any:
        return by_output(model, predict(as_inputs(model, to_inputs(features, bundle.inputs))))

    def plainly(features: Any) -> dict[str, Any]:
        with plain_refusals():
            return _by_name(call(_tensors(features)), [])

    return plainly


def _on_other_backend(model: Any, bundle: ModelBundle) -> Call:
    """Return the function of a model of Keras 3 on another backend than TensorFlow."""
    import tensorflow as tf

    keras = import_module(bundle.kind)
    predict = inference_function(model) if keras_backend() == "jax" else inference_call(model)

    inputs = held(bundle.inputs, keras_backend())

    def call(features: Any) -> dict[str, Any]:
        with plain_refusals():
            taken = as_inputs(model, to_inputs(_tensors(features), inputs))
        results = by_output(model, predict(tf.nest.map_structure(lambda each: each.numpy(), taken)))
        return {name: keras.ops.convert_to_numpy(each) for name, each in results.items()}

    return call


def _saved_model(bundle: ModelBundle) -> Call:
    import tensorflow as tf

    # Spark kills its workers before they can remove files. The model needs none once it is loaded.
    with tempfile.TemporaryDirectory(prefix="tfos-", dir=local_directory() or None) as unpacked:
        with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
            archive.extractall(unpacked)
        exported = tf.saved_model.load(unpacked, tags=list(bundle.tags) or None)
    # `frames.graphs` exports a function without a signature.
    function = exported.signatures[bundle.signature] if bundle.signature else exported.function
    types = {each.name: tf.as_dtype(each.dtype) for each in bundle.inputs}

    def call(features: Any) -> dict[str, Any]:
        with plain_refusals():
            taken = to_inputs(_tensors(features), bundle.inputs)
        if not isinstance(taken, Mapping):
            taken = {bundle.inputs[0].name: taken}
        cast = {name: each if each.dtype == types[name] else tf.cast(each, types[name]) for name, each in taken.items()}
        return _by_name(function(**cast), [])

    call.model = exported  # type: ignore[attr-defined] # keeps its variables
    return call


def _function(bundle: ModelBundle) -> Call:
    function = pickle.loads(bundle.data)
    names = [output.tensor.name for output in bundle.outputs]

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
    """Return a tensor as an array, or one of ragged rows as these."""
    if hasattr(result, "nested_row_splits"):
        return Ragged(result.flat_values.numpy(), tuple(each.numpy() for each in result.nested_row_splits))
    if hasattr(result, "dense_shape"):
        import tensorflow as tf

        result = tf.sparse.to_dense(result)
    return result.numpy() if hasattr(result, "numpy") else result


def distribute(spark: "SparkSession", bundle: ModelBundle, layers: tuple[str, ...] = ()) -> DistributedModel:
    """Send a model to the executors through Spark; return its description, with which a task loads it.

    With `layers`, its outputs there are those of these layers.
    """
    return DistributedModel(SENT.send(spark, _name(bundle), bundle.data), replace(bundle, data=b"", layers={}), layers)


def _name(bundle: ModelBundle) -> str:
    return f"model-{bundle.digest}"
