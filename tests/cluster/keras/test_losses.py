"""Losses of the user's own on two workers: the model learns what one process learns of the same rows."""

import numpy as np
import pytest

import tensorflowonspark as tfos

_STEPS, _RATE = 3, 0.1


def learned(args, ctx):
    """Fit a line by gradient descent with each loss; return its weights and the losses that are shown."""
    import keras
    import tensorflow as tf

    x, y = args
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def a_mean(truth, prediction):
        return keras.ops.mean(keras.ops.square(truth - prediction))

    def a_value_per_row(truth, prediction):
        return keras.ops.mean(keras.ops.square(truth - prediction), axis=-1)

    found = {}
    cases = {"a mean": ((), a_mean), "a value per row": ((), a_value_per_row), "no second axis": ([()], "mse")}
    for name, (shape, loss) in cases.items():
        with strategy.scope():
            layers = [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
            layers += [keras.layers.Reshape(each) for each in shape]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(_RATE), loss)
        truth = y[:, 0] if shape else y
        history = model.fit(x, truth, batch_size=len(x), epochs=_STEPS, shuffle=False, verbose=0)
        found[name] = model.layers[0].kernel.numpy()[:, 0], history.history["loss"]
    return found


@pytest.mark.smoke
@pytest.mark.timeout(150)
@pytest.mark.masters("local")
def test_a_loss_that_is_one_number_is_averaged_over_the_workers(spark):
    x = np.sin(np.arange(24 * 3, dtype="f4")).reshape(24, 3)
    y = x.sum(axis=1, keepdims=True)
    weights, shown = np.zeros(3), []
    for _ in range(_STEPS):
        error = x @ weights - y[:, 0]
        shown.append(np.mean(error**2))
        weights = weights - _RATE * 2 * x.T @ error / len(x)
    for found in tfos.run(spark, learned, (x, y), num_workers=2).values():
        for name, (of_model, losses) in found.items():
            np.testing.assert_allclose(of_model, weights, rtol=1e-4, err_msg=name)
            np.testing.assert_allclose(losses, shown, rtol=1e-4, err_msg=name)
