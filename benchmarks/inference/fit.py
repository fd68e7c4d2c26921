"""Contenders: the same training by ``KerasEstimator.fit``, and started by hand.

By hand is without Spark: a process for each of two workers, started with ``TF_CONFIG``, with the rows in its memory.
"""

import json
import os
import socket
import subprocess
import sys
import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, two_whole_workers
from benchmarks.feed import training
from benchmarks.feed.rows import KINDS

_MODEL = "middle"
_BATCH = 512  # of both workers together


def build():
    """Return the compiled model."""
    import keras

    model = keras.Sequential([keras.Input(training.SHAPES[_MODEL]), *training.layers(_MODEL)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(spark, frame, request):
    """Return the seconds of the estimator's ``fit``, with start-up and shutdown of its cluster."""
    from tensorflowonspark.ml import KerasEstimator

    estimator = KerasEstimator(build, numWorkers=2, epochs=request["epochs"], batchSize=_BATCH, verbose=0)
    started = time.monotonic()
    model = estimator.fit(frame)
    seconds = time.monotonic() - started
    assert model.summary.totalIterations == request["epochs"]
    return seconds


def by_hand(request):
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
        workers.append(
            subprocess.Popen([sys.executable, "-m", "benchmarks.inference.fit", json.dumps(request)], env=environment)
        )
    for worker in workers:
        assert not worker.wait()
    return time.monotonic() - started


def work(request):
    """Train, as one of the two workers."""
    from tensorflowonspark.keras.hooks import install

    install()  # Keras 3 by itself can't fit on several workers
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build()
    x, y = training.arrays(request["rows"] // 2)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(_BATCH)
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    steps = -(-request["rows"] // _BATCH)
    model.fit(data.repeat().with_options(off), epochs=request["epochs"], steps_per_epoch=steps, verbose=0)


def main():
    """Serve rounds."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(training)  # the nodes can't import it
    with two_whole_workers("4g") as spark:
        frames = Frames(spark)

        def run_round(request):
            if request["method"] == "by hand":
                return by_hand(request)
            return fit(spark, frames.of(KINDS["floats"].columns, request["rows"]), request)

        serve_rounds(run_round)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(json.loads(sys.argv[1]))
    else:
        main()
