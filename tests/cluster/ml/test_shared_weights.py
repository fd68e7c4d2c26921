"""Large models whose weights the Python workers of an executor share: results, memory, and what can go wrong."""

import pickle
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

from tensorflowonspark.ml import shared_weights
from tensorflowonspark.ml.calls import keras_call
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.sent_models import SentModel
from tensorflowonspark.ml.model_bundle import described
from tensorflowonspark.ml.serialization import serialize_model

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


def sent_in(directory, bundle):
    """Return a model as it is sent, in a file such as Spark's broadcast has."""
    file = directory.parent / f"broadcast-{bundle.digest}"
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
    assert not caplog.records
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
