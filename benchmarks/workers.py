"""Does it matter how many workers train? Accuracy and loss on one, two and three, with the same global batch size.

The handwritten digits of scikit-learn, a small convolutional network, all else equal but the seed, which gives the
noise: the same estimator with another seed differs by so much.
"""

import argparse
import os
import statistics
import sys

from rounds import table, versions

_WORKERS = (1, 2, 3)


def network():
    """Return the network."""
    import keras

    convolutions = [keras.layers.Conv2D(filters, 3, activation="relu", padding="same") for filters in (16, 32)]
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 16),
            *convolutions,
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def digits(spark):
    """Return a DataFrame of images and digits, with a number for each."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = [(number, image.tolist(), int(labels[number])) for number, image in enumerate(images.astype("float32"))]
    return spark.createDataFrame(rows, "id int, image array<float>, digit int").repartition(3).cache()


def last_epoch(data, workers, seed, epochs):
    """Train; return the accuracy and the loss of the last epoch on rows that were not trained on."""
    from tensorflowonspark.ml import KerasEstimator

    estimator = KerasEstimator(network, featuresCol="image", labelCol="digit", numWorkers=workers, epochs=epochs)
    estimator.setOptimizer("adam").setLoss("sparse_categorical_crossentropy").setMetrics(["accuracy"])
    estimator.setBatchSize(64).setSeed(seed).setVerbose(0).setValidationData(data.where("id % 5 = 0"))
    history = estimator.fit(data.where("id % 5 <> 0")).history
    return history["val_accuracy"][-1], history["val_loss"][-1]


def main():
    """Train all of them, in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    os.environ.update({"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable})
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    data = digits(spark)
    found = {workers: [] for workers in _WORKERS}
    for seed in range(options.seeds):
        for workers, each in found.items():
            each.append(last_epoch(data, workers, seed, options.epochs))
            print(f"seed {seed}, {workers} workers: {each[-1]}", file=sys.stderr, flush=True)
    spark.stop()
    packages = versions("tensorflowonspark", "pyspark", "tensorflow", "keras")
    print(f"{packages}; {options.epochs} epochs; mean and standard deviation over {options.seeds} seeds\n")
    rows = [
        [str(workers), *(_mean_and_deviation(values) for values in zip(*each, strict=True))]
        for workers, each in found.items()
    ]
    print(table(["workers", "accuracy", "loss"], rows))


def _mean_and_deviation(values):
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    main()
