"""Steps on several devices of one process: what callbacks see, and the weights, are those of one device."""

import json

import pytest

from tests.support.commands import run_python

_PROGRAM = """
import json
import sys
from tensorflowonspark.keras import hooks
hooks.install()
import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x, y = np.linspace(0, 1, 11, dtype="f4")[:, None], np.linspace(1, 3, 11, dtype="f4")[:, None]


class Own(keras.Sequential):
    def train_step(self, data):
        return {**super().train_step(data), "own": 2.0}

    def test_step(self, data):
        return {**super().test_step(data), "own": 2.0}


def shown(strategy):
    seen = []
    with strategy.scope():
        model = Own([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

    def note(_, logs):
        numbers = [int(model.optimizer.iterations), float(model.optimizer.learning_rate)]
        seen.append([*[logs[name] for name in sorted(logs)], *numbers])

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[callback]).history
    found = model.evaluate(data, verbose=0, return_dict=True)
    return [[float(each) for each in step] for step in seen], history, found


one = shown(tf.distribute.get_strategy())
print(json.dumps([one, shown(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))]))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_steps_of_ones_own_on_two_devices_show_what_one_shows():
    """A short last batch has two rows on the first device and one on the second."""
    done = run_python(_PROGRAM)
    (steps, history, found), (own_steps, own_history, own_found) = json.loads(done.splitlines()[-1])
    assert own_steps == [pytest.approx(each, rel=1e-5) for each in steps]
    assert own_history == {name: pytest.approx(each, rel=1e-5) for name, each in history.items()}
    assert own_found == pytest.approx(found, rel=1e-5)


_OPTIMIZERS = """
import json
from tensorflowonspark.keras import hooks
hooks.install()
import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x = np.linspace(0, 1, 11, dtype="f4")[:, None]


def weights(strategy, optimizer):
    seen = []
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer(), "mse")
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append(model.get_weights()[0]))
    model.fit(tf.data.Dataset.from_tensor_slices((x, 2 * x + 1)).batch(4), epochs=2, verbose=0, callbacks=[note])
    return np.array(seen).ravel().tolist()


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return keras.ops.cond(step < 3, lambda: keras.ops.cast(step + 1, "float32") / 30, lambda: 0.1)


class WarmUpInGraph(WarmUp):
    def __call__(self, step):
        return tf.function(super().__call__)(tf.convert_to_tensor(step))


average = {"use_ema": True, "ema_overwrite_frequency": 2, "ema_momentum": 0.5}
optimizers = {
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "with a decay": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3, weight_decay=0.01),
    "that counts": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "averaging": lambda: keras.optimizers.SGD(0.1, **average),
    "with a schedule": lambda: keras.optimizers.SGD(WarmUp(), gradient_accumulation_steps=2),
    "with a schedule's graph": lambda: keras.optimizers.SGD(WarmUpInGraph(), gradient_accumulation_steps=2),
    "both": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, clipnorm=0.5, **average),
}
two = lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(json.dumps({name: [weights(strategy(), each) for strategy in (tf.distribute.get_strategy, two)]
                  for name, each in optimizers.items()}))
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_optimizer_that_acts_in_some_steps_only_has_the_weights_of_one_device_after_each():
    found = json.loads(run_python(_OPTIMIZERS).splitlines()[-1])
    assert {name: two for name, (_, two) in found.items()} == {
        name: pytest.approx(one, rel=1e-5) for name, (one, _) in found.items()
    }


_FLOAT8 = """
from tensorflowonspark.keras import hooks
hooks.install()
import keras
import numpy as np
import tensorflow as tf
from tensorflowonspark.errors import SpecError

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def fit():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, dtype="float8_from_mixed_bfloat16")])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 16)), np.ones((8, 16)), batch_size=8, verbose=0)


fit()
try:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        fit()
except SpecError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_layers_in_float8_are_refused_on_two_devices():
    assert "scales its values by those that it has seen" in run_python(_FLOAT8).splitlines()[-1]


_TWO_OPTIMIZERS = """
import json
import logging
from tensorflowonspark.keras import hooks
hooks.install()
import keras
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
warned = []
logging.getLogger("tensorflow").addFilter(lambda record: warned.append(record.getMessage()))
plain = lambda: keras.optimizers.SGD(1.0)
scaled = lambda: keras.optimizers.LossScaleOptimizer(plain(), initial_scale=1.0)
found = {}
for name, kinds in {"scaled, scaled": (scaled, scaled), "scaled, plain": (scaled, plain)}.items():
    with strategy.scope():
        variables = [keras.Variable([0.0]) for _ in kinds]
        optimizers = [kind() for kind in kinds]
        for optimizer, variable in zip(optimizers, variables):
            optimizer.build([variable])

    @tf.function
    def step():
        def run():
            replica = tf.distribute.get_replica_context()
            gradient = tf.constant([1.0]) + tf.cast(replica.replica_id_in_sync_group, tf.float32)
            for optimizer, variable in zip(optimizers, variables):
                optimizer.apply([gradient], [variable])
            return replica.all_reduce("sum", gradient)
        return strategy.reduce("sum", strategy.run(run), axis=None)

    step()
    local = [strategy.experimental_local_results(each.value) for each in variables]
    found[name] = [[float(value[0]) for value in values] for values in local]
print(json.dumps([found, warned]))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_optimizers_of_a_step_of_ones_own_sum_once_each_and_autograph_warns_of_nothing():
    found, warned = json.loads(run_python(_TWO_OPTIMIZERS).splitlines()[-1])
    both = [[-3.0, -3.0], [-3.0, -3.0]]
    assert found == {"scaled, scaled": both, "scaled, plain": both}
    assert warned == []
