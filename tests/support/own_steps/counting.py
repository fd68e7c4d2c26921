"""Steps that are counted: several in an execution, optimizers with a memory and a schedule, epochs in parts."""

import keras

from tests.support.own_steps.place import line, network, normalization
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import stepping, train_stepping

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
