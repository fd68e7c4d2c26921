"""A training loop of one's own: accumulated gradients, weights of rows, reports and checkpoints."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel


def photograph():
    """Return scikit-learn's photograph of a flower, at half its size, with values from 0 to 1."""
    from sklearn.datasets import load_sample_image

    return load_sample_image("flower.jpg")[::2, ::2].astype("float32") / 255


def pixels(spark):
    """Return a row for each pixel: its place, its color, and a weight, which is larger where the color changes."""
    import numpy as np
    import pandas as pd

    image = photograph()
    height, width, _ = image.shape
    row, column = np.mgrid[:height, :width].reshape(2, -1)
    change = np.hypot(*np.gradient(image.mean(axis=2))).reshape(-1)
    frame = pd.DataFrame({"id": np.arange(height * width), "weight": (1 + 10 * change).astype("float32")})
    frame["place"] = list(np.stack([column / width, row / height], axis=1).astype("float32"))
    frame["color"] = list(image.reshape(-1, 3))
    schema = "id long, weight float, place array<float>, color array<float>"
    return spark.createDataFrame(frame, schema).repartition(4, "id").cache()


def build():
    """Return a network from a place to a color: sines of fixed random frequencies, and three layers."""
    import keras

    place = keras.Input((2,), name="place")
    frequencies = keras.initializers.RandomNormal(stddev=40, seed=1)
    waves = keras.layers.Dense(64, use_bias=False, kernel_initializer=frequencies, trainable=False)(place)
    x = keras.layers.Concatenate()([keras.ops.sin(waves), keras.ops.cos(waves)])
    for _ in range(3):
        x = keras.layers.Dense(128, "relu")(x)
    return keras.Model(place, keras.layers.Dense(3, "sigmoid")(x))


def train(args, ctx):
    """Run on each node: take the steps of all epochs together with the others."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    steps = ctx.feed().steps(args["batch_size"])  # of an epoch, the same on all workers
    updates = -(-steps // args["accumulate"])
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-3, updates * args["epochs"]))
        optimizer.build(model.trainable_variables)
        own = {"trainable": False, "synchronization": tf.VariableSynchronization.ON_READ}  # each worker has its own
        gradients = [tf.Variable(tf.zeros(each.shape), **own) for each in model.trainable_variables]
        sums = tf.Variable(tf.zeros(2), **own)  # of the weighted losses, and of the weights

    def add(places, colors, weights):
        """Add the gradients of a batch; the rows that fill it up have the weight -0.0, and add nothing."""
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(model(places, training=True) - colors), axis=1)
            loss = tf.reduce_sum(weights * errors)
        for total, each in zip(gradients, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(each)
        sums.assign_add([loss, tf.reduce_sum(weights)])

    def update():
        """Change the weights by the mean over the rows of all batches and workers; return the mean loss."""
        loss, weight = tf.unstack(tf.distribute.get_replica_context().all_reduce("sum", sums.read_value()))
        means = [each / weight for each in gradients]
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))  # adds up those of all workers
        for each in [*gradients, sums]:
            each.assign(tf.zeros_like(each))
        return loss / weight

    add_batch = tf.function(lambda *batch: strategy.run(add, args=batch), reduce_retracing=True)
    update_all = tf.function(lambda: strategy.run(update))

    checkpoint = ctx.checkpoint(args["checkpoints"])
    state = tf.train.Checkpoint(model=model, optimizer=optimizer)
    first = checkpoint.restore(state)  # the step of the newest checkpoint, or 0
    dataset = ctx.dataset(args["batch_size"], features="place", label="color", sample_weight="weight", first_step=first)
    for epoch in range(first // steps, args["epochs"]):
        losses = []
        for step, batch in enumerate(dataset, 1):
            add_batch(*batch)
            if step % args["accumulate"] == 0 or step == steps:
                losses.append(update_all())
        ctx.report(epoch=epoch, loss=sum(losses) / len(losses))
        checkpoint.save(state, (epoch + 1) * steps)
    ctx.export(model, args["model"])


def main():
    """Train on nine tenths of the pixels, and draw the photograph as the network has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=512, help="rows of one step over all workers")
    parser.add_argument("--accumulate", type=int, default=2, help="steps whose gradients make one update")
    parser.add_argument("--output", type=Path, default=Path("custom-loop"), help="a directory that all nodes share")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.appName("custom-loop").getOrCreate()
    data = pixels(spark)

    output = options.output.resolve()
    args = {**vars(options), "checkpoints": str(output / "checkpoints"), "model": str(output / "photograph.keras")}
    with tfos.Cluster(spark, train, args, num_workers=options.workers, restarts=2) as cluster:
        cluster.train(data.where("id % 10 <> 0").drop("id"))
        cluster.join()
    epochs = cluster.metrics().epochs  # of this run, as the chief has reported them
    for epoch in epochs[:: max(1, len(epochs) - 1)]:
        print(f"epoch {epoch.epoch}: loss {epoch.values['loss']:.5f}")

    network = KerasModel.from_file(args["model"], featuresCol="place")
    draw(network.transform(data).orderBy("id").toPandas(), options.output / "photograph.png")
    spark.stop()


def draw(frame, path):
    """Draw the photograph beside the network's, and show how near that is on the pixels held out."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    image = photograph()
    found = np.stack(frame.prediction).reshape(image.shape)
    held_out = (found - image).reshape(-1, 3)[::10]
    decibels = -10 * np.log10(np.mean(held_out**2))
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
    for each, picture, title in zip(axes, (image, found), ("photograph", "network"), strict=True):
        each.imshow(picture)
        each.set_title(title)
        each.set_axis_off()
    figure.savefig(path, dpi=68)
    print(f"picture: {path}")
    print(f"peak signal-to-noise ratio on the {len(held_out)} held-out pixels: {decibels:.1f} dB")


if __name__ == "__main__":
    main()
