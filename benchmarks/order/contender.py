"""Contender: one cluster of two workers that is fed the same rows for each order, and trains on them by ``fit``."""

import tempfile
import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, floats, two_whole_workers

FEATURES = 64


def program(directory, ctx):
    """Train two epochs on each feed; return the seconds of the second, and of the longest wait for its order."""
    import keras

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began, self.first = time.perf_counter(), None

        def on_train_batch_begin(self, batch, logs=None):
            self.first = self.first or time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = time.perf_counter() - self.began

    found = []
    with ctx.strategy().scope():
        layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        model.compile("sgd", "mse", jit_compile=False)
    for number, feed in enumerate(ctx.feeds()):
        with open(f"{directory}/{number}") as file:
            batch_size = int(file.read())
        clock = Clock()
        model.fit(feed.dataset(batch_size, features="x", label="label"), epochs=2, verbose=0, callbacks=[clock])
        found.append((clock.seconds, feed.total_rows))
    return found


def trained(spark, frame, order, batch_size):
    """Return the seconds of an epoch, and its rows."""
    import tensorflowonspark as tfos

    with tempfile.TemporaryDirectory() as directory, tfos.Cluster(spark, program, directory, num_workers=2) as cluster:
        with open(f"{directory}/0", "w") as file:
            file.write(str(batch_size))
        cluster.train(frame, order=order)
        found = [each[0] for each in cluster.join().values()]
    return {"seconds": max(seconds for seconds, _ in found), "rows": found[0][1]}


def ordered(rows, partitions):
    """Return the seconds in which a worker computes an epoch's order, of all rows."""
    from tensorflowonspark.node.feed.global_order import global_order

    begin = time.perf_counter()
    order = global_order([rows // partitions] * partitions, 7, 1)
    return {"seconds": time.perf_counter() - begin, "rows": len(order)}


if __name__ == "__main__":
    with two_whole_workers("2g") as session:
        frames = Frames(session)

        def one_round(request):
            if request["what"] == "order":
                return ordered(request["rows"], request["partitions"])
            columns = [f"{floats(FEATURES)} as x", "cast(id % 10 as float) as label"]
            found = frames.of(columns, request["rows"], request["partitions"])
            return trained(session, found, request["order"], request["batch_size"])

        serve_rounds(one_round)
