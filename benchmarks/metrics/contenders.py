"""Contender: two workers that train two equal models in turn, one of which is measured as every training is."""

import time

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import floats, two_one_core_workers

_METER = ("pass_began", "rows_requested", "rows_read", "rows_taken", "pass_ended")


def train(args, ctx):
    """Train for some rounds; return the seconds of a step in each round, measured and not."""
    import keras
    import tensorflow as tf

    from tensorflowonspark.keras import training_events, waiting

    measured = waiting._collectives.measured

    def switch(on):
        waiting._collectives.measured = measured if on else lambda _inputs, build: build()
        training_events.connect(ctx._meter if on else None)
        for name in _METER:
            ctx._meter.__dict__.pop(name, None)
            if not on:
                setattr(ctx._meter, name, lambda *_, **__: None)

    def make_model():
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            layers = [keras.layers.Dense(args["width"], "relu") for _ in range(args["depth"])]
            model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, "softmax")])
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    dataset = ctx.dataset(args["batch"], features="x", label="label")
    steps = len(dataset)
    models, seconds = {}, {True: [], False: []}
    for on in (True, False):
        switch(on)
        models[on] = make_model()
        models[on].fit(dataset, epochs=1, verbose=0)  # traces
    for number in range(args["rounds"] + 1):
        for on in (True, False) if number % 2 else (False, True):
            switch(on)
            began = time.perf_counter()
            models[on].fit(dataset, epochs=1, verbose=0)
            if number:
                seconds[on].append((time.perf_counter() - began) / steps)
    switch(True)
    return {"on": seconds[True], "off": seconds[False]}


def main():
    """Serve rounds, each a cluster of its own."""
    import tensorflowonspark as tfos

    with two_one_core_workers() as spark:

        def run_round(request):
            columns = [f"{floats(64)} AS x", "cast(id % 10 as int) AS label"]
            frame = spark.range(0, request["rows"], 1, 2).selectExpr(*columns)
            with tfos.Cluster(spark, train, request, num_workers=2) as cluster:
                cluster.train(frame)
                found = cluster.join()["worker:0"]
            epochs = len(cluster.metrics().epochs)
            assert epochs == request["rounds"] + 2, epochs  # those that were measured
            return found

        serve_rounds(run_round)


if __name__ == "__main__":
    main()
