"""A training on Kubernetes that loses a pod: a test runs it as a driver, and reads what it prints.

python program.py URL DIRECTORY
"""

import json
import sys
import time
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.kubernetes.kubelet import Api


def train(args, ctx):
    import keras
    import tensorflow as tf

    class WaitForTheEnd(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1
            if ctx.index == 1 and ctx.attempt == 0 and epoch == 3:
                Path(args, "waiting").touch()
                time.sleep(600)

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    checkpoint = ctx.checkpoint(f"{args}/checkpoints")
    data = ctx.dataset(32, features="features", label="label")
    waiting = WaitForTheEnd()
    history = model.fit(data, epochs=6, verbose=0, callbacks=[checkpoint.callback(), waiting])
    return {
        "attempt": ctx.attempt,
        "epochs": waiting.epochs,
        "accuracy": history.history["accuracy"][-1],
    }


def delete_pod_of(cluster, api, marker):
    """Delete the pod of the second worker once it trains."""
    while not marker.exists():
        time.sleep(0.05)
    (pod,) = [each for each in api.get("pods") if each["status"].get("podIP") == cluster.nodes[1].host]
    api.delete(f"pods/{pod['metadata']['name']}")


def main(url, directory):
    api = Api(url)
    spark = SparkSession.builder.getOrCreate()
    points = spark.range(0, 1000, 1, 4).select(f.sin("id").alias("x"), f.cos(f.col("id") * 2).alias("y"))
    features = f.array("x", "y").cast("array<float>").alias("features")
    rows = points.select(features, (f.col("x") > f.col("y")).cast("float").alias("label"))

    with tfos.Cluster(spark, train, directory, num_workers=2, restarts=1) as cluster:
        hosts = [node.host for node in cluster.nodes]
        pods = [each["status"]["podIP"] for each in api.get("pods")]
        Thread(target=delete_pod_of, args=(cluster, api, Path(directory, "waiting")), daemon=True).start()
        cluster.train(rows)
        print(json.dumps({"results": cluster.join(), "hosts": hosts, "pods": pods}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
