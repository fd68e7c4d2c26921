"""Contenders of inference.py's last part: the same training by ``KerasEstimator.fit``, and started by hand.

By hand is without Spark: a process for each of two workers, started with ``TF_CONFIG``, the rows in its memory.
"""

import json
import os
import socket
import subprocess
import sys
import time

from standalone import two_one_core_workers

import feed_fit
from feed_rows import Frames
from rounds import contend

_MODEL = "middle"
_BATCH = 512  # of both workers together


def build():
    """Return the compiled model."""
    import keras

    model = keras.Sequential([keras.Input(feed_fit.SHAPES[_MODEL]), *feed_fit.layers(_MODEL)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(spark, frame, order):
    """Return the seconds of the estimator's ``fit``, a cluster's begin and end included."""
    from tensorflowonspark.ml import KerasEstimator

    estimator = KerasEstimator(build, numWorkers=2, epochs=order["epochs"], batchSize=_BATCH, verbose=0)
    started = time.monotonic()
    model = estimator.fit(frame)
    seconds = time.monotonic() - started
    assert model.summary.totalIterations == order["epochs"]
    return seconds


def by_hand(order):
    """Return the seconds from the start of both processes to their end."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(f"127.0.0.1:{free.getsockname()[1]}")
    started = time.monotonic()
    workers = []
    for index in range(2):
        cluster = {"cluster": {"worker": ports}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(cluster)}
        workers.append(subprocess.Popen([sys.executable, __file__, json.dumps(order)], env=environment))
    for worker in workers:
        assert not worker.wait()
    return time.monotonic() - started


def work(order):
    """Train, as one of the two workers."""
    from tensorflowonspark.keras import install

    install()  # plain Keras 3 can't fit on several workers
    import tensorflow as tf

    from feed_in_memory import arrays

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
    x, y = arrays(order["rows"] // 2)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(_BATCH)
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    steps = -(-order["rows"] // _BATCH)
    model.fit(data.repeat().with_options(off), epochs=order["epochs"], steps_per_epoch=steps, verbose=0)


def main():
    """Serve rounds."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(feed_fit)
    settings = {"spark_executor_memory": "4g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers("4g", **settings) as spark:
        frames = Frames(spark)

        def run_round(what):
            order = json.loads(what)
            if order["road"] == "by hand":
                return by_hand(order)
            return fit(spark, frames.get("floats", order["rows"]), order)

        contend(run_round)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(json.loads(sys.argv[1]))
    else:
        main()
