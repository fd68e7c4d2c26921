"""One Keras model on two backends: JAX and TensorFlow compute the same estimator's training.

    spark-submit --master 'local[2]' examples/jax/jax_backend.py

The rows are scikit-learn's handwritten digits.
"""

import argparse

from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from tensorflowonspark.ml import KerasEstimator


def build():
    """Return a small convolutional network, of Keras's layers alone. Called on the workers."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,), name="image"),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, "softmax"),
        ]
    )


def main():
    """Train on each backend, and classify the held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--backends", nargs="+", default=["jax", "tensorflow"])
    parser.add_argument("--output", default="digits_jax.keras", help="where the model of the first backend is saved")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("jax").getOrCreate()
    images, digits = load_digits(return_X_y=True)
    rows = [(image.tolist(), int(digit)) for image, digit in zip(images, digits, strict=True)]
    table = spark.createDataFrame(rows, "image array<float>, digit int").cache()
    seen, held_out = (table.where(f"pmod(xxhash64(image), 5) {sign} 0") for sign in ("<>", "="))

    columns = {"featuresCol": "image", "labelCol": "digit"}
    est = KerasEstimator(build, **columns, numWorkers=options.workers, epochs=options.epochs, batchSize=64, seed=1)
    est.setLoss("sparse_categorical_crossentropy").setOptimizer("adam").setMetrics(["accuracy"])
    evaluator = MulticlassClassificationEvaluator(labelCol="digit", metricName="accuracy")
    lines = []
    for backend in options.backends:
        model = est.setBackend(backend).fit(seen)
        if not lines:
            model.keras().save(options.output)  # a file that Keras loads on any backend
        accuracy = evaluator.evaluate(model.transform(held_out))  # Spark's Python workers compute with TensorFlow
        loss = model.history["loss"][-1]
        lines.append(f"{backend}: loss {loss:.4f}, accuracy {accuracy:.3f} on held-out digits")
    print(*lines, sep="\n")
    spark.stop()


if __name__ == "__main__":
    main()
