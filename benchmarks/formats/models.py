"""Models of each kind that formats differ by: made with rows that they take."""

import keras
import numpy as np
from keras import layers

ROWS = 256


def dense():
    """Return two dense layers."""
    stack = [keras.Input((4,), name="x"), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]
    return keras.Sequential(stack), numbers(4)


def convolution():
    """Return a convolution with batch normalization and dropout."""
    stack = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()]
    stack += [layers.Dropout(0.5), layers.Flatten(), layers.Dense(3)]
    return keras.Sequential([keras.Input((12, 12, 1), name="image"), *stack]), numbers(12, 12, 1)


def lstm():
    """Return an LSTM over seven steps."""
    return keras.Sequential([keras.Input((7, 3)), layers.LSTM(8), layers.Dense(1)]), numbers(7, 3)


def transformer():
    """Return attention over tokens of any number."""
    ids = keras.Input((None,), dtype="int64", name="ids")
    inner = layers.Embedding(100, 16)(ids)
    inner = layers.LayerNormalization()(inner + layers.MultiHeadAttention(2, 8)(inner, inner))
    return keras.Model(ids, layers.Dense(2)(layers.GlobalAveragePooling1D()(inner))), ints(100, 6, dtype="int64")


def several():
    """Return two inputs and two outputs by name."""
    user, place = keras.Input((4,), name="user"), keras.Input((1,), dtype="int32", name="place")
    both = layers.Concatenate()([user, layers.Flatten()(layers.Embedding(10, 3)(place))])
    outputs = {"score": layers.Dense(1)(both), "classes": layers.Dense(4)(both)}
    rows = {"user": numbers(4), "place": ints(10, 1)}
    return keras.Model({"user": user, "place": place}, outputs), rows


def preprocessing():
    """Return a normalization of 300 values, which are constants of the model."""
    wide = layers.Normalization(mean=np.arange(300.0), variance=np.arange(1.0, 301.0))
    return keras.Sequential([keras.Input((300,)), wide, layers.Dense(2)]), numbers(300)


def text():
    """Return a lookup of texts."""
    lookup = layers.StringLookup(vocabulary=["a", "b", "c"])
    stack = [keras.Input((1,), dtype="string"), lookup, layers.Embedding(5, 3), layers.Flatten(), layers.Dense(1)]
    return keras.Sequential(stack), np.array([[each] for each in "abzc"] * (ROWS // 4))


def quantized():
    """Return the dense layers with weights of 8 bits."""
    model, rows = dense()
    model.quantize("int8")
    return model, rows


@keras.saving.register_keras_serializable("benchmarks")
class OwnCall(keras.Model):
    """A layer, called by a method of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Dense(3)

    def call(self, values):
        """Return what the layer gives."""
        return self.inner(values)


def own_call():
    """Return a class of models with a call of its own."""
    model, rows = OwnCall(), numbers(4)
    model(rows)
    return model, rows


def numbers(*shape):
    """Return rows of floats."""
    return np.random.default_rng(0).random((ROWS, *shape), np.float32)


def ints(limit, *shape, dtype="int32"):
    """Return rows of integers below a limit."""
    return np.random.default_rng(0).integers(0, limit, (ROWS, *shape)).astype(dtype)


MODELS = (dense, convolution, lstm, transformer, several, preprocessing, text, quantized, own_call)
