"""What workers exchange: values of one type together, each as it was."""

import pytest
import tensorflow as tf

from tensorflowonspark.keras import tensorflow_collectives
from tests.support.commands import run_python


def test_values_of_a_type_are_sent_together_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(tensorflow_collectives, "_PACK_BYTES", 16)
    values = [tf.zeros(2), tf.zeros(3, tf.int32), tf.zeros((1, 2)), tf.zeros(9), tf.zeros(()), tf.zeros(0, tf.int32)]
    assert tensorflow_collectives._packs(values) == [[0, 2], [1, 5], [3], [4]]


@pytest.mark.slow
def test_a_broadcast_to_several_replicas_of_a_worker_counts_once():
    program = """
import tensorflow as tf
from tensorflowonspark.keras.tensorflow_collectives import broadcast
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
values = [[tf.constant(5)], [tf.constant([[1.5, 2.5]])], [tf.constant(7)], [tf.constant(3.0), tf.constant(3.0)]]
print([each.numpy().tolist() for each in broadcast(strategy, True, values)])
"""
    assert run_python(program).strip() == "[5, [[1.5, 2.5]], 7, 3.0]"
