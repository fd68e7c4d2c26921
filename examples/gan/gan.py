"""A conditional GAN on handwritten digits: two networks and two optimizers in a loop of one's own."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel

NOISE = 32


def load():
    """Return scikit-learn's 1,797 scans, values from 0 to 1, and their digits, in an order of no meaning."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order].astype("float32") / 16, digits[order]


def build_generator():
    """Return a network that draws a digit: from noise, and from the digit's number."""
    import keras

    noise = keras.Input((NOISE,), name="noise")
    digit = keras.Input((), dtype="int64", name="digit")
    x = keras.layers.Concatenate()([noise, keras.layers.Embedding(10, 16)(digit)])
    x = keras.layers.LeakyReLU()(keras.layers.Dense(4 * 4 * 64)(x))
    x = keras.layers.Reshape((4, 4, 64))(x)
    x = keras.layers.LeakyReLU()(keras.layers.Conv2DTranspose(64, 4, 2, "same")(x))
    x = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)
    return keras.Model({"noise": noise, "digit": digit}, keras.layers.Flatten(name="image")(x))


def build_discriminator():
    """Return a network with a positive score for images that look like scans, and like scans of their digit."""
    import keras

    image = keras.Input((64,))
    digit = keras.Input((), dtype="int64")
    x = keras.layers.Reshape((8, 8, 1))(image)
    for filters, strides in [(32, 1), (64, 2), (128, 2)]:
        x = keras.layers.LeakyReLU()(keras.layers.Conv2D(filters, 3, strides, "same")(x))
    x = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling2D()(x))
    of_digit = keras.layers.Dot(1)([x, keras.layers.Embedding(10, 128)(digit)])
    return keras.Model([image, digit], keras.layers.Add()([keras.layers.Dense(1)(x), of_digit]))


def train(args, ctx):
    """Run on each node: both networks take each step together with those of the other nodes."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1 + ctx.index)  # each worker draws other noise; all begin with the chief's weights
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        generator, discriminator = build_generator(), build_discriminator()
        networks = generator, discriminator
        optimizers = [keras.optimizers.Adam(rate, beta_1=0.5) for rate in (1e-3, 1e-3)]
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.build(network.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def on_worker(images, digits, weights):
        """Take a step; rows that fill up a worker's batch have the weight -0.0, and count in nothing."""
        replica = tf.distribute.get_replica_context()
        share = weights / replica.all_reduce("sum", tf.reduce_sum(weights))  # of a row in the mean over all workers

        def loss(scores, truth):
            return tf.reduce_sum(share * entropy(truth * tf.ones_like(scores), scores))

        noise = tf.random.normal((tf.shape(images)[0], NOISE))
        with tf.GradientTape(persistent=True) as tape:
            drawn = generator({"noise": noise, "digit": digits}, training=True)
            of_scans, of_drawn = (discriminator([each, digits], training=True) for each in (images, drawn))
            losses = loss(of_drawn, 1.0), loss(of_scans, 0.9) + loss(of_drawn, 0.0)
        for network, optimizer, each in zip(networks, optimizers, losses, strict=True):
            gradients = tape.gradient(each, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))  # of all workers
        return replica.all_reduce("sum", losses)

    step = tf.function(lambda *batch: strategy.run(on_worker, args=batch), reduce_retracing=True)
    dataset = ctx.dataset(args["batch_size"], features="image", label="digit")
    for _ in range(args["epochs"]):
        losses = [step(*batch) for batch in dataset]
        of_generator, of_discriminator = (sum(each) / len(losses) for each in zip(*losses, strict=True))
        ctx.report(generator=of_generator, discriminator=of_discriminator)  # the driver prints the chief's
    ctx.export(generator, args["generator"])


def draw(rows, path):
    """Draw a column of digits for each number."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    sheet = [[np.reshape(row.prediction, (8, 8)) for row in rows if row.digit == digit][:8] for digit in range(10)]
    figure, axes = plt.subplots(8, 10, figsize=(7.5, 6), layout="constrained")
    for line, cells in zip(axes, zip(*sheet, strict=True), strict=True):
        for each, image in zip(line, cells, strict=True):
            each.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            each.set_axis_off()
    figure.savefig(path, dpi=80)


def accuracy_of(images, digits, held_out):
    """Return the accuracy on held-out scans of a classifier that has learned from these images."""
    from sklearn.svm import SVC

    return SVC().fit(images, digits).score(*held_out)


def main():
    """Train, have Spark draw digits with the generator, and measure what a classifier learns from them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("gan"), help="a directory that all nodes share")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.appName("gan").getOrCreate()

    images, digits = load()
    rows = [(image.tolist(), int(digit)) for image, digit in zip(images[:1437], digits[:1437], strict=True)]
    scans = spark.createDataFrame(rows, "image array<float>, digit long").repartition(4)
    generator = str(options.output.resolve() / "generator.keras")
    args = {"epochs": options.epochs, "batch_size": 128, "generator": generator}
    with tfos.Cluster(spark, train, args, num_workers=options.workers) as cluster:
        cluster.train(scans)

    noise = f.array(*[f.randn(seed).cast("float") for seed in range(NOISE)])
    wanted = spark.range(2000).select((f.col("id") % 10).alias("digit"), noise.alias("noise"))
    drawn = KerasModel.from_file(generator, featuresCols=["noise", "digit"]).transform(wanted).collect()
    draw(drawn, options.output / "digits.png")
    print(f"picture: {options.output / 'digits.png'}")

    held_out = images[1437:], digits[1437:]
    print("accuracy on the 360 held-out scans of a classifier")
    print(f"  that has learned from the 1437 scans: {accuracy_of(images[:1437], digits[:1437], held_out):.3f}")
    made = [row.prediction for row in drawn], [row.digit for row in drawn]
    print(f"  that has learned from 2000 drawn digits alone: {accuracy_of(*made, held_out):.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
