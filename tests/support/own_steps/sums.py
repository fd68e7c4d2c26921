"""What a loss is over its rows: a mean, a sum, both, or divided by what a program takes for their number."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import line, small_sgd
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, linear_layers, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)
SMALL = 0.005  # a rate for sums


def _error(y, y_pred):
    return ops.reshape(y_pred, (-1,)) - ops.reshape(y, (-1,))


def _rows(values):
    return ops.cast(ops.shape(values)[0], "float32")


def _own(name, loss, rate=0.05, refused=None):
    @program(f"step_{name}", refused=refused)
    def run(place):
        return train_stepping(place, stepping("OwnLoss", loss), optimizer=lambda: small_sgd(rate))


_own("mean", lambda x, y, p: ops.mean(ops.square(_error(y, p))))
_own("sum", lambda x, y, p: ops.sum(ops.square(_error(y, p))), SMALL)
_own("sum_divided_by_a_number", lambda x, y, p: ops.sum(ops.square(_error(y, p))) / 8.0)
_own("sum_divided_by_rows", lambda x, y, p: ops.sum(ops.square(_error(y, p))) / _rows(p))
_own("mean_of_squares_of_sums", lambda x, y, p: ops.mean(ops.square(ops.sum(x, axis=-1) * 0.3 - p[:, 0])))
_own("mean_of_means", lambda x, y, p: ops.mean(ops.mean(ops.square(p - x), axis=-1)))
_own("mean_of_keras_function", lambda x, y, p: ops.mean(keras.losses.mean_absolute_error(y[:, None], p)))
_own("keras_class", lambda x, y, p: keras.losses.Huber()(y[:, None], p))
_own("keras_class_and_mean", lambda x, y, p: keras.losses.Huber()(y[:, None], p) + ops.mean(ops.square(p)))
_own("keras_class_sum", lambda x, y, p: keras.losses.Huber(reduction="sum")(y[:, None], p), SMALL)
_own("row_losses", lambda x, y, p: ops.square(_error(y, p)), SMALL)  # whose gradient is that of their sum
_own("sum_and_mean", lambda x, y, p: 0.1 * ops.sum(ops.square(_error(y, p))) + ops.mean(ops.abs(p)), SMALL)
_own("exponential_of_mean", lambda x, y, p: ops.exp(ops.mean(ops.abs(_error(y, p)))), SMALL)
_own("logarithm_of_mean", lambda x, y, p: ops.log(ops.mean(ops.square(_error(y, p))) + 1.0), SMALL)
_own("ratio_of_sums", lambda x, y, p: ops.sum(ops.square(_error(y, p))) / ops.sum(ops.abs(y)))
_own("largest", lambda x, y, p: ops.max(ops.square(_error(y, p))), SMALL, "OwnLoss")
_own("median_like", lambda x, y, p: ops.mean(ops.sort(ops.square(_error(y, p)))[:2]), SMALL, "OwnLoss")
_own("variance", lambda x, y, p: ops.mean(ops.square(_error(y, p))) + ops.var(p), SMALL)


class Regularized(Stepping):
    """A sum or a mean, and a term without rows."""

    reduce = staticmethod(ops.mean)

    def loss_of(self, x, y, y_pred):
        return self.reduce(ops.square(_error(y, y_pred))) + 0.1 * ops.sum(ops.square(self.trainable_variables[0]))


class RegularizedSum(Regularized):
    """The sum, divided by a number of the program's."""

    reduce = staticmethod(lambda values: ops.sum(values) / 8.0)


@program("step_mean_and_regularizer")
def mean_regularized(place):
    return train_stepping(place, Regularized)


@program("step_sum_and_regularizer")
def sum_regularized(place):
    return train_stepping(place, RegularizedSum)


@program("step_mean_and_losses_of_layers")
def layer_losses(place):
    class Adds(Stepping):
        def loss_of(self, x, y, y_pred):
            return ops.mean(ops.square(_error(y, y_pred))) + sum(self.losses)

    def layers():
        return [keras.Input((4,)), keras.layers.Dense(1, kernel_regularizer="l2")]

    return train_stepping(place, Adds, layers)


