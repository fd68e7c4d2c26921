"""Large models whose weights the Python workers of an executor share: results, and what can go wrong."""

import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml import shared_weights
from tensorflowonspark.ml.calls import keras_call
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.model_bundle import described
from tensorflowonspark.ml.sent_models import SentModel
from tensorflowonspark.ml.serialization import load_model, serialize_model
from tests.support.programs import wait_for

pytestmark = [pytest.mark.timeout(240)]


def dense():
    model = keras.Sequential([keras.Input((20,)), layers.Dense(30, "relu"), layers.Dense(4, "softmax")])
    model.compile("adam", "mse")  # whose state is in the file, and is not read
    model.fit(np.ones((8, 20)), np.ones((8, 4)), verbose=0)
    return model, np.random.rand(8, 20).astype("float32")


def convolution():
    stack = [keras.Input((9, 9, 2)), layers.Conv2D(5, 3), layers.BatchNormalization(), layers.Flatten()]
    model = keras.Sequential([*stack, layers.Dropout(0.5), layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.random.rand(16, 9, 9, 2), np.ones((16, 2)), verbose=0)  # so that moving averages are none of the start
    return model, np.random.rand(3, 9, 9, 2).astype("float32")


def embedding():
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(50, 6), layers.LSTM(5)])
    return model, np.array([[1, 2, 49], [0, 3, 4]], "int32")


def int8():
    model = keras.Sequential([keras.Input((20,)), layers.Dense(30, "relu"), layers.Dense(4)])
    model.quantize("int8")
    return model, np.random.rand(8, 20).astype("float32")


def of_dtype(dtype):
    def make():
        policy = keras.DTypePolicy(dtype)
        model = keras.Sequential([keras.Input((20,), dtype="float32"), layers.Dense(30, dtype=policy)])
        return model, np.random.rand(8, 20).astype("float32")

    return make


@keras.saving.register_keras_serializable("shared")
class OwnState(layers.Layer):
    """A layer that saves one array for two variables, and changes what it reads."""

    def build(self, shape):
        self.first = self.add_weight(shape=(4, 4), initializer="random_normal")
        self.second = self.add_weight(shape=(4, 4), initializer="random_normal", trainable=False)
        self.built = True

    def call(self, values):
        return values @ self.first + values @ self.second

    def save_own_variables(self, store):
        store["both"] = np.concatenate([self.first.numpy(), self.second.numpy() / 2])

    def load_own_variables(self, store):
        both = store["both"]
        self.first.assign(both[:4])
        self.second.assign(both[4:] * 2)


@keras.saving.register_keras_serializable("shared")
class InPlace(layers.Dense):
    """A layer that writes to an array that it has read."""

    def __init__(self, units=3, **kwargs):
        super().__init__(units, **kwargs)

    def load_own_variables(self, store):
        kernel = store["0"]
        self.kernel.assign(kernel)
        kernel *= 2
        self.bias.assign(store["1"] + kernel[0])


@keras.saving.register_keras_serializable("shared")
class OfValues(layers.Layer):
    """A layer whose variable is made of an array."""

    def build(self, shape):
        self.scale = keras.Variable(np.arange(4.0, dtype="float32"))
        self.built = True

    def call(self, values):
        return values * self.scale


def with_layer(layer):
    def make():
        model = keras.Sequential([keras.Input((4,)), layer(), layers.Dense(3)])
        return model, np.random.rand(5, 4).astype("float32")

    return make


def preprocessing():
    numbers, words = keras.Input((3,), name="numbers"), keras.Input((), dtype="string", name="words")
    normal, lookup = layers.Normalization(), layers.StringLookup(vocabulary=["a", "b", "ü"])
    normal.adapt(np.random.rand(50, 3) * 7)
    both = layers.Concatenate()([normal(numbers), layers.Embedding(4, 3)(lookup(words))])
    model = keras.Model([numbers, words], layers.Dense(2)(both))
    return model, {"numbers": np.random.rand(4, 3).astype("float32"), "words": np.array(["a", "ü", "z", "b"], object)}


def shared_and_several():
    shared, one, two = layers.Dense(6, name="shared"), keras.Input((4,), name="one"), keras.Input((4,), name="two")
    first, second = shared(one), shared(shared(two)[:, :4])
    model = keras.Model([one, two], {"a": layers.Dense(2)(first), "b": layers.Dense(3)(second)})
    return model, {"one": np.random.rand(4, 4).astype("float32"), "two": np.random.rand(4, 4).astype("float32")}


