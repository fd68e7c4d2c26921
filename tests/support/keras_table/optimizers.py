"""Optimizers, their options, and schedules of their rate."""

import keras
import numpy as np

from tests.support.keras_table.cells import cell, on, table
from tests.support.keras_table.columns import MULTI_WORKER, PARAMETER_SERVER
from tests.support.keras_table.training import trained, weights_of

OPTIMIZERS = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Muon",
    "Nadam",
    "RMSprop",
    "SGD",
)
SCHEDULES = {
    "CosineDecay": lambda kind: kind(0.1, 4, warmup_target=0.2, warmup_steps=2),
    "CosineDecayRestarts": lambda kind: kind(0.1, 3),
    "ExponentialDecay": lambda kind: kind(0.1, 2, 0.5),
    "InverseTimeDecay": lambda kind: kind(0.1, 2, 0.5),
    "PiecewiseConstantDecay": lambda kind: kind([2, 4], [0.1, 0.05, 0.01]),
    "PolynomialDecay": lambda kind: kind(0.1, 5, power=2.0),
}
_ADAM = {
    "weight_decay": {"weight_decay": 0.1},
    "use_ema": {"use_ema": True, "ema_momentum": 0.5},
    "use_ema, ema_overwrite_frequency": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
    "amsgrad": {"amsgrad": True},
}
_CLIPPED = {
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.02},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "clipnorm that is not reached": {"clipnorm": 1e3},
}


@cell("Optimizers", *OPTIMIZERS)
def optimizer(column, name):
    kind = getattr(keras.optimizers, name)
    return trained(column, optimizer=lambda: kind(0.02))


@cell(
    "Optimizers",
    "ScheduleFreeAdamW",
    different=on(
        (MULTI_WORKER, PARAMETER_SERVER),
        "in one process Keras builds it in the graph of a step, which then sets its momentum to the weights each time",
    ),
)
def schedule_free(column):
    return trained(column, optimizer=lambda: keras.optimizers.ScheduleFreeAdamW(0.02))


table(
    "Optimizers",
    {
        "SGD with momentum and nesterov": lambda column: trained(
            column, optimizer=lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True)
        ),
        "LossScaleOptimizer": lambda column: trained(
            column,
            optimizer=lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.02), initial_scale=64.0, dynamic_growth_steps=2
            ),
        ),
        "as a string": lambda column: trained(column, optimizer="adam"),
    },
)


@cell("Optimizers", "MultiOptimizer")
def multi(column):
    from keras.optimizers import SGD, Adam, MultiOptimizer, OptimizerMap

    return trained(
        column,
        optimizer=lambda: MultiOptimizer(OptimizerMap(SGD(0.05), {".*kernel": Adam(0.02)})),
    )


@cell("Optimizers", "an optimizer of one's own")
def own(column):
    class Signs(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * keras.ops.sign(gradient))

    return trained(column, optimizer=lambda: Signs(0.01))


# In some steps only: TensorFlow refuses the branch, and our repair of it is for strategies that mirror variables.
_IN_SOME_STEPS = ("use_ema, ema_overwrite_frequency", "gradient_accumulation_steps")


@cell(
    "Options of optimizers",
    *_IN_SOME_STEPS,
    refused=on(PARAMETER_SERVER, "`merge_call` called while defining"),
    because="TensorFlow refuses what an optimizer does in some steps only, within a step that a coordinator schedules",
)
@cell("Options of optimizers", *(name for name in _ADAM if name not in _IN_SOME_STEPS))
def option(column, name):
    return trained(column, optimizer=lambda: keras.optimizers.Adam(0.02, **_ADAM[name]))


@cell("Options of optimizers", *_CLIPPED)
def clipped(column, name):
    return trained(column, optimizer=lambda: keras.optimizers.SGD(0.1, **_CLIPPED[name]))


@cell("Options of optimizers", "learning_rate changed between two fits")
def changed_rate(column):
    optimizer = keras.optimizers.SGD(0.02)
    with column.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
    model.fit(column.even(), verbose=0)
    model.optimizer.learning_rate = 0.1
    model.fit(column.even(), verbose=0)
    return {"weights": weights_of(model), "rate": float(np.asarray(model.optimizer.learning_rate))}


@cell("Schedules", *SCHEDULES)
def schedule(column, name):
    made = SCHEDULES[name](getattr(keras.optimizers.schedules, name))
    return trained(column, optimizer=lambda: keras.optimizers.SGD(made))


@cell("Schedules", "a schedule of one's own")
def own_schedule(column):
    class Halves(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

    return trained(column, optimizer=lambda: keras.optimizers.SGD(Halves()))
