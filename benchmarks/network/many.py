"""A cluster with one worker on each of many hosts: its start, a feed, training in step, and a host that vanishes."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.host_cluster import host_cluster

_ROWS_PER_WORKER = 1000


def train(args, ctx):
    """Train a small model in step with all other workers; say when it steps, and which attempt it is."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Say(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.is_chief and batch == 4 and not self.model.said:
                self.model.said = True
                print(f"steps in attempt {ctx.attempt}", flush=True)
            if ctx.attempt and batch == 4:
                self.model.stop_training = True

    model.said = False
    dataset = ctx.dataset(4 * ctx.num_workers, features="x", label="y")
    callback = ctx.checkpoint(args).callback(every=20)
    model.fit(dataset, epochs=1000, verbose=0, callbacks=[callback, Say()])
    return ctx.attempt


def drive(spark, workers, checkpoints):
    """Run the cluster, as a driver's program that says what has been reached."""
    import cloudpickle

    import tensorflowonspark as tfos
    from benchmarks.network import many

    cloudpickle.register_pickle_by_value(many)  # the nodes can't import it
    data = spark.range(0, workers * _ROWS_PER_WORKER, 1, 2 * workers)
    data = data.selectExpr("array_repeat(float(id % 7), 8) as x", "float(id % 5) as y")
    print("begins", flush=True)
    with tfos.Cluster(
        spark, train, checkpoints, num_workers=(workers - 1, workers), restarts=1, logs=tfos.Logs(show="all")
    ) as cluster:
        print("all are up", len(cluster.nodes), flush=True)
        cluster.train(data)
        print("all are fed", flush=True)
        return cluster.join()


def one_run(workers):
    """Return the seconds from one event of a run to the next, and the driver's share of the processor time."""
    seconds = {}

    def reach(text, name):
        driver.wait_for(text, 600)
        seconds[name] = time.monotonic() - begin

    hosts = {"workers": range(1, workers + 1), "memory": "700m", "count_hosts": workers + 1}
    with tempfile.TemporaryDirectory() as directory, host_cluster(Path(directory), **hosts) as cluster:
        driver = cluster.start(drive, workers, str(cluster.shared / "checkpoints"), seconds=1200)
        driver.wait_for("begins", 300)
        begin = time.monotonic()
        reach("all are up", "up")
        reach("steps in attempt 0", "first steps")
        used = {host.name: _processor_seconds(host) for host in cluster.hosts}
        gone = cluster.hosts[-1]
        cluster.network.kill(gone)
        begin = time.monotonic()
        reach("All nodes are started again", "lost, and started again")
        reach("steps in attempt 1", "lost, and next steps")
        attempts = driver.result()
        assert set(attempts.values()) == {1}, attempts
        assert len(attempts) == workers - 1, f"{len(attempts)} of {workers - 1} workers"
    driver_seconds = used.pop(cluster.hosts[0].name)
    return seconds | {"driver": driver_seconds / (driver_seconds + sum(used.values()))}


def _processor_seconds(host):
    """Return the processor time that the processes of a host, and their ended children, have taken."""
    total = 0.0
    for process in host.processes():
        with suppress(psutil.Error):  # it has ended
            total += sum(process.cpu_times()[:4])
    return total
