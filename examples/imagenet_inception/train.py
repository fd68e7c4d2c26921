"""An Inception or a VGG network on encoded images in TFRecord files, which Spark writes and the nodes read."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel

SIZE = 48
DAMAGES = ["none", "blur", "noise", "pixels", "posterized", "darkness", "haze", "stripes"]


def damage(kind, image, rng):
    """Return an image, values from 0 to 1, with one kind of damage."""
    import numpy as np
    from scipy import ndimage

    strength = rng.uniform(0.5, 1)
    waves = np.sin(np.arange(SIZE) * rng.uniform(0.7, 2) + rng.uniform(0, 6))[:, None, None]
    damages = {
        "none": lambda: image,
        "blur": lambda: ndimage.gaussian_filter(image, (2 * strength, 2 * strength, 0)),
        "noise": lambda: image + rng.normal(0, 0.15 * strength, image.shape),
        "pixels": lambda: ndimage.zoom(image[::4, ::4], (4, 4, 1), order=0),
        "posterized": lambda: np.round(image * 4) / 4,
        "darkness": lambda: image * (1 - 0.8 * strength),
        "haze": lambda: image + (0.8 - image) * 0.8 * strength,
        "stripes": lambda: image + 0.15 * strength * waves,
    }
    return damages[kind]()


def photographs(held_out):
    """Return a function for ``mapInPandas`` that makes the encoded image and the label of each id.

    An image is a piece of one of scikit-learn's two photographs with one of eight kinds of damage, which is the label.
    Images held out come from the right quarter of the photographs. Of four pieces drawn the one with the most contrast
    is taken: blur can't be seen in a plain sky.
    """

    def piece(image, rng):
        places = [[rng.integers(0, size - SIZE) for size in image.shape[:2]] for _ in range(4)]
        pieces = [image[top : top + SIZE, left : left + SIZE] for top, left in places]
        return max(pieces, key=lambda each: each.std())

    def make(frames):
        from io import BytesIO

        import numpy as np
        import pandas as pd
        from PIL import Image
        from sklearn.datasets import load_sample_images

        columns = slice(480, None) if held_out else slice(480)
        whole = [each[:, columns] / 255 for each in load_sample_images().images]
        for frame in frames:
            encoded = []
            for number in frame.id:
                rng = np.random.default_rng([number, held_out])
                image = damage(DAMAGES[number % len(DAMAGES)], piece(whole[rng.integers(2)], rng), rng)
                buffer = BytesIO()
                Image.fromarray((np.clip(image, 0, 1) * 255).astype("uint8")).save(buffer, "png")
                encoded.append(buffer.getvalue())
            yield pd.DataFrame({"image/encoded": encoded, "image/class/label": frame.id % len(DAMAGES)})

    return make


def convolve(x, filters, size=3, strides=1):
    """Return a convolution with BatchNorm and ReLU."""
    import keras

    x = keras.layers.Conv2D(filters, size, strides, "same", use_bias=False)(x)
    return keras.layers.Activation("relu")(keras.layers.BatchNormalization(momentum=0.9)(x))


def inception(x):
    """Return two Inception blocks: convolutions of several sizes beside each other, and their results as one."""
    import keras

    x = convolve(x, 24, strides=2)
    for filters in (16, 32):
        pooled = convolve(keras.layers.MaxPooling2D(3, 1, "same")(x), filters // 2, 1)
        double = convolve(convolve(convolve(x, filters // 2, 1), filters), filters)
        paths = [convolve(x, filters, 1), convolve(convolve(x, filters, 1), filters), double, pooled]
        x = keras.layers.MaxPooling2D()(keras.layers.Concatenate()(paths))
    return x


def vgg(x):
    """Return three VGG blocks: two convolutions of 3 by 3 and a pooling each."""
    import keras

    for filters in (16, 32, 64):
        x = keras.layers.MaxPooling2D()(convolve(convolve(x, filters), filters))
    return x


def train(args, ctx):
    """Run on each node: read its share of the files, and train with the others."""
    import keras
    import tensorflow as tf

    def decode(encoded, label, weight):
        images = tf.map_fn(lambda each: tf.io.decode_png(each, 3), encoded, fn_output_signature=tf.uint8)
        return tf.ensure_shape(images, (None, SIZE, SIZE, 3)), label, weight

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        image = keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")
        x = {"inception": inception, "vgg": vgg}[args["network"]](keras.layers.Rescaling(1 / 127.5, -1)(image))
        x = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling2D()(x))
        model = keras.Model(image, keras.layers.Dense(len(DAMAGES), "softmax")(x))
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    feed = ctx.read_tfrecord(args["files"], columns=["image/encoded", "image/class/label"])
    dataset = feed.dataset(args["batch_size"], features="image/encoded", label="image/class/label")
    model.fit(dataset.map(decode), epochs=args["epochs"], verbose=2 if ctx.is_chief else 0)
    ctx.export(model, args["model"])


def decode(frames):
    """Decode images in a task of Spark."""
    from io import BytesIO

    import numpy as np
    from PIL import Image

    for frame in frames:
        pixels = [np.asarray(Image.open(BytesIO(encoded))).tobytes() for encoded in frame["image/encoded"]]
        yield frame[["image/class/label"]].assign(image=pixels)


def draw(rows, accuracies, path):
    """Draw two images of each kind, with the share of images of the kind that the network recognized."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(2, len(DAMAGES), figsize=(8, 2.6), layout="constrained")
    for kind, name in enumerate(DAMAGES):
        images = [np.frombuffer(row.image, "uint8") for row in rows if row["image/class/label"] == kind]
        for each, image in zip(axes[:, kind], images, strict=False):
            each.imshow(image.reshape(SIZE, SIZE, 3))
            each.set_axis_off()
        axes[0][kind].set_title(f"{name}\n{accuracies[kind]:.0%}", fontsize=10)
    figure.savefig(path, dpi=72)


