"""In which steps the rows of all replicas come with the gradients, and in which before."""

import keras
import pytest
import tensorflow as tf

from tensorflowonspark.keras.global_batch import _can_wait, _can_weigh_gradients, _output

SGD = keras.optimizers.SGD


@tf.custom_gradient
def clipped(x):
    return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)


class Calls(keras.layers.Layer):
    """Calls a function of TensorFlow."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Own(SGD):
    """Might do anything with gradients."""


def dense(*layers, dtype=None):
    return [keras.Input((3,)), *layers, keras.layers.Dense(1, dtype=dtype, kernel_regularizer="l2")]


def python(x):
    return tf.ensure_shape(tf.py_function(lambda values: values, [x], tf.float32), x.shape)


def recurrent():
    return [keras.Input((3,)), keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.LSTM(2)]


WITH_GRADIENTS = {
    "dense": (dense, SGD),
    "several layers": (
        lambda: dense(keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)),
        keras.optimizers.Adam,
    ),
    "recurrent": (recurrent, keras.optimizers.AdamW),
    "a function": (lambda: dense(Calls(tf.function(lambda x: x * x))), SGD),
}
BEFORE = {
    "a gradient of one's own": (lambda: dense(Calls(clipped)), SGD),
    "one in a function": (lambda: dense(Calls(tf.function(lambda x: 2.0 * clipped(x)))), SGD),
    "a function in Python": (lambda: dense(Calls(python)), SGD),
    "numbers of 16 bits": (lambda: dense(keras.layers.Dense(2, dtype="mixed_float16")), SGD),
    "weights of 16 bits": (lambda: dense(dtype="bfloat16"), SGD),
    "an optimizer of one's own": (dense, Own),
    "a loss scale": (dense, lambda: keras.optimizers.LossScaleOptimizer(SGD())),
}


@pytest.mark.parametrize("name", [*WITH_GRADIENTS, *BEFORE])
def test_rows_come_with_the_gradients_if_these_are_linear_in_the_loss(name):
    layers, optimizer = (WITH_GRADIENTS | BEFORE)[name]
    model = keras.Sequential(layers())
    model.compile(optimizer(), "mse")
    found = []

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(model(x, training=True), tf.float32))
            found.append(_can_weigh_gradients(model))
        return tape.gradient(loss, model.trainable_weights)

    step(tf.ones((2, 3)))
    assert set(found) == {name in WITH_GRADIENTS}


@pytest.mark.parametrize("loss", ["mse", lambda truth, y: y - truth, {"a": keras.losses.Huber(), "b": None}])
def test_losses_that_keras_reduces_may_be_multiplied_at_last(loss):
    model = keras.Sequential(dense())
    model.compile("sgd", loss)
    assert _can_wait(model)


def test_losses_that_keras_does_not_reduce_are_multiplied_each():
    class Whole(keras.losses.Loss):
        def __call__(self, truth, y, sample_weight=None):
            return keras.ops.sum(y)

    for loss in (Whole(), keras.losses.MeanSquaredError(reduction=None)):
        model = keras.Sequential(dense())
        model.compile("sgd", loss)
        assert not _can_wait(model)


@pytest.mark.parametrize("value", [keras.Variable(2.0), tf.Variable(2.0), 2.0, tf.constant([2.0]), tf.constant(2)])
def test_what_is_no_loss_of_a_step_stays_as_it_is(value):
    """As the result of a metric, which may be a variable of Keras itself."""
    assert _output(value) is value
