"""Steps that are counted, the number of replicas, padding, and state that is computed from a batch."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.own_steps.place import line, network, normalization, small_sgd, weights_of
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, linear_layers, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)


def adam():
    """Return an optimizer with two memories and a schedule, which shows each step too many."""
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.7), weight_decay=0.01)


def averaging():
    return keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)


def accumulating():
    return keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)


def _several_steps(number):
    @program(f"steps_per_execution_{number}", on=BOTH)
    def run(place):
        return place.trained(
            network, place.dataset("x", "y"), optimizer=adam, epochs=3, steps_per_execution=number, metrics=["mae"]
        )

    @program(f"steps_per_execution_{number}_own_step")
    def own(place):
        return train_stepping(place, stepping("Steps"), optimizer=adam, epochs=3, steps_per_execution=number)


_several_steps(2)
_several_steps(3)
_several_steps(4)


@program("steps_per_execution_ema", on=BOTH)
def ema(place):
    data = place.dataset("x", "y")
    return place.trained(line, data, optimizer=averaging, epochs=3, steps_per_execution=3)


@program("steps_per_execution_accumulation", on=BOTH)
def accumulation(place):
    data = place.dataset("x", "y")
    return place.trained(line, data, optimizer=accumulating, epochs=3, steps_per_execution=3)


@program("steps_per_execution_normalized", on=BOTH)
def normalized(place):
    """A layer with statistics of its own, which a step without rows would move."""

    def build():
        return keras.Sequential([keras.Input((4,)), normalization(), keras.layers.Dense(1)])

    return place.trained(build, place.dataset("x", "y"), optimizer=adam, epochs=3, steps_per_execution=4)


@program("steps_per_execution_counted", on=BOTH)
def counted(place):
    """Steps counted by a step of one's own, and by a metric."""

    class Counts(keras.metrics.Metric):
        def __init__(self, name="counted"):
            super().__init__(name=name)
            self.number = self.add_variable((), initializer="zeros", name="number")

        def update_state(self, y_true, y_pred, sample_weight=None):
            real = ops.ones(ops.shape(y_true)[0]) if sample_weight is None else ops.sign(sample_weight)
            self.number.assign(self.number + ops.sum(real))

        def result(self):
            return ops.convert_to_tensor(self.number)

    return place.trained(
        line, place.dataset("x", "y"), optimizer=adam, steps_per_execution=4, weighted_metrics=[Counts()]
    )


@program("steps_per_epoch_repeated", on=BOTH)
def repeated(place):
    """Epochs that end in the midst of a pass over the rows."""
    data = place.dataset("x", "y").repeat()
    return place.trained(line, data, optimizer=adam, epochs=3, fit={"steps_per_epoch": 2})


@program("steps_evaluated", on=BOTH)
def evaluated(place):
    """``evaluate`` with steps_per_execution, and validation in ``fit``."""
    with place.scope():
        model = network()
        model.compile(adam(), "mse", metrics=["mae"], steps_per_execution=3)
    found = place.fit(model, place.dataset("x", "y"), validation_data=place.dataset("x", "y"))
    return {**found, "evaluated": model.evaluate(place.dataset("x", "y"), verbose=0)}


# The number of replicas.

_SHOWN = "the program divides what it shows by the number of replicas itself"
_DIVIDED = {"/steps/*/own_loss": _SHOWN, "/history/own_loss*": _SHOWN}


@program("replicas_described")
def described(place):
    """A method that no step calls prints the number of replicas."""

    class Describes(Stepping):
        def describe(self):
            print(f"{self.name} on {self.distribute_strategy.num_replicas_in_sync} replicas")

    with place.scope():
        model = Describes(linear_layers())
        model.compile(small_sgd())
    model.describe()
    return place.fit(model, place.dataset("x", "y"))


@program("replicas_described_by_a_base_class")
def described_by_base(place):
    class Base(Stepping):
        def plot(self):
            return f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas"

    return train_stepping(place, stepping("Describes", base=Base))


@program("replicas_logged_in_init")
def logged_in_init(place):
    class Describes(Stepping):
        def __init__(self, layers):
            super().__init__(layers)
            self.text = f"on {tf.distribute.get_strategy().num_replicas_in_sync} replicas"

    return train_stepping(place, Describes)


_NUMBER = "it shows the number of replicas"


@program("replicas_shown_in_step", different={"/steps/*/replicas": _NUMBER, "/history/replicas*": _NUMBER})
def shown_in_step(place):
    """A step shows the number of replicas, and divides nothing by it."""

    class Shows(Stepping):
        def train_step(self, data):
            logs = super().train_step(data)
            return {**logs, "replicas": tf.constant(float(tf.distribute.get_strategy().num_replicas_in_sync))}

    return train_stepping(place, Shows)


