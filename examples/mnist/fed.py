"""Handwritten digits, from a Spark DataFrame to a trained Keras model and back.

Trains on the cluster that ``--master`` names (or that spark-submit was given), shows the
accuracy on images that were held out, exports a SavedModel, runs it over the DataFrame, and draws a picture.
"""

import argparse
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import tensorflowonspark as tfos


def build():
    """Return a small convolutional network for images of 8 by 8 pixels with values from 0 to 16."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,), name="image"),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def scope(backend):
    """Return the scope of a strategy of all workers with TensorFlow; with JAX Keras distributes by itself."""
    if backend != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy().scope()


def train(args, ctx):
    """Run in every node: train with the others, then let the chief export."""
    import keras

    keras.utils.set_random_seed(7)
    with scope(keras.backend.backend()):
        model = build()
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    dataset = ctx.dataset(args["batch_size"], features="image", label="digit")
    model.fit(dataset, epochs=args["epochs"], verbose=2 if ctx.is_chief else 0)
    ctx.export(model, args["export"])


def digits(spark):
    """Return scikit-learn's 1,797 scans as a DataFrame: id, image (64 floats), digit."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))  # the file is sorted by writer
    rows = [(number, images[each].tolist(), int(labels[each])) for number, each in enumerate(order)]
    return spark.createDataFrame(rows, "id long, image array<float>, digit int").repartition(4, "id").cache()


@contextmanager
def without_chatter():
    """Keep what TensorFlow's native code writes at its start off the terminal."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def predict(path):
    """Return a function for ``mapInArrow`` that runs the SavedModel at a path over batches of images."""

    def run(batches):
        import numpy as np
        import pyarrow as pa

        with without_chatter():
            import tensorflow as tf

            serve = tf.saved_model.load(path).signatures["serving_default"]
        for batch in batches:
            images = batch["image"].flatten().to_numpy().reshape(-1, 64)
            (scores,) = serve(tf.constant(images)).values()
            columns = [batch["id"], batch["image"], batch["digit"], pa.array(np.argmax(scores, axis=1), pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, ["id", "image", "digit", "prediction"])

    return run


def draw(rows, accuracy, path):
    """Draw sample digits with their predictions beside the confusion matrix."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from sklearn.metrics import ConfusionMatrixDisplay

    figure = plt.figure(figsize=(12, 5.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.1])
    wrong = [row for row in rows if row.digit != row.prediction]
    shown = (wrong + [row for row in rows if row.digit == row.prediction])[:20]
    left.suptitle("Held-out scans: prediction (red: wrong, with the digit meant)")
    for axes, row in zip(left.subplots(4, 5).flat, shown, strict=True):
        good = row.digit == row.prediction
        axes.imshow([row.image[start : start + 8] for start in range(0, 64, 8)], cmap="gray_r")
        axes.set_title(str(row.prediction) if good else f"{row.prediction} ({row.digit})", color="k" if good else "r")
        axes.set_axis_off()
    axes = right.subplots()
    ConfusionMatrixDisplay.from_predictions(
        [row.digit for row in rows], [row.prediction for row in rows], ax=axes, cmap="Blues", colorbar=False
    )
    axes.set_title(f"{len(rows)} held-out scans, accuracy {accuracy:.3f}")
    axes.set(xlabel="prediction", ylabel="digit")
    figure.savefig(path, dpi=100)


def main():
    """Train, apply and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of the Spark cluster, as in local[2] (default: spark-submit's, or local[*])")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of one step over all workers")
    parser.add_argument("--backend", choices=["tensorflow", "jax"], default="tensorflow", help="of Keras")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="on a disk that the executors share")
    options = parser.parse_args()
    tfos.check_environment()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or Spark takes the first python3 on the PATH
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    builder = SparkSession.builder.appName("digits").config("spark.ui.showConsoleProgress", "false")
    if options.master:
        builder = builder.master(options.master)
    if (options.master or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # what runs on this machine alone listens to it alone
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options.output.mkdir(parents=True, exist_ok=True)
    export = str((options.output / "model").resolve())
    data = digits(spark)
    held_out = f.col("id") % 5 == 0
    print(f"{data.count()} scans on {spark.sparkContext.master}, {data.where(held_out).count()} of them held out")

    started = time.monotonic()
    args = {"epochs": options.epochs, "batch_size": options.batch_size, "export": export}
    env = {"KERAS_BACKEND": options.backend}
    with tfos.Cluster(spark, train, args, num_workers=options.workers, env=env) as cluster:
        print(f"{options.workers} nodes are up after {time.monotonic() - started:.1f} s")
        cluster.train(data.where(~held_out))
    print(f"trained and exported to {export} after {time.monotonic() - started:.1f} s")

    schema = "id long, image array<float>, digit int, prediction int"
    predicted = data.where(held_out).mapInArrow(predict(export), schema).collect()
    accuracy = sum(row.digit == row.prediction for row in predicted) / len(predicted)
    picture = options.output / "digits.png"
    draw(predicted, accuracy, picture)
    print(f"accuracy on the {len(predicted)} held-out scans: {accuracy:.3f}")
    print(f"picture: {picture}")
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except tfos.ClusterError as error:
        sys.exit(f"{type(error).__name__}: {error}")