def random_numbers():
    model = keras.Sequential([keras.Input((4, 4, 1)), layers.RandomContrast(0.5, seed=4), layers.Flatten()])
    model.add(layers.Dense(3))
    return model, np.random.rand(5, 4, 4, 1).astype("float32")


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """The executor's directory of this process, in which models of all sizes are shared."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    monkeypatch.setattr(shared_weights, "SHARED_BYTES", 0)
    monkeypatch.setattr(shared_weights, "_VIEWED_BYTES", 1)
    return tmp_path


def bundle_of(make):
    model, _ = make()
    return described(serialize_model(model), model)


def sent_in(directory, bundle, name="broadcast"):
    """Return a model as it is sent, in a file such as Spark's broadcast has."""
    file = directory.parent / f"{directory.name}-{name}-{bundle.digest}"
    file.write_bytes(pickle.dumps(bundle.data, 5))
    return SentModel(f"model-{bundle.digest}", SimpleNamespace(_path=str(file)))


def viewed(model):
    """Return how many variables of a model have their values in mapped pages."""
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if shared_weights._NAME in line]
    spans = [(int(start, 16), int(end, 16)) for start, end in spans]
    found = 0
    for each in model.variables:
        value = each.value.read_value() if hasattr(each.value, "read_value") else each.value
        address = np.asarray(value).ctypes.data
        found += any(start <= address < end for start, end in spans)
    return found


@pytest.mark.parametrize(
    ("make", "at_least"),
    [
        pytest.param(dense, 4, id="dense"),
        pytest.param(convolution, 8, id="convolution"),
        pytest.param(embedding, 4, id="embedding"),
        pytest.param(int8, 2, id="int8"),
        pytest.param(of_dtype("bfloat16"), 2, id="bfloat16"),
        pytest.param(of_dtype("mixed_float16"), 2, id="mixed"),
        pytest.param(of_dtype("float16"), 2, id="float16"),
        pytest.param(with_layer(OwnState), 2, id="own_state"),
        pytest.param(preprocessing, 3, id="preprocessing"),
        pytest.param(shared_and_several, 4, id="shared_and_several"),
        pytest.param(random_numbers, 2, id="random_numbers"),
    ],
)
def test_results_are_those_of_a_private_copy(make, at_least, executor, caplog):
    model, features = make()
    bundle = described(serialize_model(model), model)
    shared = shared_weights.load_shared(sent_in(executor, bundle), bundle)
    assert shared is not None, caplog.text
    assert not [each for each in caplog.records if each.name != "tensorflow"]  # which counts over the whole process
    for own, other in zip(model.variables, shared.variables, strict=True):
        if "seed_generator" not in own.path:  # whose states are in no file
            np.testing.assert_array_equal(own.numpy(), other.numpy(), err_msg=own.path)
    assert viewed(shared) >= at_least
    if not isinstance(features, dict):
        features = {bundle.inputs[0].name: features}
    for names in ((), tuple(bundle.layers)[-2:]):
        expected = load_call(bundle, names)(features)
        found = keras_call(shared, "keras", bundle.inputs, names)(features)
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(expected[name], found[name])


def left_in(directory):
    """Return the names of what shared models have left, without the lock and that of all shared models."""
    return sorted(
        each.name.removeprefix(shared_weights._NAME) for each in directory.iterdir() if "lock" not in each.name
    )


@pytest.mark.parametrize("layer", [InPlace, OfValues])
def test_a_layer_that_can_not_share_is_loaded_by_each_worker(layer, executor, caplog):
    bundle = bundle_of(with_layer(layer))
    assert shared_weights.load_shared(sent_in(executor, bundle), bundle) is None
    (record,) = caplog.records
    assert "this worker loads the model" in record.message
    model = load_model(bundle)  # nothing of the attempt is left
    assert len(model.get_weights()) >= 3


def test_a_keras_that_makes_variables_in_another_way_is_found_out(executor, caplog, monkeypatch):
    def initialize(variable):
        variable._initialize(np.zeros(variable.shape, variable.dtype))

    monkeypatch.setattr(keras.Variable, "_deferred_initialize", initialize)
    bundle = bundle_of(dense)
    assert shared_weights.load_shared(sent_in(executor, bundle), bundle) is None
    assert "without their values" in caplog.text


def test_an_update_of_a_variable_is_of_this_worker_alone(executor):
    bundle = bundle_of(dense)
    sent = sent_in(executor, bundle)
    first, second = (shared_weights.load_shared(sent, bundle) for _ in range(2))
    (weights,) = executor.glob("*/model.weights.h5")
    written = weights.read_bytes()
    for each in first.variables:
        each.value.assign_add(np.ones(each.shape, "float32"))
    assert weights.read_bytes() == written
    for one, two in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy() + 1)


def test_files_may_vanish(executor):
    """Pages that are mapped stay; the next worker writes the files again."""
    bundle = bundle_of(dense)
    sent = sent_in(executor, bundle)
    model = shared_weights.load_shared(sent, bundle)
    expected = model.get_weights()
    for each in executor.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    for one, two in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, two)
    assert shared_weights.load_shared(sent, bundle) is not None


def test_a_file_of_spark_connect(executor, monkeypatch):
    bundle = bundle_of(dense)
    file = executor.parent / f"{executor.name}-artifact"
    file.write_bytes(bundle.data)
    monkeypatch.setattr("pyspark.SparkFiles.get", lambda name: str(file))
    sent = SentModel("model-1")
    assert sent.read() == bundle.data
    assert viewed(shared_weights.load_shared(sent, bundle)) == 4


