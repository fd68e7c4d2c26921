"""Contender of lifecycle.py: the second cluster of an application, on `local[2]`, with and without warm nodes."""

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rounds import contend


def program(args, ctx):
    """Do what every program does first; tell when it was done."""
    import keras
    import tensorflow as tf

    with tf.distribute.get_strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return time.time()


def fork_server(scratch):
    """Return the application's fork server, when it listens."""
    while not (found := list(Path(scratch).rglob("tfos-warm-*/socket"))):
        time.sleep(0.1)
    lock = str(found[0].with_name("server"))
    for process in psutil.process_iter(["cmdline"]):
        if "tensorflowonspark.supervisor.forkserver" in (process.info["cmdline"] or []) and any(
            os.readlink(each) == lock for each in Path(f"/proc/{process.pid}/fd").iterdir()
        ):
            return process
    raise LookupError("the fork server has ended")


def main():
    """Serve rounds: seconds from a cluster's start until all its programs have TensorFlow and a model."""
    from pyspark.sql import SparkSession

    import tensorflowonspark as tfos

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as scratch:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.local.dir", scratch).getOrCreate()
        tfos.run(spark, program, num_workers=2)  # the first cluster
        server = fork_server(scratch)

        def run_round(what):
            if what == "memory":
                memory = server.memory_full_info()
                return [memory.rss >> 20, memory.uss >> 20]
            started = time.time()
            with tfos.Cluster(spark, program, num_workers=2, warm_nodes=what == "warm") as cluster:
                return max(cluster.join().values()) - started

        contend(run_round)
        spark.stop()


if __name__ == "__main__":
    main()
