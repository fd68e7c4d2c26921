"""A model with a ``train_step`` as Keras's guides write it, of which programs change a part."""

import keras
import tensorflow as tf

ops = keras.ops


class Stepping(keras.Sequential):
    """Computes a loss of its own, does something with its gradients, and shows its mean over steps."""

    def __init__(self, layers):
        super().__init__(layers)
        self.tracker = keras.metrics.Mean(name="own_loss")

    @property
    def metrics(self):
        return [self.tracker]

    def loss_of(self, x, y, y_pred):
        return ops.mean(ops.square(y_pred[:, 0] - y))

    def changed(self, gradients):
        """Return the gradients that reach the optimizer, and what is shown of them."""
        return gradients, {}

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        gradients, shown = self.changed(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"own_loss": self.tracker.result(), **shown}


def stepping(name, loss=None, changed=None, base=Stepping):
    """Return such a model's class with this name and these parts."""
    parts = {}
    if loss is not None:
        parts["loss_of"] = lambda self, x, y, y_pred: loss(x, y, y_pred)
    if changed is not None:
        parts["changed"] = lambda self, gradients: changed(gradients)
    return type(name, (base,), parts)


def linear_layers(units=1):
    return [keras.Input((4,)), keras.layers.Dense(units)]


def train_stepping(place, kind, layers=linear_layers, data=None, **options):
    """Train such a model of ``x`` and ``y``; return what is compared."""
    data = place.dataset("x", "y") if data is None else data
    return place.trained(lambda: kind(layers()), data, **{"loss": None, **options})
