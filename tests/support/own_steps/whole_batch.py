"""Losses and metrics of a batch as a whole, which no sum over workers gives: equal, or refused by name."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import line, network
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import linear_layers, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)


def _error(y, y_pred):
    return ops.reshape(y_pred, (-1,)) - ops.reshape(y, (-1,))


def root_of_mean(y, y_pred):
    return ops.sqrt(ops.mean(ops.square(_error(y, y_pred))) + 1e-6)


def dice(y, y_pred):
    """Dice over all pixels of a batch."""
    y, y_pred = ops.reshape(ops.cast(y > 0, "float32"), (-1,)), ops.reshape(ops.sigmoid(y_pred), (-1,))
    return 1 - (2 * ops.sum(y * y_pred) + 1) / (ops.sum(y) + ops.sum(y_pred) + 1)


def correlation(y, y_pred):
    """One less Pearson's correlation."""
    one, two = (ops.reshape(each, (-1,)) - ops.mean(each) for each in (y, y_pred))
    return 1 - ops.sum(one * two) / (ops.sqrt(ops.sum(one * one) * ops.sum(two * two)) + 1e-6)


def ranking(y, y_pred):
    """A loss of pairs of rows."""
    of_y, of_pred = (ops.reshape(each, (-1, 1)) - ops.reshape(each, (1, -1)) for each in (y, y_pred))
    return ops.mean(ops.relu(1 - ops.sign(of_y) * of_pred))


def explained(y, y_pred):
    """One less R²."""
    return ops.sum(ops.square(_error(y, y_pred))) / (ops.sum(ops.square(y - ops.mean(y))) + 1e-6)


def r_squared(y, y_pred):
    return 1 - explained(y, y_pred)


def covariance(y, y_pred):
    """What makes the outputs of a batch independent, as in Barlow Twins and VICReg."""
    centred = y_pred - ops.mean(y_pred, axis=0)
    found = ops.matmul(ops.transpose(centred), centred) / ops.cast(ops.shape(centred)[0], "float32")
    return ops.mean(ops.square(y_pred - y)) + ops.mean(ops.square(found - ops.eye(2)))


LOSSES = {
    "root_of_mean": root_of_mean,
    "dice": dice,
    "correlation": correlation,
    "ranking": ranking,
    "explained": explained,
}


def _both(name, loss):
    is_refused = loss is ranking  # on TensorFlow

    @program(f"compiled_{name}", on=BOTH, refused={TENSORFLOW: "ranking"} if is_refused else None)
    def compiled(place):
        return place.trained(line, place.dataset("x", "y"), loss)

    @program(f"step_{name}", refused="WholeBatch" if is_refused else None)
    def own(place):
        return train_stepping(place, stepping("WholeBatch", lambda x, y, p: loss(y, p)))


for _name, _loss in LOSSES.items():
    _both(_name, _loss)


def _computed(name, loss):
    @program(f"compute_loss_{name}", on=BOTH)
    def computed(place):
        class Computes(keras.Sequential):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return loss(y, y_pred)

        return place.trained(lambda: Computes(linear_layers()), place.dataset("x", "y"), None)


_computed("root_of_mean", root_of_mean)
_computed("dice", dice)


@program("compiled_covariance", on=BOTH)
def compiled_covariance(place):
    return place.trained(lambda: line(2), place.dataset("x", "pair"), covariance)


def _keras(name, loss):
    @program(f"compiled_keras_{name}", on=BOTH, refused={TENSORFLOW: name} if name == "Circle" else None)
    def run(place):
        def labelled(x, y, w):
            return x, (tf.one_hot(tf.cast(y, tf.int32), 3) if name != "Circle" else y), w

        def build():
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])

        return place.trained(build, place.dataset("x", "class").map(labelled), loss())


_keras("Dice", keras.losses.Dice)
_keras("Tversky", keras.losses.Tversky)
_keras("Circle", keras.losses.Circle)


@program("add_loss_balance_of_experts", on=BOTH)
def experts(place):
    """A mixture of experts: the product of the share of rows of each expert and of its mean probability."""

    class Experts(keras.layers.Layer):
        def build(self, shape):
            self.gate = self.add_weight((shape[-1], 3), "glorot_uniform", name="gate")
            self.experts = self.add_weight((3, shape[-1]), "glorot_uniform", name="experts")

        def call(self, x):
            gates = ops.softmax(ops.matmul(x, self.gate))
            chosen = ops.one_hot(ops.argmax(gates, axis=-1), 3)
            self.add_loss(0.3 * 3 * ops.sum(ops.mean(chosen, axis=0) * ops.mean(gates, axis=0)))
            return ops.sum(gates * ops.matmul(x, ops.transpose(self.experts)), axis=-1, keepdims=True)

    return place.trained(lambda: keras.Sequential([keras.Input((4,)), Experts()]), place.dataset("x", "y"))


