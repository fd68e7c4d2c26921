"""The number of replicas: shown, or what a program divides its losses by."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import small_sgd
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, linear_layers, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)

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
