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

    class OwnStep(keras.Sequential):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = a_mean(data[1], self(data[0], training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"mean": loss}

    found = {}
    cases = {
        "a mean": ((), a_mean, keras.Sequential),
        "a value per row": ((), a_value_per_row, keras.Sequential),
        "no second axis": ([()], "mse", keras.Sequential),
        "a step of one's own": ((), None, OwnStep),
    }
    for name, (shape, loss, kind) in cases.items():
        with strategy.scope():
            layers = [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
            layers += [keras.layers.Reshape(each) for each in shape]
            model = kind(layers)
            model.compile(keras.optimizers.SGD(_RATE), loss)
        truth = y[:, 0] if shape else y
        history = model.fit(x, truth, batch_size=len(x), epochs=_STEPS, shuffle=False, verbose=0)
        (shown,) = history.history.values()
        found[name] = model.layers[0].kernel.numpy()[:, 0], shown
    return found


@pytest.mark.timeout(150)
@pytest.mark.masters("local")
def test_a_loss_is_averaged_over_the_rows_of_all_workers(spark):
    x = np.sin(np.arange(23 * 3, dtype="f4")).reshape(23, 3)  # one worker takes more of them
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
