"""Layers on other nodes: placed with their optimizer's variables, trained as on one node, exported for any."""

import re
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.commands import run_python
from tests.support.local_cluster import local_cluster
from tests.support.processes import node_of
from tests.support.programs import wait_for

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def rows():
    """Return rows of ids, with their labels."""
    ids = np.random.RandomState(0).randint(0, 50, (64, 5))
    return ids, ids.sum(axis=1, keepdims=True).astype(np.float32) / 100


def make_model(keras, place):
    """Return a model whose first layers are placed by a function of a layer and a node."""
    return keras.Sequential(
        [
            place(keras.layers.Embedding(50, 8, mask_zero=True), "worker:1"),
            place(keras.layers.GlobalAveragePooling1D(), "worker:0"),
            place(keras.layers.Dropout(0.25, seed=3), "worker:1"),
            place(keras.layers.Dense(4, "relu"), "worker:1"),
            keras.layers.Dense(1),
        ]
    )


def train(args, ctx):
    """Train a placed model and one that is not; return what must be equal, and devices.

    With a directory, also by a loop; and the placed model is exported there.
    """
    if not ctx.is_chief:
        ctx.join_server()
    import keras
    import tensorflow as tf

    devices = ctx.connect()
    again = ctx.connect() == devices
    results = []
    for place in (tfos.keras.Placed, lambda layer, _: layer):
        keras.utils.set_random_seed(1)
        model = make_model(keras, place)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        ids, labels = rows()
        losses = model.fit(ids, labels, epochs=2, batch_size=32, shuffle=False, verbose=0).history["loss"]

        @tf.function
        def step(ids, labels, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(ids, training=True) - labels) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses += [float(step(ids, labels)) for _ in range(2 if args else 0)]
        variables = [(each.path, each.value.device) for each in [*model.weights, *model.optimizer.variables]]
        results.append((losses, model(ids).numpy(), variables))
        if args and place is tfos.keras.Placed:
            ctx.export(model, f"{args}/model.keras")
            ctx.export(model, f"{args}/saved")
    with pytest.raises(
        tfos.SpecError, match="layer 'placed.*' is placed on ps:0, and this program is connected to work"
    ):
        tfos.keras.Placed(keras.layers.Dense(1), "ps:0")(tf.zeros((1, 2)))
    with pytest.raises(tfos.SpecError, match="'worker:2' is no node of this cluster: it has worker:0, worker:1"):
        ctx.device("worker:2")
    return devices, again, ctx.device("worker:1"), results


def check(result):
    """Assert that a model that is placed was trained like the other; return its devices by variable."""
    devices, again, device, ((losses, predictions, placed), (own_losses, own_predictions, _)) = result
    assert list(devices) == ["worker:0", "worker:1"]
    assert again
    assert device == devices["worker:1"] == "/job:worker/replica:0/task:1/device:CPU:0"
    np.testing.assert_allclose(losses, own_losses, rtol=1e-5)
    np.testing.assert_allclose(predictions, own_predictions, rtol=1e-5)
    on_node = {path for path, each in placed if each == device}
    weights = ("embeddings", "dense/kernel", "dense/bias")
    assert sum(path.endswith(weights) for path in on_node) == len(weights)
    assert len(on_node) == 3 * len(weights)  # with momentum and velocity of each
    return predictions


def test_a_model_on_two_nodes_trains_like_one_on_one_node(spark):
    check(tfos.run(spark, train, num_workers=2)["worker:0"])


LOAD = """
import keras, sys
import numpy as np
import tensorflow as tf
import tensorflowonspark as tfos

folder, ids = sys.argv[1], np.load(sys.argv[2])
model = keras.models.load_model(f"{folder}/model.keras", custom_objects={"Placed": tfos.keras.Placed})
assert model.layers[0].node == "worker:1"
assert {each.value.device for each in model.weights} == {"/job:localhost/replica:0/task:0/device:CPU:0"}
saved = tf.saved_model.load(f"{folder}/saved")
np.save(sys.argv[3], [model.predict(ids, verbose=0), saved.serve(ids.astype("float32"))])
"""


@pytest.mark.slow
def test_a_placed_model_is_an_ordinary_one_elsewhere(tmp_path):
    with local_cluster(train, str(tmp_path), num_workers=2) as cluster:
        expected = check(cluster.join()["worker:0"])
    np.save(tmp_path / "ids.npy", rows()[0])
    arguments = [str(tmp_path), str(tmp_path / "ids.npy"), str(tmp_path / "predictions.npy")]
    run_python(LOAD, *arguments)
    for each in np.load(tmp_path / "predictions.npy"):
        np.testing.assert_allclose(each, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_node_that_does_not_serve_yet_is_named_and_then_waited_for(tmp_path):
    def program(args, ctx):
        served = Path(args, "serve")
        if ctx.index == 2:
            while not served.exists():
                time.sleep(0.05)
        if not ctx.is_chief:
            ctx.join_server()
        wait_for(lambda: not late(ctx.connect, 0.5, "worker:1"))
        error = late(ctx.connect, 0.5, "worker:2")
        served.touch()
        with pytest.raises(tfos.ClusterError, match=r"worker:0 is not connected to worker:1: call ctx.connect\(\)"):
            ctx.device("worker:1")
        return error, list(ctx.connect(timeout=60))

    def late(connect, timeout, node):
        try:
            connect(timeout=timeout)
        except tfos.ClusterError as error:
            return str(error) if node in str(error) else ""

    with local_cluster(program, str(tmp_path), num_workers=3) as cluster:
        error, devices = cluster.join()["worker:0"]
    assert re.fullmatch(
        r"ctx.connect\(\): after 0.5 s \(timeout\) these nodes do not serve: worker:2 \(127.0.0.1:\d+\). Their program "
        r"must call ctx.join_server\(\)",
        error,
    )
    assert devices == ["worker:0", "worker:1", "worker:2"]


@pytest.mark.slow
def test_a_killed_node_that_holds_layers_is_the_error_of_the_cluster(tmp_path):
    def program(args, ctx):
        if not ctx.is_chief:
            ctx.join_server()
        import tensorflow as tf

        ctx.connect()
        with tf.device(ctx.device("worker:1")):
            table = tf.Variable(tf.zeros((1000,)))
        Path(args, "placed").touch()
        while True:
            table.assign_add(tf.ones((1000,)))
            time.sleep(0.05)

    def kill():
        wait_for((tmp_path / "placed").exists)
        node_of(cluster, 1).kill()

    with (
        pytest.raises(tfos.NodeError) as caught,
        local_cluster(program, str(tmp_path), num_workers=2) as cluster,
    ):
        Thread(target=kill, daemon=True).start()
        cluster.join(timeout=100)
    assert (caught.value.node, caught.value.reason) == ("worker:1", "its process was ended by SIGKILL")
