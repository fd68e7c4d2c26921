"""Accuracy and loss of trainings on one, two and three workers, with the same global batch size.

The data are the handwritten digits of scikit-learn, the model is a small convolutional network. Trainings that differ
in their seed alone show the noise.
"""

import os
import statistics
import sys

from benchmarks.common.command import command, run
from benchmarks.common.report import table
from tests.support.published import versions

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
    """Return a DataFrame of images and digits, with an id for each."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = [(number, image.tolist(), int(labels[number])) for number, image in enumerate(images.astype("float32"))]
    return spark.createDataFrame(rows, "id int, image array<float>, digit int").repartition(3).cache()


def last_epoch(data, workers, seed, epochs):
    """Train; return the accuracy and the loss of the last epoch on the validation rows."""
    from tensorflowonspark.ml import KerasEstimator

    estimator = KerasEstimator(network, featuresCol="image", labelCol="digit", numWorkers=workers, epochs=epochs)
    estimator.setOptimizer("adam").setLoss("sparse_categorical_crossentropy").setMetrics(["accuracy"])
    estimator.setBatchSize(64).setSeed(seed).setVerbose(0).setValidationData(data.where("id % 5 = 0"))
    history = estimator.fit(data.where("id % 5 <> 0")).history
    return history["val_accuracy"][-1], history["val_loss"][-1]


def measure(options, _log):
    """Train with all seeds and numbers of workers, in turns."""
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
    seeds = f"mean and standard deviation over {options.seeds} seeds"
    yield {"about": f"`{options.command}`, {packages}; {options.epochs} epochs; {seeds}.", "found": found}


def report(results):
    """Return the section of the page."""
    rows = [
        [str(workers), *(_mean_and_deviation(values) for values in zip(*each, strict=True))]
        for workers, each in results["found"].items()
    ]
    return {"figures": f"{results['about']}\n\n{table(['workers', 'accuracy', 'loss'], rows)}"}


def _mean_and_deviation(values):
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def main():
    """Run the benchmark."""
    parser = command("workers", __doc__, rounds=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    run(parser, measure, report)


if __name__ == "__main__":
    main()
