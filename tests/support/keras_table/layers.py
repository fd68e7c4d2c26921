"""Layers that keep a state, or draw numbers, or act on training and not on inference."""

import keras
import tensorflow as tf

from tests.support.keras_table.cells import cell, on
from tests.support.keras_table.columns import MULTI_WORKER, SEVERAL_WORKERS
from tests.support.keras_table.training import trained, weights_of

_STATISTICS = (
    "Keras normalizes with the statistics of each replica's part of a batch. BatchNormalization(synchronized=True) "
    "takes those of the whole batch, and is equal to one process."
)
_DRAWN = (
    "Each replica draws numbers of its own, as many processes must: equal in distribution, not in value. The weights "
    "are equal on all workers."
)

DETERMINISTIC = {
    "BatchNormalization, synchronized=True": lambda: keras.layers.BatchNormalization(synchronized=True),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
    "LayerNormalization": lambda: keras.layers.LayerNormalization(),
    "RMSNormalization": lambda: keras.layers.RMSNormalization(),
    "SpectralNormalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
    "UnitNormalization": lambda: keras.layers.UnitNormalization(),
    "Normalization with its mean and variance": lambda: keras.layers.Normalization(mean=0.5, variance=2.0),
    "PReLU": lambda: keras.layers.PReLU(),
    "EinsumDense": lambda: keras.layers.EinsumDense("ab,bc->ac", 4, bias_axes="c"),
    "Dense with constraints": lambda: keras.layers.Dense(
        4, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint="non_neg"
    ),
}
DRAWING = {
    "Dropout": lambda: keras.layers.Dropout(0.5, seed=3),
    "GaussianDropout": lambda: keras.layers.GaussianDropout(0.5, seed=3),
    "GaussianNoise": lambda: keras.layers.GaussianNoise(0.5, seed=3),
    "AlphaDropout": lambda: keras.layers.AlphaDropout(0.5, seed=3),
}
RECURRENT = {
    "LSTM": lambda **options: keras.layers.LSTM(3, **options),
    "GRU": lambda **options: keras.layers.GRU(3, **options),
    "SimpleRNN": lambda **options: keras.layers.SimpleRNN(3, **options),
    "Bidirectional": lambda **options: keras.layers.Bidirectional(keras.layers.LSTM(3, **options)),
    "RNN of cells": lambda **options: keras.layers.RNN([keras.layers.LSTMCell(3), keras.layers.GRUCell(2)], **options),
}
IMAGES = {
    "Conv2D, pooling": lambda: [keras.layers.Conv2D(2, 2, padding="same"), keras.layers.MaxPooling2D(2)],
    "SeparableConv2D, DepthwiseConv2D": lambda: [
        keras.layers.SeparableConv2D(2, 2, padding="same"),
        keras.layers.DepthwiseConv2D(2, padding="same"),
    ],
    "Conv2DTranspose, UpSampling2D": lambda: [keras.layers.Conv2DTranspose(2, 2), keras.layers.UpSampling2D()],
}


def _model(*layers):
    return lambda: keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(4), *[layer() for layer in layers], keras.layers.Dense(1)]
    )


def _sequence(*layers):
    return lambda: keras.Sequential(
        [keras.Input((4,)), keras.layers.Reshape((4, 1)), *[layer() for layer in layers], keras.layers.Dense(1)]
    )


def _image(layers):
    return lambda: keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Reshape((2, 2, 1)),
            *layers(),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


@cell("Layers", *DETERMINISTIC)
def deterministic(column, name):
    return trained(column, _model(DETERMINISTIC[name]))


@cell("Layers", "BatchNormalization", different=on(MULTI_WORKER, _STATISTICS))
def batch_normalization(column):
    return trained(column, _model(keras.layers.BatchNormalization))


@cell("Layers", "BatchNormalization, frozen")
def frozen_normalization(column):
    def build():
        model = _model(keras.layers.BatchNormalization)()
        model.layers[1].trainable = False
        return model

    return trained(column, build)


@cell("Layers", "BatchNormalization, synchronized=True, on rows that fill up", columns=SEVERAL_WORKERS)
def padded_normalization(column):
    layer = DETERMINISTIC["BatchNormalization, synchronized=True"]
    return trained(column, _model(layer), data=column.filled_up())["weights"]


@cell("Layers", *DRAWING, different=on(MULTI_WORKER, _DRAWN))
def drawing(column, name):
    return trained(column, _model(DRAWING[name]))


@cell("Layers", "SpatialDropout1D", different=on(MULTI_WORKER, _DRAWN))
def spatial(column):
    return trained(column, _sequence(lambda: keras.layers.SpatialDropout1D(0.5, seed=3), keras.layers.Flatten))


@cell("Layers", "Dropout: predict, evaluate and the seed's state")
def dropout_inference(column):
    """What does not train: equal, though the layer draws numbers while it trains."""
    with column.scope():
        model = _model(DRAWING["Dropout"])()
        model.compile("sgd", "mse")
    return [model.predict(column.x, verbose=0), model.evaluate(column.uneven(), verbose=0)]


