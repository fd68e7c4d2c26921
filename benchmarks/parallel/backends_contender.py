"""Contender: one training on two workers, with Keras on TensorFlow or on JAX."""

import time
from functools import partial
from itertools import pairwise

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import floats, two_whole_workers


def _network(part):
    import keras

    layers = keras.layers
    if part == "dense":
        parts = [keras.Input((784,)), layers.Dense(1024, "relu"), layers.Dense(1024, "relu")]
    else:
        convolutions = [
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
        ]
        parts = [keras.Input((64,)), layers.Rescaling(1 / 16), layers.Reshape((8, 8, 1)), *convolutions]
    model = keras.Sequential([*parts, *([] if part == "dense" else [layers.Flatten()]), layers.Dense(10, "softmax")])
    rate = 1e-3 if part == "dense" else 3e-3
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(args, ctx):
    """Train; return the history and the seconds of each epoch."""
    from contextlib import nullcontext

    import keras
    import numpy as np

    scope = nullcontext()
    if args["backend"] == "tensorflow":
        import tensorflow as tf

        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    with scope:
        model = _network(args["part"])
    random = np.random.default_rng(args["seed"])
    model.set_weights(
        [
            random.normal(0, np.sqrt(2 / np.prod(each.shape[:-1])), each.shape) if each.ndim > 1 else each
            for each in model.get_weights()
        ]
    )
    ends = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.monotonic()))
    options = {"features": "x", "label": "label"}
    dataset = ctx.dataset(args["batch_size"], seed=args["seed"], **options)
    validation = ctx.validation_dataset(360, **options) if args["part"] == "digits" else None
    history = model.fit(dataset, epochs=args["epochs"], validation_data=validation, verbose=0, callbacks=[clock])
    return history.history, ends


def _rows(spark, request):
    """Return the rows to train on, and those to validate on."""
    if request["part"] == "dense":
        columns = [f"{floats(784)} as x", "cast(id % 10 as long) as label"]
        return spark.range(0, request["rows"], 1, 4).selectExpr(*columns).cache(), None
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    rows = [(number, images[each].tolist(), int(labels[each])) for number, each in enumerate(order)]
    frame = spark.createDataFrame(rows, "id long, x array<float>, label long").repartition(4, "id").cache()
    held_out = frame.where("id % 5 = 0")
    return frame.where("id % 5 <> 0").drop("id"), held_out.drop("id")


def run_round(spark, request):
    """Return accuracy, losses and speed of one training."""
    import tensorflowonspark as tfos

    frame, held_out = _rows(spark, request)
    count = frame.count()
    start = time.monotonic()
    args = {**request, "batch_size": 64 if held_out is not None else 256}
    env = {"KERAS_BACKEND": request["backend"]}
    data = tfos.Data(frame, validation=held_out)
    results = tfos.run(spark, train, args, num_workers=2, data=data, env=env, nodes=tfos.Nodes(warm_nodes=False))
    seconds = time.monotonic() - start
    history, ends = results["worker:0"]
    epochs = [after - before for before, after in pairwise(ends)]
    accuracy = history["val_accuracy" if held_out is not None else "accuracy"][-1]
    median = sorted(epochs)[len(epochs) // 2]
    return {"accuracy": accuracy, "losses": history["loss"], "rows_per_second": count / median, "seconds": seconds}


if __name__ == "__main__":
    with two_whole_workers("3g") as session:
        serve_rounds(partial(run_round, session))