def main():
    """Write the files with Spark, train on them, apply the network to others, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=["inception", "vgg"], default="inception")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4000, help="images to train on")
    parser.add_argument("--output", type=Path, default=Path("inception"), help="a directory that all nodes share")
    options = parser.parse_args()
    output = options.output.resolve()
    spark = SparkSession.builder.appName("inception").getOrCreate()

    schema = "`image/encoded` binary, `image/class/label` long"
    for name, rows in [("train", options.rows), ("held-out", 800)]:
        images = spark.range(0, rows, 1, 8).mapInPandas(photographs(name == "held-out"), schema)
        tfos.write_tfrecord(images, str(output / "tfrecords" / name), mode="overwrite")

    train_files, model = str(output / "tfrecords" / "train"), str(output / f"{options.network}.keras")
    args = {
        "network": options.network,
        "epochs": options.epochs,
        "batch_size": 64,
        "files": train_files,
        "model": model,
    }
    tfos.run(spark, train, args, num_workers=options.workers)
    print(f"model: {model}")

    files = tfos.read_tfrecord(spark, str(output / "tfrecords" / "held-out"))
    images = files.mapInPandas(decode, "`image/class/label` long, image binary")
    rows = KerasModel.from_file(model, featuresCol="image").transform(images).collect()
    right = [
        [row.prediction == kind for row in rows if row["image/class/label"] == kind] for kind in range(len(DAMAGES))
    ]
    accuracies = [sum(each) / len(each) for each in right]
    draw(rows, accuracies, output / "damages.png")
    print(f"picture: {options.output / 'damages.png'}")
    print("recognized:", ", ".join(f"{name} {each:.0%}" for name, each in zip(DAMAGES, accuracies, strict=True)))
    print(f"accuracy of {options.network} on the {len(rows)} held-out images: {sum(map(sum, right)) / len(rows):.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
