"""Models in the formats of other libraries: equal results in their own runtimes, or refused by name."""

import keras
import numpy as np
import pytest
from keras import layers

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import FORMATS
from tensorflowonspark.exports.parity import apply
from tensorflowonspark.exports.served_model import ServedModel
from tensorflowonspark.exports.writing import Comparison, write_as

pytestmark = pytest.mark.timeout(120)
ROWS = 5


def dense():
    stack = [keras.Input((4,), name="x"), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]
    return keras.Sequential(stack), numbers(4)


def convolution():
    stack = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()]
    stack += [layers.Dropout(0.5), layers.Flatten(), layers.Dense(3)]
    return keras.Sequential([keras.Input((12, 12, 1), name="image"), *stack]), numbers(12, 12, 1)


def lstm():
    return keras.Sequential([keras.Input((7, 3)), layers.LSTM(8), layers.Dense(1)]), numbers(7, 3)


def transformer():
    ids = keras.Input((None,), dtype="int64", name="ids")
    inner = layers.Embedding(100, 16)(ids)
    inner = layers.LayerNormalization()(inner + layers.MultiHeadAttention(2, 8)(inner, inner))
    return keras.Model(ids, layers.Dense(2)(layers.GlobalAveragePooling1D()(inner))), ints(100, 6, dtype="int64")


def several():
    user, place = keras.Input((4,), name="user"), keras.Input((1,), dtype="int32", name="place")
    both = layers.Concatenate()([user, layers.Flatten()(layers.Embedding(10, 3)(place))])
    outputs = {"score": layers.Dense(1)(both), "classes": layers.Dense(4)(both)}
    rows = {"user": numbers(4), "place": ints(10, 1)}
    return keras.Model({"user": user, "place": place}, outputs), rows


def preprocessing():
    wide = layers.Normalization(mean=np.arange(300.0), variance=np.arange(1.0, 301.0))
    return keras.Sequential([keras.Input((300,)), wide, layers.Dense(2)]), numbers(300)


def text():
    lookup = layers.StringLookup(vocabulary=["a", "b", "c"])
    stack = [keras.Input((1,), dtype="string"), lookup, layers.Embedding(5, 3), layers.Flatten(), layers.Dense(1)]
    return keras.Sequential(stack), np.array([["a"], ["b"], ["z"], ["c"], [""]])


def quantized():
    model, rows = dense()
    model.quantize("int8")
    return model, rows


@keras.saving.register_keras_serializable("tests")
class OwnCall(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Dense(3)

    def call(self, values):
        return self.inner(values)


def own_call():
    model, rows = OwnCall(), numbers(4)
    model(rows)
    return model, rows


def numbers(*shape):
    return np.random.default_rng(0).random((ROWS, *shape), np.float32)


def ints(limit, *shape, dtype="int32"):
    return np.random.default_rng(0).integers(0, limit, (ROWS, *shape)).astype(dtype)


MODELS = (dense, convolution, lstm, transformer, several, preprocessing, text, quantized, own_call)
# What can't be is refused: by the converter, by its runtime, or since it gives other results.
REFUSED = {
    ("lstm", "litert"): "ai_edge_litert can't apply what was exported (RuntimeError: Select TensorFlow op",
    ("text", "onnx"): "can't express this model (SpecError: its graph takes",
    ("text", "openvino"): "the format 'openvino' can't express this model (OpConversionFailure",
    ("quantized", "litert"): "the format 'litert' can't express this model (ConverterError",
    ("quantized", "openvino"): "differs from the model: row",
}


@pytest.mark.parametrize("to", [name for name, each in FORMATS.items() if each.is_converted])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_kind_of_model(tmp_path, make, to):
    keras.utils.set_random_seed(1)
    model, rows = make()
    path = str(tmp_path / f"model{FORMATS[to].ending}")
    write = write_as(FORMATS[to], Comparison(rows, True, 1e-3))
    if (make.__name__, to) in REFUSED:
        with pytest.raises(SpecError) as raised:
            write(model, path)
        assert REFUSED[make.__name__, to] in str(raised.value)
        return
    write(model, path)
    served = ServedModel(model, rows=rows)
    found = apply(path, FORMATS[to], served.row_values())
    for name, values in served.results().items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)