@cell("Layers", *RECURRENT)
def recurrent(column, name):
    return trained(column, _sequence(RECURRENT[name]))


@cell("Layers", "LSTM, stateful=True")
def stateful(column):
    size = 8 if column.name == MULTI_WORKER else 16

    def build():
        return keras.Sequential(
            [
                keras.Input((4,), batch_size=size),
                keras.layers.Reshape((4, 1)),
                keras.layers.LSTM(3, stateful=True),
                keras.layers.Dense(1),
            ]
        )

    return trained(column, build, data=column.even().take(2), epochs=1)


@cell("Layers", "TimeDistributed, Masking, RepeatVector")
def time(column):
    return trained(
        column,
        _sequence(
            lambda: keras.layers.Masking(0.0),
            lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
            lambda: keras.layers.LSTM(2),
            lambda: keras.layers.RepeatVector(2),
            keras.layers.Flatten,
        ),
    )


@cell("Layers", "ConvLSTM1D")
def convolutional_memory(column):
    return trained(column, _image(lambda: [keras.layers.ConvLSTM1D(2, 2, padding="same")]))


@cell("Layers", "MultiHeadAttention, Attention, Embedding")
def attention(column):
    def build():
        inputs = keras.Input((4,))
        tokens = keras.layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(inputs)
        embedded = keras.layers.Embedding(4, 4)(tokens)
        attended = keras.layers.MultiHeadAttention(2, 2)(embedded, embedded)
        again = keras.layers.Attention()([attended, embedded])
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(again)))

    return trained(column, build)


@cell("Layers", *IMAGES)
def images(column, name):
    return trained(column, _image(IMAGES[name]))


@cell("Layers", "StringLookup, IntegerLookup, Hashing, CategoryEncoding with a vocabulary")
def lookup(column):
    words = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    numbers = keras.layers.IntegerLookup(vocabulary=[0, 1, 2])
    hashed = keras.layers.Hashing(4)

    def change(x, y, w):
        text = tf.gather(["a", "b", "z"], tf.argmax(x[:, :3], axis=1))
        number = tf.argmax(x[:, 1:], axis=1)
        return tf.concat([words(text)[:, None], numbers(number)[:, None], hashed(text)[:, None]], 1), y, w

    def build():
        inputs = keras.Input((3,), dtype="int64")
        encoded = keras.layers.CategoryEncoding(8, "multi_hot")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(encoded))

    return trained(column, build, data=column.even().map(change))


@cell("Layers", "StringLookup and Normalization inside of the model")
def inside(column):
    def change(x, y, w):
        return {"text": tf.gather(["a", "b", "z"], tf.argmax(x[:, :3], axis=1))[:, None], "x": x}, y, w

    def build():
        text, x = keras.Input((1,), dtype="string", name="text"), keras.Input((4,), name="x")
        one_hot = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")(text)
        scaled = keras.layers.Normalization(mean=[0.1] * 4, variance=[2.0] * 4)(x)
        joined = keras.layers.Concatenate()([one_hot, scaled])
        return keras.Model({"text": text, "x": x}, keras.layers.Dense(1)(joined))

    return trained(column, build, data=column.even().map(change))


@cell("Layers", "TextVectorization with a vocabulary")
def text(column):
    made = keras.layers.TextVectorization(output_mode="multi_hot", vocabulary=["low", "high", "mid"])

    def change(x, y, w):
        parts = tf.gather(["low mid", "high", "mid other"], tf.argmax(x[:, :3], axis=1))
        return tf.cast(made(parts), tf.float32), y, w

    return trained(
        column, lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), data=column.even().map(change)
    )


@cell("Layers", "a counter of one's own that is not trained")
def counter(column):
    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="batches")

        def call(self, x, training=False):
            if training:
                self.rows.assign_add(1.0)
            return x

    return trained(column, _model(Counts))


@cell("Layers", "quantize, LoRA")
def lora(column):
    def build():
        model = _model(keras.layers.ReLU)()
        model.layers[0].enable_lora(2)
        return model

    return trained(column, build)


@cell("Layers", "augmentation: RandomFlip, RandomRotation", different=on(MULTI_WORKER, _DRAWN))
def augmentation(column):
    drawn = _image(lambda: [keras.layers.RandomFlip(seed=1), keras.layers.RandomRotation(0.4, seed=2)])
    return trained(column, drawn)


@cell("Layers", "augmentation: evaluate and predict")
def augmented_inference(column):
    with column.scope():
        model = _image(lambda: [keras.layers.RandomRotation(0.4, seed=2)])()
        model.compile("sgd", "mse")
    return [model.predict(column.x, verbose=0), model.evaluate(column.uneven(), verbose=0), weights_of(model)]


@cell("Layers", "Lambda")
def expression(column):
    return trained(column, _model(lambda: keras.layers.Lambda(lambda x: x * 2)))
