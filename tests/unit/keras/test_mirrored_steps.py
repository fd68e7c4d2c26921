"""Loops of a program's own on several devices of one process: gradients are summed once; fit refuses a feed there."""

import json

import pytest

from tests.support.commands import run_python

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


_FEED = """
from tensorflowonspark.keras import hooks
hooks.install()
import keras
import tensorflow as tf
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.shards import mark_shard

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((8, 1)), tf.ones((8, 1)))).batch(4)
print(len(model.fit(data, verbose=0).epoch))
for run in (model.fit, model.evaluate):
    try:
        run(mark_shard(data), verbose=0)
    except SpecError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_fit_takes_a_feed_on_one_device_of_a_node():
    plain, *refused = run_python(_FEED).splitlines()[-3:]
    assert plain == "1"
    for each in refused:
        assert "MirroredStrategy has 2 devices in this node" in each
        assert "start a node for each GPU" in each
