"""State that is computed from a batch, metrics made outside the scope, and what callbacks change."""

import keras
import numpy as np

from tests.support.own_steps.place import line, network, normalization, small_sgd, weights_of
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)

_STATE = {
    "/weights/*": "the largest value of a batch is that of each worker's rows, averaged and named (docs/keras.md)"
}


@program("batch_normalization_own_step")
def normalization_own_step(place):
    def layers():
        return [
            keras.Input((4,)),
            normalization(),
            keras.layers.Dense(1),
        ]

    return train_stepping(place, stepping("Normalizes"), layers)


@program("batch_normalization_compiled", on=BOTH)
def normalization_compiled(place):
    def build():
        return keras.Sequential([keras.Input((4,)), normalization(), keras.layers.Dense(1)])

    return place.trained(build, place.dataset("x", "y"))


def _layer(name, update, different=None, refused=None):
    @program(f"state_{name}", on=BOTH, different=different, refused=refused)
    def run(place):
        class Remembers(keras.layers.Layer):
            def build(self, shape):
                self.kept = self.add_weight((shape[-1],), "zeros", trainable=False, name="kept")

            def call(self, x, training=False):
                if training:
                    self.kept.assign(update(self.kept, x))
                return x

        def build():
            return keras.Sequential([keras.Input((4,)), Remembers(), keras.layers.Dense(1)])

        return place.trained(build, place.dataset("x", "y"))


_layer("running_mean", lambda kept, x: 0.5 * kept + 0.5 * ops.mean(x, axis=0))
_layer("running_maximum", lambda kept, x: ops.maximum(kept, ops.max(x, axis=0)), _STATE)
_layer("rows_counted", lambda kept, x: kept + ops.sum(ops.ones_like(x), axis=0))
_layer("steps_counted", lambda kept, x: kept + 1)


@program("state_running_mean_of_all", on=BOTH)
def running_mean_of_all(place):
    """A layer of one's own with the helper for it."""
    import tensorflowonspark as tfos

    class Remembers(keras.layers.Layer):
        def build(self, shape):
            self.kept = self.add_weight((shape[-1],), "zeros", trainable=False, name="kept")

        def call(self, x, training=False):
            if training:
                rows = ops.cast(ops.shape(x)[0], "float32")
                self.kept.assign(0.5 * self.kept + 0.5 * tfos.keras.all_mean(ops.mean(x, axis=0), rows))
            return x - ops.stop_gradient(self.kept)

    def build():
        return keras.Sequential([keras.Input((4,)), Remembers(), keras.layers.Dense(1)])

    return place.trained(build, place.dataset("x", "y"))


@program("metric_made_outside_the_scope", on=BOTH)
def outside(place):
    metric, weighted = keras.metrics.MeanAbsoluteError(name="error"), keras.metrics.MeanSquaredError(name="squared")
    return place.trained(line, place.dataset("x", "y", "w"), "mse", metrics=[metric], weighted_metrics=[weighted])


@program("metric_made_outside_the_scope_own_step")
def outside_own_step(place):
    metric = keras.metrics.MeanAbsoluteError(name="error")

    class Measures(Stepping):
        @property
        def metrics(self):
            return [self.tracker, metric]

        def train_step(self, data):
            logs = super().train_step(data)
            metric.update_state(data[1][:, None], self(data[0]))
            return {**logs, "error": metric.result()}

    return train_stepping(place, Measures)


@program("early_stopping_on_a_metric_outside", on=BOTH)
def early_stopping(place):
    metric = keras.metrics.MeanAbsoluteError(name="error")
    with place.scope():
        model = line()
        model.compile(small_sgd(0.2), "mse", metrics=[metric])
    stop = keras.callbacks.EarlyStopping("error", patience=0, min_delta=0.05)
    return place.fit(model, place.dataset("x", "y"), epochs=8, callbacks=[stop])


@program("rate_set_by_a_callback", on=BOTH)
def rate_set(place):
    with place.scope():
        model = line()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return place.fit(model, place.dataset("x", "y"), epochs=3, callbacks=[callback])


@program("frozen_between_fits", on=BOTH)
def frozen(place):
    with place.scope():
        model = network()
        model.compile(small_sgd(), "mse")
    first = place.fit(model, place.dataset("x", "y"), epochs=1)
    model.layers[0].trainable = False
    with place.scope():
        model.compile(small_sgd(), "mse")
    second = place.fit(model, place.dataset("x", "y"), epochs=1)
    return {"first": first, **second}


@program("weights_of_the_best_epoch", on=BOTH)
def best(place):
    with place.scope():
        model = line()
        model.compile(small_sgd(0.3), "mse")
    stop = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    found = place.fit(model, place.dataset("x", "y"), epochs=4, callbacks=[stop])
    return {**found, "weights": weights_of(model), "finite": bool(np.isfinite(weights_of(model)[0]).all())}
