"""Contenders: feeds, the Spark job that counts their rows, and an import of TensorFlow with one step."""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, floats, two_whole_workers

COLUMNS = [f"{floats(784)} as x", "cast(id % 10 as float) as label"]
_MEMORY = "3g"


def counted(frame):
    """Count the rows of a DataFrame in Python, batch by batch, as a feeding task receives them."""

    def count(batches):
        import pyarrow as pa

        yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})

    return sum(row.rows for row in frame.mapInArrow(count, "rows long").collect())


class Clock:
    """What passes from its creation on: seconds, and those of the machine's processors that were busy."""

    def __init__(self):
        self._began, self._busy = time.time(), self._seconds_busy()

    def until(self, ended=None):
        """Return both, until now; the seconds until a time in the round, if it is given."""
        now = time.time()
        return {"seconds": (ended or now) - self._began, "busy": self._seconds_busy() - self._busy}

    @staticmethod
    def _seconds_busy():
        user, nice, system = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
        return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def pass_over(args, ctx):
    """Pass over each feed; return the number of rows of all."""
    return sum(int((weights > 0).sum()) for feed in ctx.feeds() for *_, weights in feed.batches(256))


def fit_one_epoch(_, ctx):
    """Train a small model on all workers; return when the first step ended."""
    import keras
    import tensorflow as tf

    steps = []
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(time.time()))
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model(keras)
    dataset = ctx.dataset(256, features="x", label="label", shapes={"x": (784,)})
    model.fit(dataset, epochs=1, verbose=0, callbacks=[clock])
    return steps[0]


def small_model(keras):
    """Return a compiled model."""
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@contextmanager
def small_feeds():
    """Yield a function that runs one round of a feed, or of the job, of few rows."""
    import tensorflowonspark as tfos

    with two_whole_workers(_MEMORY) as spark:
        frames = Frames(spark)
        with tfos.Cluster(spark, pass_over, num_workers=2) as cluster:

            def run_round(request):
                frame = frames.of(COLUMNS, request["rows"])
                start = time.monotonic()
                if request["how"] == "count":
                    assert counted(frame) == request["rows"]
                else:
                    cluster.train(frame, cache=request["cache"])
                return time.monotonic() - start

            yield run_round


@contextmanager
def first_feed():
    """Yield a function that runs the first job of an application."""
    import tensorflowonspark as tfos

    with two_whole_workers(_MEMORY) as spark:

        def run_round(request):
            frame = spark.range(0, request["rows"], 1, 8).selectExpr(*COLUMNS)
            clock = Clock()
            if request["how"] == "count":
                assert counted(frame) == request["rows"]
                return clock.until()
            if request["how"] == "train early":
                with tfos.Cluster(spark, fit_one_epoch, num_workers=2) as cluster:
                    cluster.train(frame, start="first_rows")
                    steps = cluster.join()
            else:
                begin = "first_rows" if request["how"] == "run early" else "all_rows"
                steps = tfos.run(spark, fit_one_epoch, data=tfos.Data(frame, start=begin), num_workers=2)
            return clock.until(max(steps.values()))

        yield run_round


@contextmanager
def bare_import():
    """Yield a function that imports TensorFlow and takes one step."""

    def run_round(_):
        clock = Clock()
        import keras
        import numpy as np
        import tensorflow as tf  # noqa: F401

        model = small_model(keras)
        model.fit(np.zeros((256, 784), np.float32), np.zeros(256), batch_size=256, verbose=0)
        return clock.until()

    yield run_round


if __name__ == "__main__":
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes can't import it
    with {"small": small_feeds, "first": first_feed, "import": bare_import}[sys.argv[1]]() as serve:
        serve_rounds(serve)