def _metric(name, function):
    @program(f"metric_{name}", on=BOTH, refused={TENSORFLOW: name} if name == "largest_error" else None)
    def run(place):
        return place.trained(network, place.dataset("x", "y"), "mse", metrics=[function])


def largest_error(y, y_pred):
    return ops.max(ops.abs(_error(y, y_pred)))


_metric("root_of_mean", root_of_mean)
_metric("r_squared", r_squared)
_metric("largest_error", largest_error)


def mean_error(y, y_pred):
    """A metric that is a mean over rows, and one number: each step counts alike, in one process too."""
    return ops.mean(ops.abs(_error(y, y_pred)))


def number_of_rows(y, y_pred):
    return ops.cast(ops.shape(y)[0], "float32")


_metric("mean_error", mean_error)
_metric("number_of_rows", number_of_rows)


@program("metric_of_rows", on=BOTH)
def metric_of_rows(place):
    """A metric that gives a number for each row is a mean over rows."""

    def error(y, y_pred):
        return ops.abs(_error(y, y_pred))

    return place.trained(network, place.dataset("x", "y"), "mse", metrics=[error])


@program("metric_of_weighted_rows", on=BOTH)
def metric_of_weighted_rows(place):
    def error(y, y_pred):
        return ops.abs(_error(y, y_pred))

    return place.trained(network, place.dataset("x", "y", "w"), "mse", weighted_metrics=[error, "mae"])


class Deviation(keras.layers.Layer):
    """Adds the mean deviation of a batch to each row, as discriminators of GANs do."""

    def call(self, x):
        deviation = ops.mean(ops.sqrt(ops.mean(ops.square(x - ops.mean(x, axis=0)), axis=0) + 1e-6))
        return ops.concatenate([x, ops.zeros_like(x[:, :1]) + deviation], axis=-1)


class Whitened(keras.layers.Layer):
    """Takes the mean of a batch from its rows."""

    def call(self, x):
        return (x - ops.mean(x, axis=0)) / (ops.std(x, axis=0) + 0.1)


class Neighbours(keras.layers.Layer):
    """Adds the mean distance to all rows of the batch."""

    def call(self, x):
        distances = ops.mean(ops.abs(ops.expand_dims(x, 0) - ops.expand_dims(x, 1)), axis=(1, 2))
        return ops.concatenate([x, ops.expand_dims(distances, -1)], axis=-1)


class Scaled(keras.layers.Layer):
    """Divides by the largest value of a batch."""

    def call(self, x):
        return x / (ops.max(ops.abs(x)) + 0.1)


def _of_layer(kind, *, is_refused=False):
    @program(
        f"layer_{kind.__name__.lower()}", on=BOTH, refused={TENSORFLOW: kind.__name__.lower()} if is_refused else None
    )
    def run(place):
        def build():
            return keras.Sequential([*linear_layers(3), kind(), keras.layers.Dense(1)])

        return place.trained(build, place.dataset("x", "y"), metrics=["mae"])


_of_layer(Deviation)
_of_layer(Whitened)
_of_layer(Neighbours, is_refused=True)
_of_layer(Scaled, is_refused=True)


@program("layer_of_operations", on=BOTH)
def of_operations(place):
    """A model of operations between layers, which are none of them."""

    def build():
        x = inputs = keras.Input((4,))
        x = keras.layers.Dense(3)(x)
        return keras.Model(inputs, keras.layers.Dense(1)(x - ops.mean(x, axis=0)))

    return place.trained(build, place.dataset("x", "y"))


@program("layer_of_operations_last", on=BOTH)
def of_operations_last(place):
    def build():
        x = inputs = keras.Input((4,))
        x = keras.layers.Dense(1)(x)
        return keras.Model(inputs, x - 0.5 * ops.mean(x, axis=0))

    return place.trained(build, place.dataset("x", "y"))


@program("layer_of_operations_own_step")
def of_operations_own_step(place):
    return train_stepping(place, stepping("Steps"), lambda: [*linear_layers(3), Whitened(), keras.layers.Dense(1)])
