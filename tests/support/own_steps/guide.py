"""Keras's guide "Customizing what happens in fit()", in its order, and steps of one's own that evaluate."""

import keras
import tensorflow as tf

from tests.support.own_steps.generative import fit, sgd
from tests.support.own_steps.programs import program
from tests.support.own_steps.stepping import Stepping, linear_layers

ops = keras.ops
Dense, Input = keras.layers.Dense, keras.Input


def _square(y, y_pred):
    return ops.mean(ops.square(y_pred[:, 0] - y))


@program("guide_fit_first")
def guide_first(place):
    class CustomModel(keras.Model):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {each.name: each.result() for each in self.metrics}

    def build():
        inputs = Input((4,))
        model = CustomModel(inputs, Dense(1)(inputs))
        model.compile(optimizer=sgd(), loss="mse", metrics=["mae"])
        return model

    return fit(place, build, place.dataset("x", "y"))


@program("guide_fit_lower_level")
def guide_lower(place):
    class CustomModel(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
            self.loss_fn = keras.losses.MeanSquaredError()

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.loss_fn(y, y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.loss_tracker.update_state(loss)
            self.mae_metric.update_state(y, y_pred)
            return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

        @property
        def metrics(self):
            return [self.loss_tracker, self.mae_metric]

    def build():
        inputs = Input((4,))
        model = CustomModel(inputs, Dense(1)(inputs))
        model.compile(optimizer=sgd())
        return model

    return fit(place, build, place.dataset("x", "y").map(lambda x, y, w: (x, y[:, None], w)))


@program("guide_fit_weights_and_test_step")
def guide_weights(place):
    """The guide's parts on sample weights and on evaluation."""

    class CustomModel(keras.Model):
        def train_step(self, data):
            x, y, w = data if len(data) == 3 else (*data, None)
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=w)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return self.updated(y, y_pred, w, loss)

        def test_step(self, data):
            x, y, w = data
            y_pred = self(x, training=False)
            return self.updated(y, y_pred, w, self.compute_loss(y=y, y_pred=y_pred, sample_weight=w))

        def updated(self, y, y_pred, w, loss):
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred, sample_weight=w)
            return {each.name: each.result() for each in self.metrics}

    def build():
        inputs = Input((4,))
        model = CustomModel(inputs, Dense(1)(inputs))
        model.compile(optimizer=sgd(), loss="mse", metrics=["mae"])
        return model

    with place.scope():
        model = build()
    data = place.dataset("x", "y", "w")
    found = place.fit(model, data, validation_data=data)
    return {**found, "evaluated": model.evaluate(data, verbose=0, return_dict=True)}


@program("test_step_of_a_root")
def test_root(place):
    """A ``test_step`` that shows what is no mean over rows."""

    class Evaluates(Stepping):
        def test_step(self, data):
            x, y, _ = data
            return {"root": ops.sqrt(_square(y, self(x)))}

    with place.scope():
        model = Evaluates(linear_layers())
        model.compile(sgd())
    return {"evaluated": model.evaluate(place.dataset("x", "y"), verbose=0, return_dict=True), "weights": []}


@program("test_step_of_a_tracker")
def test_tracker(place):
    class Evaluates(Stepping):
        def test_step(self, data):
            x, y, _ = data
            self.tracker.update_state(_square(y, self(x)))
            return {"own_loss": self.tracker.result()}

    with place.scope():
        model = Evaluates(linear_layers())
        model.compile(sgd())
    found = place.fit(model, place.dataset("x", "y"), validation_data=place.dataset("x", "y"))
    return {**found, "evaluated": model.evaluate(place.dataset("x", "y"), verbose=0, return_dict=True)}
