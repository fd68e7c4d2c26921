"""Losses: all of Keras's, each trained as an output of its own and evaluated on rows that fill up."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.keras_table.cells import SYNCHRONOUS, cell, on
from tests.support.keras_table.columns import MULTI_WORKER, SEVERAL_WORKERS
from tests.support.keras_table.training import linear, mapped, trained, weights_of

_BATCHWISE = (
    "Keras computes this loss from a batch as a whole, of which each worker has its own part: the loss of the whole "
    "does not follow from theirs."
)


def _probabilities(x, y):
    return x, tf.nn.softmax(x[:, :3] * 2.0)


def _one_hot(x, y):
    return x, tf.one_hot(tf.argmax(x[:, :3], axis=1), 3)


def _class(x, y):
    return x, tf.argmax(x[:, :3], axis=1)


def _binary(x, y):
    return x, tf.cast(y > 0.5, tf.float32)[:, None]


def _signs(x, y):
    return x, tf.where(y > 0.5, 1.0, -1.0)[:, None]


def _positive(x, y):
    return x, tf.abs(y)[:, None] + 0.1


def _plain(x, y):
    return x, tf.stack([y, y * 2, y - 1], axis=1)


LOSSES = {  # what the labels are, and the model's units and last activation
    "BinaryCrossentropy": (_binary, 1, "sigmoid"),
    "BinaryFocalCrossentropy": (_binary, 1, "sigmoid"),
    "CategoricalCrossentropy": (_one_hot, 3, "softmax"),
    "CategoricalFocalCrossentropy": (_one_hot, 3, "softmax"),
    "CategoricalGeneralizedCrossEntropy": (_class, 3, "softmax"),
    "CategoricalHinge": (_one_hot, 3, "tanh"),
    "CosineSimilarity": (_plain, 3, None),
    "Hinge": (_signs, 1, "tanh"),
    "Huber": (_plain, 3, None),
    "KLDivergence": (_probabilities, 3, "softmax"),
    "LogCosh": (_plain, 3, None),
    "MeanAbsoluteError": (_plain, 3, None),
    "MeanAbsolutePercentageError": (_positive, 1, None),
    "MeanSquaredError": (_plain, 3, None),
    "MeanSquaredLogarithmicError": (_positive, 1, "softplus"),
    "Poisson": (_positive, 1, "softplus"),
    "SparseCategoricalCrossentropy": (_class, 3, "softmax"),
    "SquaredHinge": (_signs, 1, "tanh"),
}


def trained_with(column, loss, labels, units, activation, evaluate=True):
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation=activation)])

    with column.scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.05), loss)
    history = model.fit(mapped(column, labels), epochs=2, verbose=0).history
    result = {"weights": weights_of(model), "history": history}
    if evaluate:
        rows = column.uneven().map(lambda x, y, w: (*labels(x, y), w))
        result["evaluated"] = model.evaluate(rows, verbose=0)
    return result


@cell("Losses", *LOSSES)
def loss(column, name):
    return trained_with(column, getattr(keras.losses, name)(), *LOSSES[name])


BATCHWISE = {
    "Circle": (_class, 3, None),
    "Dice": (_one_hot, 3, "sigmoid"),
    "Tversky": (_one_hot, 3, "sigmoid"),
}


@cell("Losses", "Circle", refused=on(MULTI_WORKER, "is not seen to be a function of means"), because=_BATCHWISE)
def circle(column):
    return batchwise(column, "Circle")


@cell("Losses", "Dice", "Tversky")
def batchwise(column, name):
    return trained_with(column, getattr(keras.losses, name)(), *BATCHWISE[name], evaluate=False)


@cell("Losses", "CTC")
def ctc(column):
    def change(x, y):
        return x, tf.stack([tf.argmax(x[:, :2], axis=1) + 1, tf.argmax(x[:, 2:], axis=1) + 1], axis=1)

    with column.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6 * 3), keras.layers.Reshape((6, 3))],
        )
        model.compile(keras.optimizers.SGD(0.05), keras.losses.CTC())
    history = model.fit(mapped(column, change), epochs=2, verbose=0).history
    return {"weights": weights_of(model), "history": history}


@cell("Losses", "a function of one's own")
def function(column):
    def cubed(truth, prediction):
        return keras.ops.mean(keras.ops.abs(keras.ops.reshape(truth - prediction, (-1, 1))) ** 3, axis=-1)

    return trained(column, loss=cubed)


@cell("Losses", "a function of one's own that returns one number for the batch")
def scalar_function(column):
    def total(truth, prediction):
        return keras.ops.mean((truth - prediction) ** 2)

    return trained(column, loss=total)


@cell("Losses", "a class of one's own")
def own_class(column):
    class Quartic(keras.losses.Loss):
        def call(self, truth, prediction):
            return keras.ops.mean((keras.ops.reshape(truth, (-1, 1)) - prediction) ** 4, axis=-1)

    return trained(column, loss=Quartic(), optimizer=keras.optimizers.SGD(0.002))


@cell("Losses", "as a string")
def named(column):
    return trained(column, loss="mean_absolute_error")


@cell("Losses", "reduction='sum'")
def summed(column):
    return trained(column, loss=keras.losses.MeanSquaredError(reduction="sum"), optimizer=keras.optimizers.SGD(0.002))


@cell("Losses", "reduction='none'", columns=SYNCHRONOUS)
def unreduced(column):
    return trained(column, loss=keras.losses.MeanSquaredError(reduction="none"))


@cell("Losses", "reduction='mean_with_sample_weight'")
def by_weight(column):
    data = column.even().map(lambda x, y, w: (x, y, w * tf.abs(x[:, 0])))
    return trained(column, loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), data=data)


@cell("Losses", "of time steps behind a mask", columns=SYNCHRONOUS)
def masked(column):
    def change(x, y, w):
        tokens = tf.where(x > 0.3, x, 0.0)[..., None]  # of each row another number
        return tokens, tokens * 2.0, w[:, None]

    def build():
        return keras.Sequential([keras.Input((4, 1)), keras.layers.Masking(), keras.layers.Dense(1)])

    return trained(column, build, data=column.even().map(change))


@cell("Losses", "add_loss in a layer")
def added(column):
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
            return x

    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Adds(), keras.layers.Dense(1)])

    return trained(column, build)


REGULARIZED = {
    "weights' regularizers": lambda: keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.1)),
    "an activity regularizer": lambda: keras.layers.Dense(3, activity_regularizer="l2"),
}


def regularized(column, name):
    return trained(column, lambda: keras.Sequential([keras.Input((4,)), REGULARIZED[name](), keras.layers.Dense(1)]))


cell("Losses", "weights' regularizers")(lambda column: regularized(column, "weights' regularizers"))
cell("Losses", "an activity regularizer")(lambda column: regularized(column, "an activity regularizer"))


@cell("Losses", "compute_loss of a model's own")
def computed(column):
    class Own(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.abs(keras.ops.reshape(y, (-1, 1)) - y_pred))

    return trained(column, lambda: Own([keras.Input((4,)), keras.layers.Dense(1)]), loss=None)


@cell("Losses", "fit on rows that fill up", columns=SEVERAL_WORKERS)
def padding(column):
    return trained(column, data=column.filled_up(), optimizer=lambda: keras.optimizers.Adam(0.02))


@cell("Losses", "fit on rows that fill up: weighted_metrics", columns=SEVERAL_WORKERS)
def padding_metrics(column):
    result = trained(column, data=column.filled_up(), weighted_metrics=["mae", "mse"])
    return {"weights": result["weights"], **{name: result["history"][name] for name in ("mae", "mse")}}


@cell("Losses", "class_weight")
def class_weight(column):
    return _class_weighted(column, mapped(column, _class))


@cell("Losses", "class_weight beside weights of the rows")
def class_weight_and_weights(column):
    return _class_weighted(
        column, column.even().map(lambda x, y, w: (x, _class(x, y)[1], w * tf.abs(x[:, 0]))), own=True
    )


def _class_weighted(column, data, own=False):
    if column.ctx is None:  # plain Keras takes class weights or sample weights, and multiplies nothing
        classes = np.array([2.0, 1.0, 0.5], "f4")
        weights = {"class": lambda y: _gather(classes, y)}["class"]
        data = data.map(lambda x, y, w: (x, y, w * weights(y)))
        extra = {}
    else:
        extra = {"class_weight": {0: 2.0, 1: 1.0, 2: 0.5}}
    with column.scope():
        model = linear(3)
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=["accuracy"],
        )
    history = model.fit(data, epochs=2, verbose=0, **extra).history
    return {"weights": weights_of(model), "history": history}


def _gather(values, places):
    return tf.gather(tf.constant(values), places)


@cell("Losses", "weights of the rows")
def weighted(column):
    data = column.even().map(lambda x, y, w: (x, y, w * tf.abs(x[:, 0])))
    return trained(column, data=data, weighted_metrics=["mae"], metrics=["mse"])
