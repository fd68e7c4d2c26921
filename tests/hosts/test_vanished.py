"""A host that vanishes: without a notice, and with all that runs on it. Spark takes it for alive for a minute."""

import time

import pytest

import tensorflowonspark as tfos


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

    callbacks = [Slow(), ctx.checkpoint(args["checkpoints"]).callback(every=5)]
    model.fit(ctx.dataset(8, features="x", label="y"), epochs=2, verbose=0, callbacks=callbacks)
    return ctx.attempt, ctx.host, [each.tolist() for each in model.get_weights()]


def drive(spark, args):
    data = spark.range(400).selectExpr("array(id % 2, id % 3, id % 5, id % 7) as x", "float(id % 2) as y")
    with tfos.Cluster(spark, train, args, num_workers=2, restarts=1, show="all") as cluster:
        print("placed", *(each.host for each in cluster.nodes), flush=True)
        cluster.train(data.repartition(4))
        return cluster.join()


@pytest.mark.timeout(400)
def test_a_restart_does_not_use_the_host_that_has_vanished(cluster):
    """The driver is on a host of its own; of three workers' hosts one is spare."""
    driver = cluster.start(drive, {"checkpoints": str(cluster.shared / "checkpoints")}, seconds=300)
    driver.wait_for("10 steps", 200)
    (placed,) = [line for line in driver.output.splitlines() if line.startswith("placed")]
    number = next(n for n, host in enumerate(cluster.hosts) if n and host.address in placed.split())
    gone = cluster.hosts[number]
    cluster.network.kill(gone)
    try:
        results = driver.result()
    finally:
        cluster.revive(number)
    line = f"All nodes are started again, without {gone.address}, which does not answer (restart 1 of 1)"
    assert line in driver.output
    (attempt, host, weights), (_, other, same) = results.values()
    assert attempt == 1
    assert gone.address not in (host, other)
    assert weights == same