def test_models_that_spark_has_removed_go_with_the_next(executor):
    bundle, other = bundle_of(dense), bundle_of(embedding)
    sent, again = sent_in(executor, bundle), sent_in(executor, bundle, "again")
    for each in (sent, again):  # as those of a stream's micro-batches are
        assert shared_weights.load_shared(each, bundle) is not None
    assert left_in(executor) == [sent.name, f"{sent.name}.source"]
    sent.file().unlink()
    new = sent_in(executor, other)
    assert shared_weights.load_shared(new, other) is not None
    assert left_in(executor) == [new.name, f"{new.name}.source"]


@pytest.mark.parametrize("share", [0.5, 1.001])
def test_a_full_disk(share, executor, caplog):
    bundle = bundle_of(embedding)
    sent = sent_in(executor, bundle)
    with zipfile.ZipFile(BytesIO(bundle.data)) as archive:
        size = archive.getinfo("model.weights.h5").file_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size * share), before[1]))
    try:
        assert shared_weights.load_shared(sent, bundle) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (record,) = caplog.records
    assert "can't share the weights" in record.message
    assert left_in(executor) == []
    assert shared_weights.load_shared(sent, bundle) is not None  # a worker that finds space


def never_align(weights, aligned):
    aligned.write_bytes(b"half")
    multiprocessing.Event().wait()


def write_forever(file, directory):
    shared_weights._align = never_align
    shared_weights._unpacked(file, directory)


def test_a_worker_that_is_killed_while_it_writes(executor):
    bundle = bundle_of(dense)
    sent = sent_in(executor, bundle)
    directory = executor / f"{shared_weights._NAME}{sent.name}"
    worker = multiprocessing.get_context("fork").Process(target=write_forever, args=(sent.file(), directory))
    worker.start()
    wait_for(lambda: (executor / f"{shared_weights._NAME}partial" / "aligned").exists(), seconds=30)
    worker.kill()
    worker.join()
    assert shared_weights.load_shared(sent, bundle) is not None
    assert left_in(executor) == [sent.name, f"{sent.name}.source"]


def external_array(weights, secret):
    values = weights["layers/dense/vars"]
    shape, dtype = values["0"].shape, values["0"].dtype
    del values["0"]
    values.create_dataset("0", shape, dtype, external=[(str(secret), 0, shape[0] * shape[1] * 4)])


def external_link(weights, secret):
    del weights["layers"]
    weights["layers"] = h5py.ExternalLink(str(secret), "layers")


def nested_link(weights, secret):
    del weights["layers/dense"]
    weights["layers/dense"] = h5py.ExternalLink(str(secret), "layers")


@pytest.mark.parametrize("change", [external_array, external_link, nested_link])
def test_weights_in_other_files_are_refused_as_keras_does(change, executor, caplog):
    """A file of others' must not have an executor read what is there."""
    bundle, made = bundle_of(dense), BytesIO()
    secret = executor.parent / f"{executor.name}-secret"
    with zipfile.ZipFile(BytesIO(bundle.data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = BytesIO(old.read(name))
            if name.endswith(".h5"):
                secret.write_bytes(data.getvalue())
                with h5py.File(data, "r+") as weights:
                    change(weights, secret)
            new.writestr(name, data.getvalue())
    bundle = replace(bundle, data=made.getvalue(), distrusted=True)
    assert shared_weights.load_shared(sent_in(executor, bundle), bundle) is None
    assert len(caplog.records) == 1
    with pytest.raises(SpecError):
        load_model(bundle)


def test_a_compressed_file_is_not_shared(executor, caplog):
    bundle, made = bundle_of(dense), BytesIO()
    with zipfile.ZipFile(BytesIO(bundle.data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    bundle = replace(bundle, data=made.getvalue())
    assert shared_weights.load_shared(sent_in(executor, bundle), bundle) is None
    assert "compressed" in caplog.text
    assert load_model(bundle).count_params()


ON_JAX = """
import sys
from pathlib import Path
from tensorflowonspark.ml import shared_weights
shared_weights.SHARED_BYTES, shared_weights._VIEWED_BYTES = 0, 1
from tests.cluster.ml.test_shared_weights import *

for make, at_least in ((dense, 4), (convolution, 8), (int8, 2), (of_dtype("bfloat16"), 0)):
    model, features = make()
    bundle = described(serialize_model(model), model)
    shared = shared_weights.load_shared(sent_in(Path(sys.argv[1]), bundle), bundle)
    assert keras.backend.backend() == "jax"
    assert viewed(shared) >= at_least, (make, viewed(shared))
    for own, other in zip(load_model(bundle).get_weights(), shared.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(model.predict(features), shared.predict(features))
"""


@pytest.mark.slow
def test_on_jax(executor):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", ON_JAX, str(executor)], check=True, env=environment, timeout=200)