@program("step_mean_and_activity_regularizer")
def activity(place):
    class Adds(Stepping):
        def loss_of(self, x, y, y_pred):
            return ops.mean(ops.square(_error(y, y_pred))) + sum(self.losses)

    def layers():
        return [keras.Input((4,)), keras.layers.Dense(1, activity_regularizer=keras.regularizers.L2(0.1))]

    return train_stepping(place, Adds, layers)


@program("step_loss_in_tf_function")
def in_function(place):
    """The loss is computed in a function of its own that TensorFlow traces."""

    @tf.function
    def loss(x, y, y_pred):
        return tf.reduce_mean(tf.square(y_pred[:, 0] - y))

    return train_stepping(place, stepping("Calls", loss))


@program("step_sum_in_tf_function")
def sum_in_function(place):
    @tf.function
    def loss(x, y, y_pred):
        return tf.reduce_sum(tf.square(y_pred[:, 0] - y))

    return train_stepping(place, stepping("Calls", loss), optimizer=lambda: small_sgd(SMALL))


@program("step_loss_in_compiled_function")
def in_compiled_function(place):
    """The loss is computed in a local function that XLA compiles."""

    @tf.function(jit_compile=True)
    def loss(x, y, y_pred):
        return tf.reduce_mean(tf.square(y_pred[:, 0] - y))

    return train_stepping(place, stepping("Compiles", loss))


@program("step_gradient_in_tf_function")
def gradient_in_function(place):
    """The gradient is computed in a function of its own, and clipped outside."""

    class Inner(Stepping):
        @tf.function
        def found(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y, self(x, training=True))
            return loss, tape.gradient(loss, self.trainable_variables)

        def train_step(self, data):
            x, y, _ = data
            loss, gradients = self.found(x, y)
            gradients = [tf.clip_by_value(each, -0.3, 0.3) for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Inner)


@program("step_run_eagerly", refused="Eager")
def eagerly(place):
    return train_stepping(place, stepping("Eager"), run_eagerly=True)


@program("step_sum_run_eagerly", refused="Eager")
def sum_eagerly(place):
    loss = stepping("Eager", lambda x, y, p: ops.sum(ops.square(_error(y, p))))
    return train_stepping(place, loss, optimizer=lambda: small_sgd(SMALL), run_eagerly=True)


@program("step_run_eagerly_with_python_numbers", refused="Eager")
def eager_numbers(place):
    """A step that is no graph may compute with numbers of Python."""

    class Eager(Stepping):
        def changed(self, gradients):
            largest = max(float(tf.reduce_max(tf.abs(each))) for each in gradients)
            return [each / max(1.0, largest) for each in gradients], {"largest": largest}

    return train_stepping(place, Eager, run_eagerly=True)


def time_and_rows(y, y_pred):
    """A loss of unknown numbers of time steps: the sum over time of the mean over rows."""
    return ops.sum(ops.mean(ops.square(y_pred - y), axis=0))


def _series_model(kind=keras.Sequential):
    return kind([keras.Input((None, 1)), keras.layers.Dense(1, kernel_initializer="ones")])


def _series(place):
    def cut(x, y, w):
        if keras.backend.backend() == "jax":  # where all shapes are known
            return x[..., None], 2 * x[..., None], w
        known = x[:, : tf.reduce_max(tf.where(tf.reduce_sum(tf.abs(x)) >= 0, 6, 0)), None]  # no graph knows how many
        return known, 2 * known, w

    return place.dataset("series", "chosen").map(cut)


@program("step_sum_over_time_of_means")
def sum_of_means(place):
    kind = stepping("TimeAndRows", lambda x, y, p: time_and_rows(y, p))
    return place.trained(lambda: _series_model(kind), _series(place), None)


@program("compiled_sum_over_time_of_means", on=BOTH)
def compiled_sum_of_means(place):
    return place.trained(_series_model, _series(place), time_and_rows)


