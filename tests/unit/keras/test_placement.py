"""Placed layers in a process that is connected to no other one, and a strategy's own options in its replicas."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflowonspark as tfos
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras import tensorflow_collectives
from tensorflowonspark.keras.devices import node_devices


def test_a_placed_layer_is_an_ordinary_one_in_a_process_of_its_own():
    keras.utils.set_random_seed(1)
    own = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=1)])
    keras.utils.set_random_seed(1)
    placed = keras.Sequential(
        [tfos.keras.Placed(layer, "worker:1") for layer in (keras.layers.Dense(4), own.layers[1])]
    )
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(placed(x), own(x))
    assert not np.array_equal(placed(x, training=True), placed(x))
    assert node_devices() == {}


def test_a_placed_layer_is_made_anew_from_its_configuration(tmp_path):
    layer = tfos.keras.Placed(keras.layers.Embedding(5, 2, mask_zero=True), "ps:1", name="table")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer, keras.layers.GlobalAveragePooling1D()])
    again = tfos.keras.Placed.from_config(layer.get_config())
    assert (again.node, again.name, again.layer.get_config()) == ("ps:1", "table", layer.layer.get_config())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids = np.array([[1, 0, 0], [2, 3, 0]])
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    np.testing.assert_allclose(model.predict(ids, verbose=0)[0], layer.layer.embeddings[1], rtol=1e-6)  # by its mask


@pytest.mark.parametrize("node", ["worker", "worker:x", "evaluator:0", "gpu:0", 1, None])
def test_a_name_that_is_no_nodes(node):
    with pytest.raises(SpecError, match=f"Placed.*, {node!r}.: expected the name of a node, as 'worker:1'"):
        tfos.keras.Placed(keras.layers.Dense(1), node)


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(
        SpecError, match="needs Keras's TensorFlow backend, and this is 'jax': on JAX use keras.distrib"
    ):
        tfos.keras.Placed(keras.layers.Dense(1), "worker:1")


def test_replicas_reduce_with_the_options_of_their_strategy():
    """On one replica TensorFlow reduces nothing; real workers are tested in `tests/cluster/parallel`."""
    used = []

    class Replica:
        strategy = SimpleNamespace(_tfos_options=tf.distribute.experimental.CommunicationOptions(100, 7.0))

        def all_reduce(self, reduce_op, value, options=None):
            used.append((options.bytes_per_pack, options.timeout_seconds, options.implementation.value))

    tensorflow_collectives.keep_options(
        SimpleNamespace(distribute=SimpleNamespace(ReplicaContext=Replica), __name__="tensorflow")
    )
    Replica().all_reduce("SUM", [])
    Replica().all_reduce("SUM", [], tf.distribute.experimental.CommunicationOptions())
    Replica().all_reduce("SUM", [], options=tf.distribute.experimental.CommunicationOptions(5, None, "RING"))
    assert used == [(100, 7.0, "AUTO"), (100, 7.0, "AUTO"), (5, 7.0, "RING")]
