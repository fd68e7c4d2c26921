"""Distribution of models to Spark's Python workers: copied to each executor and loaded once."""

import io
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tensorflowonspark.keras.hooks import keep_sources, keras_backend
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.jax.saving_alone import inference_function
from tensorflowonspark.ml.calls import Call, function_call, keras_call, saved_model_call
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.quiet_start import quiet_start
from tensorflowonspark.ml.sent_models import SENT, SentModel
from tensorflowonspark.ml.serialization import load_model
from tensorflowonspark.ml.shared_weights import load_shared
from tensorflowonspark.supervisor.host import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_MODELS = 4  # in a worker's memory: those of a pipeline, which alternate from batch to batch
_Kept = TypeVar("_Kept")
_models: "OrderedDict[tuple[Any, ...], Call]" = OrderedDict()
_converted: "OrderedDict[tuple[Any, ...], ModelBundle]" = OrderedDict()  # in the driver
_WITHOUT_TENSORFLOW = ("function", "onnx")  # the kinds of models that need it not


@dataclass(frozen=True)
class DistributedModel:
    """A model on the executors."""

    sent: SentModel
    bundle: ModelBundle  # all but its data
    layers: tuple[str, ...] = ()  # whose outputs are computed; none for the model's own outputs


def loaded(distributed: DistributedModel) -> Call:
    """Return a function from the features of some rows to the model's outputs by name; later tasks get the same one."""
    key = _key(distributed.sent.name, distributed.bundle, distributed.layers)
    return _kept(_models, key, lambda: _load(distributed))


def loaded_here(bundle: ModelBundle) -> Call:
    """Return the function of a model whose data is in this process; later calls get the same one."""
    return _kept(_models, _key(_name(bundle), bundle), lambda: load_call(bundle))


def for_engine(engine: str, bundle: ModelBundle, layers: tuple[str, ...]) -> tuple[ModelBundle, tuple[str, ...]]:
    """Return the model that an engine applies, converted if it takes another, with the layers that this still has.

    Raises SpecError as `onnx_bundle` does.
    """
    if engine == "keras":
        return bundle, layers
    from tensorflowonspark.ml.onnx_engine import onnx_bundle  # and all that converts, which tasks need not

    return _kept(_converted, _key(_name(bundle), bundle, layers), lambda: onnx_bundle(bundle, layers)), ()


def _key(name: str, bundle: ModelBundle, layers: tuple[str, ...] = ()) -> tuple[Any, ...]:
    # A class can change where the model does not.
    return name, layers, bundle.signature, bundle.tags, bundle.code.digest, bundle.distrusted


def _kept(kept: "OrderedDict[tuple[Any, ...], _Kept]", key: tuple[Any, ...], make: Callable[[], _Kept]) -> _Kept:
    if key not in kept:
        kept[key] = make()
    kept.move_to_end(key)
    while len(kept) > _MAX_MODELS:
        kept.popitem(last=False)
    return kept[key]


def _load(distributed: DistributedModel) -> Call:
    bundle = distributed.bundle
    if bundle.kind not in _WITHOUT_TENSORFLOW:
        prepare_tensorflow()
    model = load_shared(distributed.sent, bundle)
    if model is not None:
        return _keras_model(model, bundle, distributed.layers)
    return load_call(replace(bundle, data=distributed.sent.read()), distributed.layers)


def load_call(bundle: ModelBundle, layers: Sequence[str] = ()) -> Call:
    """Return a function from the features of some rows to a model's outputs by name, in this process.

    With `layers`, the outputs are those of these layers.
    """
    if bundle.kind == "function":
        return _function(bundle)
    if bundle.kind == "onnx":
        from tensorflowonspark.ml.onnx_engine import onnx_model_call

        return onnx_model_call(bundle)
    return _saved_model(bundle) if bundle.kind == "saved_model" else _keras_model(load_model(bundle), bundle, layers)


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


def _keras_model(model: Any, bundle: ModelBundle, layers: Sequence[str]) -> Call:
    on_jax = bundle.kind == "keras" and keras_backend() == "jax"
    return keras_call(model, bundle.kind, bundle.inputs, layers, inference_function if on_jax else inference_call)


def _saved_model(bundle: ModelBundle) -> Call:
    # Spark kills its workers before they can remove files. The model needs none once it is loaded.
    with tempfile.TemporaryDirectory(prefix="tfos-", dir=local_directory() or None) as unpacked:
        with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
            archive.extractall(unpacked)
        return saved_model_call(unpacked, bundle.tags, bundle.signature, bundle.inputs)


def _function(bundle: ModelBundle) -> Call:
    return function_call(pickle.loads(bundle.data), [output.tensor.name for output in bundle.outputs])


def distribute(spark: "SparkSession", bundle: ModelBundle, layers: tuple[str, ...] = ()) -> DistributedModel:
    """Send a model to the executors through Spark; return its description, with which a task loads it.

    With `layers`, its outputs there are those of these layers.
    """
    return DistributedModel(SENT.send(spark, _name(bundle), bundle.data), replace(bundle, data=b"", layers={}), layers)


def _name(bundle: ModelBundle) -> str:
    return f"model-{bundle.digest}"
