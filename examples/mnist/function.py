"""Handwritten digits with a function that reads its own data: Spark starts the nodes and collects what they return."""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos


def load():
    """Return scikit-learn's 1,797 scans as rows to train on and rows held out, each a pair of images and digits."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))  # the same on all nodes; the file is sorted by writer
    train, held_out = order[:1437], order[1437:]
    return (images[train], digits[train]), (images[held_out], digits[held_out])


def build():
    """Return a small convolutional network."""
    import keras

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def train(args, ctx):
    """Run in a process of its own on each node; return what the driver shows of it."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finds the other nodes through TF_CONFIG
    keras.utils.set_random_seed(7)
    (images, digits), held_out = load()
    rows = tf.data.Dataset.from_tensor_slices((images, digits)).shuffle(len(images), seed=7)

    with strategy.scope():
        model = build()
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    # TensorFlow divides the rows of each batch among the workers.
    model.fit(rows.batch(args["batch_size"]), epochs=args["epochs"], verbose=2 if ctx.is_chief else 0)

    predicted = model.predict(held_out[0], verbose=0).argmax(axis=1)
    ctx.export(model, args["model"])  # by the chief alone, to any file system
    return {"host": ctx.host, "correct": int((predicted == held_out[1]).sum()), "rows": len(predicted)}


def main():
    """Start the nodes, wait for their end, and show what they return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of one step over all workers")
    parser.add_argument("--output", type=Path, default=Path("mnist-function"), help="a directory that all nodes share")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("mnist-function").getOrCreate()

    model = str(options.output.resolve() / "digits.keras")
    args = {"epochs": options.epochs, "batch_size": options.batch_size, "model": model}
    results = tfos.run(spark, train, args, num_workers=options.workers)

    for name, result in results.items():
        print(f"{name} on {result['host']}: {result['correct']} of {result['rows']} held-out scans are right")
    first = results.chief
    print(f"model: {model}")
    print(f"accuracy on the {first['rows']} held-out scans: {first['correct'] / first['rows']:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
