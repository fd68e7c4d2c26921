"""Contender: one cluster of two workers that is fed the same rows in each order, and trains on them by ``fit``."""

import json
import tempfile
import time
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, floats, two_whole_workers

FEATURES, UNITS = 64, 256


def program(directory, ctx):
    """Train two epochs on each feed; write the seconds of the second."""
    import keras

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = time.perf_counter() - self.began

    with ctx.strategy().scope():
        layers = [keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        model.compile("sgd", "mse", jit_compile=False)
    for number, feed in enumerate(ctx.feeds()):
        batch_size = json.loads(Path(directory, f"batch-{number}").read_text())
        clock = Clock()
        model.fit(feed.dataset(batch_size, features="x", label="label"), epochs=2, verbose=0, callbacks=[clock])
        Path(directory, f"seconds-{number}-{ctx.index}").write_text(json.dumps(clock.seconds))


def ordered(rows, partitions):
    """Return the seconds in which a worker computes an epoch's order, of all rows."""
    from tensorflowonspark.node.feed.global_order import global_order

    begin = time.perf_counter()
    global_order([rows // partitions] * partitions, 7, 1)
    return {"seconds": time.perf_counter() - begin}


def main():
    """Serve the rounds."""
    import tensorflowonspark as tfos

    with two_whole_workers("2g") as session, tempfile.TemporaryDirectory() as directory:
        frames = Frames(session)
        with tfos.Cluster(session, program, directory, num_workers=2) as cluster:
            fed = 0

            def one_round(request):
                nonlocal fed
                if request["what"] == "order":
                    return ordered(request["rows"], request["partitions"])
                columns = [f"{floats(FEATURES)} as x", "cast(id % 10 as float) as label"]
                frame = frames.of(columns, request["rows"], request["partitions"])
                Path(directory, f"batch-{fed}").write_text(json.dumps(request["batch_size"]))
                cluster.train(frame, order=request["order"])
                fed += 1
                return {
                    "seconds": max(
                        json.loads(each.read_text()) for each in Path(directory).glob(f"seconds-{fed - 1}-*")
                    )
                }

            serve_rounds(one_round)


if __name__ == "__main__":
    main()
