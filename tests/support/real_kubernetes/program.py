"""A fed training on two pods, in which worker 1 does something at the end of an epoch: program.py DEED FOLDER RESTARTS

The deeds: ``none``; ``wait`` until something is done to its pod, or go on slowly meanwhile (``slow``); fill the memory
of its pod (``process``) or a disk (``disk``); have the container end (``container``).
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import tensorflowonspark as tfos


def fill(path, pause):
    """Fill a file until something ends this process."""
    with open(path, "wb") as file:
        while True:
            file.write(os.urandom(1 << 20) * 8)
            time.sleep(pause)


def do(deed, folder):
    """Do in this pod what `deed` says."""
    if deed == "wait":
        Path(folder, "waiting").write_text(socket.gethostname())
        time.sleep(300)
    elif deed == "process":
        kept = []
        while True:
            kept.append(bytearray(os.urandom(1 << 20) * 8))
    elif (
        deed == "container"
    ):  # with cgroup v2 the kernel kills all in it; with v1 one process, and so this kills the JVM
        for each in Path("/proc").glob("[0-9]*"):
            if (each / "comm").read_text().strip() == "java":
                os.kill(int(each.name), signal.SIGKILL)
        time.sleep(300)
    elif deed == "disk":
        fill("/tmp/full", 0.2)


def train(args, ctx):
    """Train for six epochs; worker 1 does its deed after the third, in the first attempt."""
    import keras
    import tensorflow as tf

    deed, folder = args

    class Deed(keras.callbacks.Callback):
        epochs = steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if deed == "slow" and ctx.index == 1 and ctx.attempt == 0 and self.epochs > 2:
                Path(folder, "waiting").write_text(socket.gethostname())
                time.sleep(1)

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1
            if ctx.index == 1 and ctx.attempt == 0 and epoch == 2:
                do(deed, folder)

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    done = Deed()
    callbacks = [ctx.checkpoint(f"{folder}/checkpoints").callback(), done]
    history = model.fit(ctx.dataset(32, features="x", label="y"), epochs=6, verbose=0, callbacks=callbacks)
    found = {"attempt": ctx.attempt, "epochs": done.epochs, "steps": done.steps, "pod": socket.gethostname()}
    return {**found, "loss": float(history.history["loss"][-1])}


def rows(spark):
    """Return 640 rows, in four partitions, of which the label is linear in the features."""
    x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    y = x @ np.array([1, 2, 3, 4], "float32")
    data = [(features.tolist(), float(label)) for features, label in zip(x, y, strict=True)]
    return spark.createDataFrame(spark.sparkContext.parallelize(data, 4), "x array<float>, y float")


def main(deed, folder, restarts):
    spark = SparkSession.builder.getOrCreate()
    try:
        with tfos.Cluster(spark, train, (deed, folder), num_workers=2, restarts=int(restarts)) as cluster:
            cluster.train(rows(spark))
            results = cluster.join()
            found = {"results": results, "events": [each.kind for each in results.metrics.events]}
    except tfos.ClusterError as error:
        found = {"error": str(error), "type": type(error).__name__}
    sys.stdout.write(f"{json.dumps(found)}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