@program("replicas_scale_the_rate")
def scaled_rate(place):
    """The rate is multiplied by the number of replicas, as Horovod's guides ask for it; nothing is divided."""

    class Steps(Stepping):
        def make(self):
            return keras.optimizers.SGD(0.01 * self.distribute_strategy.num_replicas_in_sync)

    with place.scope():
        model = Steps(linear_layers())
        model.compile(model.make())
    found = place.fit(model, place.dataset("x", "y"))
    if place.alone:  # the rate that the workers have
        with place.scope():
            keras.utils.set_random_seed(11)
            model = Steps(linear_layers())
            model.compile(keras.optimizers.SGD(0.01 * place.workers))
        found = place.fit(model, place.dataset("x", "y"))
    return found


def _divides(name, divided):
    @program(f"replicas_divide_{name}", different=_DIVIDED)
    def run(place):
        class Divides(Stepping):
            def __init__(self, layers):
                super().__init__(layers)
                self.replicas = tf.distribute.get_strategy().num_replicas_in_sync

            def loss_of(self, x, y, y_pred):
                return divided(self, place, ops.square(y_pred[:, 0] - y))

        return train_stepping(place, Divides)


def _number(place):
    return (place.strategy or tf.distribute.get_strategy()).num_replicas_in_sync


_divides("in_step", lambda self, place, e: ops.mean(e) / self.distribute_strategy.num_replicas_in_sync)
_divides("by_current_strategy", lambda self, place, e: ops.mean(e) / tf.distribute.get_strategy().num_replicas_in_sync)
_divides("by_closure", lambda self, place, e: ops.mean(e) / _number(place))
_divides("in_init", lambda self, place, e: ops.mean(e) / self.replicas)
_divides("compute_average_loss", lambda self, place, e: tf.nn.compute_average_loss(e))
_divides(
    "compute_average_loss_of_a_batch_size",
    lambda self, place, e: tf.nn.compute_average_loss(e, global_batch_size=place.rows),
)
_divides(
    "compute_average_loss_and_regularizer",
    lambda self, place, e: (
        tf.nn.compute_average_loss(e)
        + tf.nn.scale_regularization_loss(0.1 * tf.nn.l2_loss(self.trainable_variables[0]))
    ),
)
_divides(
    "beside_a_loss_of_keras",
    lambda self, place, e: keras.losses.MeanAbsoluteError()(e, 0 * e) + ops.mean(e) / _number(place),
)


# Padding.


@program("weights_of_minus_zero", on=BOTH)
def minus_zero(place):
    """w = -log p, which is -0.0 where p is 1."""
    data = place.dataset(["x", "log_p"], "y")
    data = data.map(lambda x, y, w: (x["x"], y, w * -x["log_p"]))
    return place.trained(line, data, "mse", metrics=["mae"], weighted_metrics=["mse"])


@program("weights_of_minus_zero_alone", on=BOTH, refused="weights")
def minus_zero_alone(place):
    """The same, in place of the weights that mark padding."""
    data = place.dataset(["x", "log_p"], "y")
    data = data.map(lambda x, y, w: (x["x"], y, -x["log_p"]))
    return place.trained(line, data, "mse", metrics=["mae"])


@program("weights_left_out", on=BOTH, refused="weights")
def left_out(place):
    """A map that leaves out the weights, as autoencoders have it."""
    data = place.dataset("x", "y").map(lambda x, y, w: (x, x))
    return place.trained(lambda: line(4), data, "mse", metrics=["mae"])


@program("weights_left_out_own_step", refused="weights")
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


@program("weights_clipped", on=BOTH, refused="weights")
def clipped_weights(place):
    """A map that makes the weights of rows at least 0.1 gives padding a weight as well."""
    data = place.dataset("x", "y", "w").map(lambda x, y, w: (x, y, tf.maximum(w, 0.1)))
    return place.trained(line, data, "mse", weighted_metrics=["mae"])


# State that is computed from a batch.

_STATE = {
    "/weights/*": "state that a layer computes from a batch is that of each worker's rows, averaged (docs/keras.md)"
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


_layer("running_mean", lambda kept, x: 0.5 * kept + 0.5 * ops.mean(x, axis=0), _STATE)
_layer("running_maximum", lambda kept, x: ops.maximum(kept, ops.max(x, axis=0)), _STATE)
_layer("rows_counted", lambda kept, x: kept + ops.sum(ops.ones_like(x), axis=0), _STATE)
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
