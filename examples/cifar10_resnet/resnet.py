"""A residual network on coloured images of 32 x 32 pixels in ten classes, with checkpoints from which it resumes."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel

SIZE = 32


def colored(held_out):
    """Return a function for ``mapInPandas`` that makes the image and the label of each id.

    An image is a piece of one of scikit-learn's two photographs whose colors are inverted where one of its scans of
    digits has ink; the label is the digit. Images to train on and images held out share neither scans nor pieces.
    """

    def make(frames):
        import numpy as np
        import pandas as pd
        from scipy.ndimage import zoom
        from sklearn.datasets import load_digits, load_sample_images

        scans, digits = load_digits(return_X_y=True)
        part, columns = (slice(1437, None), slice(480, None)) if held_out else (slice(1437), slice(480))
        scans = np.array([zoom(each.reshape(8, 8) / 16, SIZE / 8, order=1) for each in scans[part]])
        photographs = [each[:, columns] / 255 for each in load_sample_images().images]
        for frame in frames:
            images = []
            for number in frame.id:
                rng = np.random.default_rng([number, held_out])
                photograph = photographs[rng.integers(2)]
                top, left = (rng.integers(0, size - SIZE) for size in photograph.shape[:2])
                piece = photograph[top : top + SIZE, left : left + SIZE]
                image = np.abs(piece - scans[number % len(scans)][..., None])
                images.append((image * 255).astype("uint8").tobytes())
            yield pd.DataFrame({"image": images, "label": digits[part][frame.id % len(scans)]})

    return make


def build(blocks, steps):
    """Return a residual network of 6 * blocks + 2 layers, with augmentation, compiled for so many steps."""
    import keras

    def convolve(x, filters, strides=1, size=3):
        x = keras.layers.Conv2D(filters, size, strides, "same", use_bias=False)(x)
        return keras.layers.BatchNormalization(momentum=0.9)(x)

    image = keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")
    x = keras.layers.Rescaling(1 / 127.5, -1)(image)
    for layer in (keras.layers.RandomTranslation(0.1, 0.1), keras.layers.RandomRotation(0.03)):
        x = layer(x)  # in training alone
    x = keras.layers.Activation("relu")(convolve(x, 16))
    for filters, first in [(16, 1), (32, 2), (64, 2)]:
        for strides in [first] + [1] * (blocks - 1):
            shortcut = x if strides == 1 else convolve(x, filters, strides, 1)
            y = keras.layers.Activation("relu")(convolve(x, filters, strides))
            x = keras.layers.Activation("relu")(keras.layers.Add()([shortcut, convolve(y, filters)]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    digit = keras.layers.Dense(10, "softmax", dtype="float32")(x)  # float32 also with mixed precision
    model = keras.Model(image, digit)
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(3e-3, steps), weight_decay=1e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(args, ctx):
    """Run on each node: train with the others; return the number of epochs that this run has trained."""
    import keras
    import tensorflow as tf

    if args["mixed_precision"]:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(1)
    columns = {"features": "image", "label": "label", "shapes": {"image": (SIZE, SIZE, 3)}}
    steps = ctx.feed().steps(args["batch_size"]) * args["epochs"]
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = build(args["blocks"], steps)
    checkpoint = ctx.checkpoint(args["checkpoints"], keep=2)
    newest = checkpoint.latest()
    history = model.fit(
        ctx.dataset(args["batch_size"], **columns),
        validation_data=ctx.validation_dataset(256, **columns),
        epochs=args["epochs"],
        callbacks=[checkpoint.callback()],  # after each epoch; at the start it restores the newest
        verbose=2 if ctx.is_chief else 0,
    )
    ctx.export(model, args["model"])
    return len(history.epoch) - (newest.epoch if newest else 0)  # the history is that of all runs


def draw(rows, path):
    """Draw images with their predictions, the wrong ones in red with the label behind."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(2, 10, figsize=(9, 2.2), layout="constrained")
    for each, row in zip(axes.flat, rows, strict=False):
        right = row.prediction == row.label
        each.imshow(np.frombuffer(row.image, "uint8").reshape(SIZE, SIZE, 3))
        each.set_title(
            f"{row.prediction:.0f}" if right else f"{row.prediction:.0f} ({row.label})", color="k" if right else "r"
        )
        each.set_axis_off()
    figure.savefig(path, dpi=72)


def main():
    """Make the images with Spark, train, apply the network to those held out, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4311, help="images to train on; there are 1,437 scans")
    parser.add_argument("--blocks", type=int, default=1, help="of each size; 3 gives ResNet-20, and 9 ResNet-56")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of one step over all workers")
    parser.add_argument("--mixed-precision", action="store_true", help="bfloat16: for GPUs and TPUs that have it")
    parser.add_argument("--output", type=Path, default=Path("resnet"), help="a directory that all nodes share")
    options = parser.parse_args()
    output = options.output.resolve()
    spark = SparkSession.builder.appName("resnet").getOrCreate()
    rows = spark.range(0, options.rows, 1, 4).mapInPandas(colored(held_out=False), "image binary, label long")
    held_out = spark.range(0, 720, 1, 2).mapInPandas(colored(held_out=True), "image binary, label long").cache()

    args = {**vars(options), "checkpoints": str(output / "checkpoints"), "model": str(output / "resnet.keras")}
    settings = {"num_workers": options.workers, "restarts": 2}  # after a failure it starts again, and resumes
    trained = tfos.run(spark, train, args, data=tfos.Data(rows, validation=held_out), **settings).chief
    print(f"this run trained {trained} of {options.epochs} epochs: {args['model']}")

    predicted = KerasModel.from_file(args["model"], featuresCol="image").transform(held_out).collect()
    draw(predicted, output / "digits.png")
    print(f"picture: {options.output / 'digits.png'}")
    accuracy = sum(row.prediction == row.label for row in predicted) / len(predicted)
    print(f"accuracy on the {len(predicted)} held-out images: {accuracy:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
