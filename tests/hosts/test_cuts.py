"""Breaks of the network, after which it is whole again: training goes on, or the error names the host."""

import time

import pytest

import tensorflowonspark as tfos
from tests.support.host_cluster import host_cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A cluster whose driver is on the first host, and whose workers are on the two others."""
    with host_cluster(tmp_path_factory.mktemp("pair"), workers=(1, 2)) as cluster:
        yield cluster


def train(args, ctx):
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)
            if batch == 10:
                print("10 steps", flush=True)

    model.fit(ctx.dataset(8, features="x", label="y"), epochs=args["epochs"], verbose=0, callbacks=[Slow()])
    return [each.tolist() for each in model.get_weights()]


def drive(spark, args, settings):
    data = spark.range(400).selectExpr("array(id % 2, id % 3, id % 5, id % 7) as x", "float(id % 2) as y")
    with tfos.Cluster(spark, train, args, num_workers=2, show="all", **settings) as cluster:
        cluster.train(data.repartition(4))
        return cluster.join()


def cut_in_training(pair, seconds, **settings):
    """Cut the last host off for a time while it trains; return the driver's program."""
    driver = pair.start(drive, {"epochs": 2}, settings)
    driver.wait_for("10 steps")
    pair.network.cut(pair.hosts[2])
    time.sleep(seconds)
    pair.network.heal(pair.hosts[2])
    return driver


@pytest.mark.timeout(300)
def test_a_training_in_step_outlives_a_cut_of_five_seconds(pair):
    results = cut_in_training(pair, 5).result()
    assert results["worker:0"] == results["worker:1"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_in_step_that_a_longer_cut_ends_names_the_host(pair):
    driver = cut_in_training(pair, 22)
    with pytest.raises(tfos.NodeError) as caught:
        driver.result()
    text = str(caught.value).partition("\n\n")[0]
    assert "its TensorFlow has lost worker:" in text
    assert "which runs: the network between them was broken" in text
    assert "Restart your program" not in text
