"""Padding, and weights of rows that look like it, or that a map leaves out."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import line, normalization
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, linear_layers, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)


@program("weights_of_minus_zero", on=BOTH)
def minus_zero(place):
    """w = -log p, which is -0.0 where p is 1."""
    data = place.dataset(["x", "log_p"], "y")
    data = data.map(lambda x, y, w: (x["x"], y, w * -x["log_p"]))
    return place.trained(line, data, "mse", metrics=["mae"], weighted_metrics=["mse"])


@program("weights_of_minus_zero_alone", on=BOTH)
def minus_zero_alone(place):
    """The same, in place of the weights that mark padding."""
    data = place.dataset(["x", "log_p"], "y")
    data = data.map(lambda x, y, w: (x["x"], y, -x["log_p"]))
    return place.trained(line, data, "mse", metrics=["mae"])


@program("weights_left_out", on=BOTH, refused={JAX: "weights"})
def left_out(place):
    """A map that leaves out the weights, as autoencoders have it."""
    data = place.dataset("x", "y").map(lambda x, y, w: (x, x))
    return place.trained(lambda: line(4), data, "mse", metrics=["mae"])


@program("weights_left_out_own_step")
def left_out_own_step(place):
    class Encodes(Stepping):
        def train_step(self, data):
            return super().train_step((data, data, None))

        def loss_of(self, x, y, y_pred):
            return ops.mean(ops.square(y_pred - y))

    data = place.dataset("x", "y").map(lambda x, y, w: x)
    return place.trained(lambda: Encodes(linear_layers(4)), data, None)


@program("weights_in_a_dict")
def in_a_dict(place):
    """A feed without a label: a step of one's own takes a dict."""

    class Takes(Stepping):
        def train_step(self, data):
            return super().train_step((data["x"], data["y"], None))

    return place.trained(lambda: Takes(linear_layers()), place.dataset(["x", "y"]), None)


@program("weights_of_float64")
def wide_weights(place):
    data = place.dataset("x", "y", "w").map(lambda x, y, w: (x, y, tf.cast(w, tf.float64)))
    return place.trained(line, data, "mse", weighted_metrics=["mae"])


@program("weights_clipped", on=BOTH)
def clipped_weights(place):
    """A map that makes the weights of rows at least 0.1 gives padding a weight as well."""
    data = place.dataset("x", "y", "w").map(lambda x, y, w: (x, y, tf.maximum(w, 0.1)))
    return place.trained(line, data, "mse", weighted_metrics=["mae"])


@program("rows_turned_by_a_map", on=BOTH)
def turned(place):
    """A map that puts the rows of a batch into another order, padding first."""
    data = place.dataset("x", "y").map(lambda *parts: tuple(each[::-1] for each in parts))
    return place.trained(line, data, "mse", metrics=["mae"])


@program("fixed_batches", on=BOTH)
def fixed_batches(place):
    """A model whose input has a batch_size, which Keras asks of layers that keep a state for each row alone."""
    return place.trained(lambda: keras.Sequential(_fixed_layers(place)), place.dataset("x", "y"), metrics=["mae"])


@program("fixed_batches_own_step")
def fixed_batches_own_step(place):
    return train_stepping(place, Stepping, lambda: _fixed_layers(place))


@program("fixed_batches_one_number")
def fixed_batches_one_number(place):
    """The same with a loss that returns one number, and statistics of the rows."""

    def loss(y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred))

    def build():
        first, last = _fixed_layers(place)
        return keras.Sequential([first, normalization(), last])

    return place.trained(build, place.dataset("x", "y"), loss)


def _fixed_layers(place):
    size = place.rows if keras.backend.backend() == JAX else place.rows // place.workers
    return [keras.Input((4,), batch_size=None if place.alone else size), keras.layers.Dense(1)]