@program("step_mean_over_time_of_sums")
def mean_of_sums(place):
    kind = stepping("TimeAndRows", lambda x, y, p: ops.mean(ops.sum(ops.square(p - y), axis=0)))
    return place.trained(lambda: _series_model(kind), _series(place), None, lambda: small_sgd(SMALL))


def mean_of_batch(y, y_pred):
    return ops.mean(ops.square(_error(y, y_pred)))


def sum_of_batch(y, y_pred):
    return ops.sum(ops.square(_error(y, y_pred)))


class ReturnsMean(keras.losses.Loss):
    """A loss whose ``__call__`` is its own, and which returns the mean of a batch."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.mean(ops.square(_error(y_true, y_pred)))


class ReturnsSum(keras.losses.Loss):
    """A loss whose ``__call__`` is its own, and which returns the sum of a batch."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.sum(ops.square(_error(y_true, y_pred)))


class ReturnsScalar(keras.losses.Loss):
    """A loss whose ``call`` returns the mean of a batch."""

    def call(self, y_true, y_pred):
        return ops.mean(ops.square(_error(y_true, y_pred)))


class ReturnsWeighted(keras.losses.Loss):
    """A loss whose ``__call__`` multiplies with the weights of rows, and returns the mean."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        values = ops.square(_error(y_true, y_pred))
        return ops.mean(values if sample_weight is None else values * sample_weight)


def _compiled(name, loss, rate=0.05):
    @program(f"compiled_{name}", on=BOTH)
    def run(place):
        return place.trained(line, place.dataset("x", "y"), loss, lambda: small_sgd(rate))


_compiled("mean_of_batch", mean_of_batch)
_compiled("sum_of_batch", sum_of_batch, SMALL)
_compiled("call_of_loss_mean", ReturnsMean())
_compiled("call_of_loss_sum", ReturnsSum(), SMALL)
_compiled("call_of_loss_weighted", ReturnsWeighted())
_compiled("loss_returns_scalar", ReturnsScalar())
_compiled("values_of_rows", lambda y, p: ops.square(_error(y, p)))


@program("compute_loss_mean", on=BOTH)
def compute_mean(place):
    class OwnLoss(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.abs(_error(y, y_pred)))

    return place.trained(lambda: OwnLoss(linear_layers()), place.dataset("x", "y"), None)


@program("compute_loss_sum", on=BOTH)
def compute_sum(place):
    class OwnLoss(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.sum(ops.square(_error(y, y_pred)))

    data = place.dataset("x", "y")
    return place.trained(lambda: OwnLoss(linear_layers()), data, None, lambda: small_sgd(SMALL))


@program("compute_loss_of_rows_by_weights", on=BOTH)
def compute_weighted(place):
    """A loss of Keras with the weights of rows."""

    class OwnLoss(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.losses.MeanSquaredError()(y[:, None], y_pred, sample_weight=sample_weight)

    return place.trained(lambda: OwnLoss(linear_layers()), place.dataset("x", "y"), None)


@program("compute_loss_adds_to_keras", on=BOTH)
def compute_adds(place):
    class Adds(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.1 * ops.mean(ops.square(y_pred))

    return place.trained(lambda: Adds(linear_layers()), place.dataset("x", "y"))


def _adds(name, loss, rate=0.05):
    @program(f"add_loss_{name}", on=BOTH)
    def run(place):
        class AddsLoss(keras.layers.Layer):
            def call(self, x):
                self.add_loss(loss(x))
                return x

        def build():
            return keras.Sequential([*linear_layers(3), AddsLoss(), keras.layers.Dense(1)])

        return place.trained(build, place.dataset("x", "y"), "mse", lambda: small_sgd(rate))


_adds("mean", lambda x: 0.1 * ops.mean(ops.square(x)))
_adds("sum", lambda x: 0.01 * ops.sum(ops.square(x)))
_adds("root_of_mean", lambda x: 0.1 * ops.sqrt(ops.mean(ops.square(x)) + 1e-6))
