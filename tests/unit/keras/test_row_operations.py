"""Whether a loss is a mean or a sum over rows, or computed of these, follows from its operations."""

import keras
import pytest
import tensorflow as tf

from tensorflowonspark.keras.row_kinds import MEAN, Of, mark
from tensorflowonspark.keras.row_operations import found_in

_WEIGHT = tf.Variable([[1.0], [2.0]])
_STATE = tf.Variable(0.0)


def _rows(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


def _mask(x):
    return tf.cast(x > 0, tf.float32)


def _selected(x):
    return tf.boolean_mask(x, x[:, 0] > 0)


def _set_from_rows(x):
    _STATE.assign(tf.reduce_mean(x))
    return _STATE.read_value() + 0.0


@tf.custom_gradient
def _doubled_gradient(value):
    return value, lambda upstream: 2.0 * upstream


CASES = {
    Of.MEAN: [
        lambda x: tf.reduce_mean(x),
        lambda x: tf.reduce_mean(tf.reduce_sum(x, axis=1)),
        lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0)),  # with an axis whose size is not known before
        lambda x: tf.reduce_mean(x) + tf.reduce_mean(x**2) / 2.0,
        lambda x: tf.reduce_sum(x) / _rows(x),
        lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32),
        lambda x: tf.reduce_mean(tf.transpose(x)),
        lambda x: tf.reduce_mean(tf.reshape(x, [-1])),
        lambda x: tf.reduce_mean(tf.concat([x, tf.zeros_like(x)], axis=0)),
        lambda x: tf.reduce_mean(x @ _WEIGHT - tf.random.normal(tf.shape(x[:, :1]))),
        lambda x: tf.reduce_mean(x) + tf.reduce_sum(_WEIGHT**2),
        lambda x: tf.function(tf.reduce_mean)(x),
        lambda x: keras.ops.mean(keras.losses.mean_squared_error(x, 2 * x)),
        lambda x: mark(tf.reduce_sum(x), MEAN) * 2.0 + tf.reduce_mean(x),
    ],
    Of.SUM: [
        lambda x: tf.reduce_sum(x),
        lambda x: tf.nn.l2_loss(x),
        lambda x: -tf.reduce_sum(x @ _WEIGHT) / 16.0,
        lambda x: 3.0 * tf.add_n([tf.reduce_sum(x), tf.reduce_sum(x**2)]),
        lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], tf.float32),
        lambda x: tf.reduce_sum(tf.matmul(x, x, transpose_a=True)),
        lambda x: tf.matmul(tf.transpose(x), x),
        lambda x: tf.reduce_sum(_selected(x)),
        lambda x: _rows(x),
    ],
    Of.ROWS: [
        lambda x: tf.reduce_sum(x, axis=1),
        lambda x: tf.nn.softmax(x)[:, 0],
        lambda x: tf.matmul(_WEIGHT, x, transpose_a=True, transpose_b=True),
    ],
    Of.TOTAL: [
        lambda x: tf.reduce_sum(x) * (1.0 / _rows(x)),
        lambda x: tf.reduce_sum(x / _rows(x)),
        lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0] + 1, tf.float32),
        lambda x: tf.reduce_mean(x) - 2.0 * tf.reduce_sum(x),
        lambda x: tf.sqrt(tf.reduce_mean(x**2)),
        lambda x: tf.reduce_mean(x) * tf.reduce_mean(x**2),
        lambda x: tf.reduce_sum(x) ** 2,
        lambda x: tf.cast(tf.cast(tf.reduce_mean(x), tf.int32), tf.float32),
        lambda x: tf.reduce_mean((x - tf.reduce_mean(x, axis=0)) ** 2),
        lambda x: tf.linalg.logdet(tf.matmul(x, x, transpose_a=True) / _rows(x)),
        lambda x: tf.reduce_max(tf.reduce_mean(x, axis=0)),
        lambda x: tf.cast(tf.reduce_all(x > 0.0), tf.float32),
        lambda x: tf.reduce_sum(x * _mask(x)) / tf.reduce_sum(_mask(x)),
        lambda x: tf.reduce_sum(x * _mask(x)) / tf.maximum(tf.reduce_sum(_mask(x)), 1.0),
        lambda x: tf.reduce_sum(x * _mask(x)) / (tf.reduce_sum(_mask(x)) + 1e-7),
        lambda x: tf.math.divide_no_nan(tf.reduce_mean(x * _mask(x)), tf.reduce_mean(_mask(x))),
        lambda x: tf.reduce_sum(x / tf.reduce_sum(_mask(x))),
        lambda x: tf.reduce_mean(_selected(x)),
        lambda x: tf.reduce_mean(tf.gather(x, tf.where(x[:, 0] > 0)[:, 0])),
    ],
    Of.FREE: [lambda x: tf.reduce_sum(_WEIGHT**2), lambda x: tf.sqrt(tf.reduce_sum(_WEIGHT**2)) * 3.0],
    Of.WHOLE: [
        lambda x: tf.reduce_max(x),
        lambda x: tf.reduce_mean(tf.matmul(x, x, transpose_b=True)),  # of pairs of rows
    ],
    Of.OTHER: [
        lambda x: tf.reduce_mean(x[:2]),
        lambda x: tf.reduce_mean(tf.py_function(lambda each: each, [x], tf.float32)),
        lambda x: tf.sqrt(tf.reduce_mean(x)) * tf.reduce_sum(tf.cast(tf.range(tf.shape(x)[0]), tf.float32)),
        lambda x: _doubled_gradient(tf.sqrt(tf.reduce_mean(x))),
        lambda x: tf.cond(tf.reduce_mean(x) > 0.0, lambda: 1.0, lambda: tf.reduce_mean(x)),
        lambda x: tf.function(lambda each: tf.sqrt(tf.reduce_mean(each)))(x),
        lambda x: tf.reduce_mean(tf.random.normal([tf.shape(x)[0] + 1])) / tf.reduce_mean(x),
        _set_from_rows,
    ],
}


def _found(look, loss):
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, None))], autograph=False)
    def step(x):
        x = tf.ensure_shape(x, (None, 2))
        found.append(look(loss(x)))
        return 0

    step.get_concrete_function()
    return found[0]


@pytest.mark.parametrize("kind", CASES)
def test_what_a_loss_has_of_rows(kind):
    found = [_found(lambda value: found_in(value).of, loss) for loss in CASES[kind]]
    assert found == [kind] * len(found)


def test_without_a_graph_only_what_is_marked_is_known():
    assert found_in(tf.constant(1.0)).of is Of.OTHER
    assert found_in(mark(tf.constant(1.0), MEAN)).of is Of.MEAN
    assert found_in(1.0).of is Of.FREE
