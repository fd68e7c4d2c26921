"""The contender: a Spark application on a host, each of whose rounds feeds nodes, shuffles rows, or trains in step.

python -m benchmarks.network.contender spark://host:port
"""

import statistics
import sys
import time

import numpy as np

import tensorflowonspark as tfos
from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import run_all

WIDTH = 784  # of a row of float32
_PARTITIONS = 12
_ZEROS = 0.8  # the share of zeros in rows like images of handwritten digits
_STEPS = 6


def make_rows(kind):
    """Return a function for `mapInArrow` that makes rows of random numbers ("noise"), or of pixels and zeros."""

    def make(batches):
        import pyarrow as pa

        for batch in batches:
            ids = batch.column(0).to_numpy()
            random = np.random.default_rng(int(ids[0]))
            if kind == "noise":
                values = random.random(len(ids) * WIDTH, np.float32)
            else:
                pixels = random.integers(1, 256, len(ids) * WIDTH)
                values = np.where(random.random(pixels.shape) < _ZEROS, 0, pixels).astype(np.float32) / np.float32(255)
            x = pa.ListArray.from_arrays(np.arange(0, len(values) + 1, WIDTH, dtype=np.int32), values)
            yield pa.record_batch({"x": x, "id": pa.array(ids)})

    return make


def take_all(args, ctx):
    """Take each feed, until the cluster shuts down."""
    for feed in ctx.feeds():
        assert feed.rows


def time_steps(args, ctx):
    """Return the seconds of a step whose gradients have so many bytes, with the other workers if there are any."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if ctx.num_workers > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(args // 2000, use_bias=False)])
        model.compile("sgd", "mse")
    x, y = tf.ones((2, 500)), tf.zeros((2, args // 2000))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    seconds = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self._begin = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            seconds.append(time.perf_counter() - self._begin)

    dataset = tf.data.Dataset.from_tensors((x, y)).repeat(_STEPS).with_options(options)
    model.fit(dataset, verbose=0, callbacks=[Clock()])
    return statistics.median(seconds[2:])  # the first ones compile, and connect


class Application:
    """A Spark application, its rows in Spark's memory, and the cluster that they are fed to."""

    def __init__(self, master):
        from pyspark.sql import SparkSession

        self._spark = SparkSession.builder.master(master).getOrCreate()
        self._made = self._frame = self._cluster = None

    def round(self, request):
        """Return the seconds of a round."""
        if request["what"] == "gradients":
            self.close()
            results = tfos.run(self._spark, time_steps, request["bytes"], num_workers=request["workers"])
            return max(results.values())
        frame = self._rows(request["kind"], request["rows"])
        if self._cluster is None:
            self._cluster = tfos.Cluster(self._spark, take_all, num_workers=2).start()
        begin = time.perf_counter()
        if request["what"] == "shuffle":
            run_all(frame.repartition(_PARTITIONS))
        else:
            self._cluster.train(frame)
        return time.perf_counter() - begin

    def _rows(self, kind, rows):
        if self._made != (kind, rows):
            if self._frame is not None:
                self._frame.unpersist(True)
            made = self._spark.range(0, rows, 1, _PARTITIONS).mapInArrow(make_rows(kind), "x array<float>, id long")
            self._made, self._frame = (kind, rows), made.cache()
            assert self._frame.count() == rows
        return self._frame

    def close(self):
        """End the cluster."""
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = None


if __name__ == "__main__":
    application = Application(sys.argv[1])
    serve_rounds(application.round)
    application.close()
