"""Whether a loss is a mean or a sum over rows is read from its graph; what it does not show is unknown."""

import pytest
import tensorflow as tf

from tensorflowonspark.keras.loss_terms import COUNT, FREE, KERAS, MEAN, SUM, UNKNOWN, mark, terms

_WEIGHT = tf.Variable([[1.0], [2.0]])


def _rows(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


CASES = [
    (lambda x: tf.reduce_mean(x), {MEAN}),
    (lambda x: tf.reduce_mean(tf.reduce_sum(x, axis=1)), {MEAN}),
    (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0)), {MEAN}),
    (lambda x: tf.reduce_mean(x) + tf.reduce_mean(x**2) / 2.0, {MEAN}),
    (lambda x: tf.sqrt(tf.reduce_mean(x**2)), {UNKNOWN}),  # of the batch as a whole, as the next ones are
    (lambda x: tf.reduce_mean(x**2) - tf.square(tf.reduce_mean(x)), {UNKNOWN, MEAN}),
    (lambda x: tf.reduce_mean(x) / tf.reduce_mean(x**2), {UNKNOWN}),
    (lambda x: tf.reduce_max(x), {UNKNOWN}),
    (lambda x: tf.reduce_sum(x), {SUM}),
    (lambda x: tf.nn.l2_loss(x), {SUM}),
    (lambda x: -tf.reduce_sum(x @ _WEIGHT) / 16.0, {SUM}),
    (lambda x: 3.0 * tf.add_n([tf.reduce_sum(x), tf.reduce_sum(x**2)]), {SUM}),
    (lambda x: tf.reduce_sum(x, axis=1), {SUM}),  # its gradient is that of its sum
    (lambda x: tf.reduce_sum(x) / _rows(x), {MEAN}),
    (lambda x: tf.reduce_sum(x) * (1.0 / _rows(x)), {MEAN}),
    (lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32), {MEAN}),
    (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], tf.float32), {SUM}),
    (lambda x: _rows(x), {COUNT}),
    (lambda x: tf.reduce_sum(_WEIGHT**2), set()),
    (lambda x: tf.reduce_mean(x) + tf.reduce_sum(_WEIGHT**2), {MEAN, FREE}),
    (lambda x: tf.reduce_sum(x) + tf.reduce_sum(_WEIGHT**2), {SUM, FREE}),
    (lambda x: tf.reduce_sum(x) + tf.reduce_mean(x), {SUM, MEAN}),
    (lambda x: tf.reduce_sum(x) / tf.reduce_sum(x**2), {UNKNOWN}),
    (lambda x: tf.reduce_sum(x) ** 2, {UNKNOWN}),
    (lambda x: tf.reduce_mean(x) / _rows(x), {UNKNOWN}),
    (lambda x: tf.reduce_sum(tf.matmul(x, x, transpose_a=True)), {UNKNOWN}),
    (lambda x: tf.function(tf.reduce_sum)(x), {UNKNOWN}),
    (lambda x: mark(tf.reduce_sum(x), KERAS), {KERAS}),
    (lambda x: mark(tf.reduce_sum(x), KERAS) * 2.0 + tf.reduce_mean(x), {KERAS, MEAN}),
]


@pytest.mark.parametrize(("loss", "expected"), CASES)
def test_the_terms_of_a_loss(loss, expected):
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, 2))], autograph=False)
    def step(x):
        found.append(terms(loss(x)))
        return 0

    step.get_concrete_function()
    assert found == [expected]


def test_without_a_graph_only_losses_of_keras_are_known():
    assert terms(tf.constant(1.0)) == {UNKNOWN}
    assert terms(mark(tf.constant(1.0), KERAS)) == {KERAS}
    assert terms(1.0) == set()
