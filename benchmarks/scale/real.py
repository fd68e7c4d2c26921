"""Contender: a driver on ``local[N]`` with N real nodes that train together; one is killed, and all start again."""

import logging
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import cloudpickle

import tensorflowonspark as tfos
from benchmarks.common.rounds import serve_rounds
from benchmarks.recovery import program as recovery
from benchmarks.recovery.program import Enough, Notes, noted

_MOST_NODES = 16
_STEPS = 5  # of each worker before the kill, and after the restart
_POLL_SECONDS = 0.002


def train(args, ctx):
    """Train a small Keras model with all other workers; in the first attempt, until one of them is killed."""
    note = Notes(args["directory"], ctx.attempt, ctx.index)
    note("up")
    if "tensorflow" in sys.modules:  # before the program imports it: of the fork server
        note("forked")
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.random.default_rng(1).random((64 * ctx.num_workers, 8), dtype=np.float32)

    class StepTimes(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == 1:
                note("step")
            if self.steps == _STEPS:
                note("busy")
                if ctx.attempt:
                    raise Enough  # on all workers at the same step

    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4 * ctx.num_workers).repeat()
    with suppress(Enough):
        model.fit(data, epochs=1000, steps_per_epoch=1000, verbose=0, callbacks=[StepTimes()])
    return ctx.attempt


class RestartTime(logging.Handler):
    """Records the time at which the driver logs the restart."""

    def emit(self, record):
        """Take the time of one record."""
        if "started again" in record.getMessage():
            self.moment = record.created


def run_round(spark, request):
    """Return the seconds until all nodes are up and all have done a step, first and after one of them was killed.

    And how many nodes were forked, first and again.
    """
    count = request["nodes"]
    moment = []
    with tempfile.TemporaryDirectory() as directory:

        def kill():
            while (busy := noted(directory, "busy", nodes=count)) is None:
                time.sleep(_POLL_SECONDS)
            moment.append(time.time())
            os.kill(busy[1], signal.SIGKILL)

        logging.getLogger("tensorflowonspark").addHandler(restart := RestartTime())
        started = time.time()
        with tfos.Cluster(spark, train, {"directory": directory}, num_workers=count, restarts=1) as cluster:
            Thread(target=kill, daemon=True).start()
            cluster.join()
            attempts = cluster.shutdown().values()
        logging.getLogger("tensorflowonspark").removeHandler(restart)
        assert set(attempts) == {1}, attempts
        return {
            "up": noted(directory, "up", nodes=count)[0] - started,
            "step": noted(directory, "step", nodes=count)[0] - started,
            "error": restart.moment - moment[0],
            "again": noted(directory, "step", 1, count)[0] - moment[0],
            "forked": len(list(Path(directory).glob("0-*-forked"))),
            "forked again": len(list(Path(directory).glob("1-*-forked"))),
        }


def main():
    """Serve rounds; the first one starts Spark and the fork server."""
    from pyspark.sql import SparkSession

    cloudpickle.register_pickle_by_value(recovery)  # the nodes can't import it
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(f"local[{_MOST_NODES}]").config("spark.ui.enabled", "false").getOrCreate()
    serve_rounds(lambda request: run_round(spark, request))
    spark.stop()


if __name__ == "__main__":
    main()
