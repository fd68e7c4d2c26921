"""A U-Net that finds digits and discs in photographs: the class of each pixel, trained on rows of a DataFrame."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel

SIZE, CLASSES = 48, ["background", "digit", "disc"]


def scenes(held_out):
    """Return a function for ``mapInPandas`` that draws the scene of each id, and the class of each of its pixels.

    A scene is a piece of one of scikit-learn's two photographs with two discs and two of its scans of digits, each in a
    color of its own. Scenes to train on and scenes held out share neither scans nor pieces: the latter come from the
    right quarter of the photographs.
    """

    def draw(rng, photographs, scans):
        import numpy as np

        photograph = photographs[rng.integers(len(photographs))]
        top, left = (rng.integers(0, size - SIZE) for size in photograph.shape[:2])
        image = photograph[top : top + SIZE, left : left + SIZE] * rng.uniform(0.4, 1)
        mask = np.zeros((SIZE, SIZE), "uint8")
        distance = np.hypot(*np.mgrid[-10:10, -10:10])
        for kind in rng.permutation([1, 1, 2, 2]):
            ink = scans[rng.integers(len(scans))] if kind == 1 else np.clip(rng.uniform(4, 9) - distance, 0, 1)
            place = tuple(slice(start, start + 20) for start in rng.integers(0, SIZE - 20 + 1, 2))
            image[place] += (rng.uniform(60, 255, 3) - image[place]) * ink[..., None]
            mask[place][ink.round() == 1] = kind
        return image.astype("uint8").tobytes(), mask.tobytes()

    def make(frames):
        import numpy as np
        import pandas as pd
        from scipy.ndimage import zoom
        from sklearn.datasets import load_digits, load_sample_images

        chosen, columns = (slice(1437, None), slice(480, None)) if held_out else (slice(1437), slice(480))
        scans = [zoom(each / 16, 2.5, order=1) for each in load_digits().images[chosen]]
        photographs = [each[:, columns].astype("float32") for each in load_sample_images().images]
        for frame in frames:
            drawn = [draw(np.random.default_rng([number, held_out]), photographs, scans) for number in frame.id]
            yield pd.DataFrame(drawn, columns=["image", "mask"]).assign(id=frame.id)

    return make


def build():
    """Return a U-Net of three levels: on the way up, each level sees what it saw on the way down."""
    import keras

    def convolve(x, filters):
        for _ in range(2):
            x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = keras.layers.Activation("relu")(keras.layers.BatchNormalization(momentum=0.9)(x))
        return x

    image = keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")
    x = keras.layers.Rescaling(1 / 127.5, -1)(image)
    levels = []
    for filters in (16, 32):
        x = convolve(x, filters)
        levels.append(x)
        x = keras.layers.MaxPooling2D()(x)
    x = convolve(x, 64)
    for filters in (32, 16):
        x = keras.layers.Conv2DTranspose(filters, 2, 2)(x)
        x = convolve(keras.layers.Concatenate()([x, levels.pop()]), filters)
    return keras.Model(image, keras.layers.Conv2D(len(CLASSES), 1, name="scores")(x))


def train(args, ctx):
    """Run on each node: train with the others; the chief exports a network that returns the class of each pixel."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"])
    columns = {"features": "image", "label": "mask", "shapes": {"image": (SIZE, SIZE, 3), "mask": (SIZE, SIZE)}}
    model.fit(
        ctx.dataset(args["batch_size"], **columns),
        validation_data=ctx.validation_dataset(256, **columns),
        epochs=args["epochs"],
        verbose=2 if ctx.is_chief else 0,
    )
    ctx.export(keras.Model(model.inputs, keras.ops.argmax(model.output, axis=-1)), args["model"])


def intersections(rows):
    """Return the intersection over union of each class: of pixels that are of it, or were taken for it."""
    import numpy as np

    truth = np.array([np.frombuffer(row.mask, "uint8").reshape(SIZE, SIZE) for row in rows])
    found = np.array([row.prediction for row in rows], "uint8")
    pairs = [(truth == each, found == each) for each in range(len(CLASSES))]
    return truth, found, [(one & other).sum() / (one | other).sum() for one, other in pairs]


def picture(rows, truth, found, path):
    """Draw scenes, the true classes of their pixels, and those that the network found."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.colors import ListedColormap

    colors = ListedColormap(["#202020", "tab:orange", "tab:cyan"])
    images = [np.frombuffer(row.image, "uint8").reshape(SIZE, SIZE, 3) for row in rows]
    figure, axes = plt.subplots(3, len(images), figsize=(9, 3.8), layout="constrained")
    for line, (name, cells) in enumerate([("scene", images), ("truth", truth), ("prediction", found)]):
        for each, cell in zip(axes[line], cells, strict=False):
            each.imshow(cell, cmap=colors, vmin=0, vmax=len(CLASSES) - 1, interpolation="nearest")
            each.set(xticks=[], yticks=[])
        axes[line][0].set_ylabel(name)
    keys = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.colors]
    figure.legend(keys, CLASSES, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=80)


def main():
    """Draw the scenes with Spark, train, apply the network to the scenes held out, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=1600, help="scenes to train on")
    parser.add_argument("--output", type=Path, default=Path("segmentation"), help="a directory that all nodes share")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    spark = SparkSession.builder.appName("segmentation").getOrCreate()
    schema = "image binary, mask binary, id long"
    rows = spark.range(0, options.rows, 1, 4).mapInPandas(scenes(held_out=False), schema)
    held_out = spark.range(0, 320, 1, 2).mapInPandas(scenes(held_out=True), schema).cache()

    model = str(options.output.resolve() / "unet.keras")
    args = {"epochs": options.epochs, "batch_size": 32, "model": model}
    with tfos.Cluster(spark, train, args, num_workers=options.workers) as cluster:
        cluster.train(rows, validation=held_out)

    predicted = KerasModel.from_file(model, featuresCol="image").transform(held_out).orderBy("id").collect()
    truth, found, both = intersections(predicted)
    picture(predicted[:8], truth, found, options.output / "segmentation.png")
    print(f"picture: {options.output / 'segmentation.png'}")
    print("intersection over union:", ", ".join(f"{name} {of:.3f}" for name, of in zip(CLASSES, both, strict=True)))
    print(f"mean intersection over union on the {len(predicted)} held-out scenes: {sum(both) / len(both):.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
