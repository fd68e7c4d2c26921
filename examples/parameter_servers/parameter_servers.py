"""Asynchronous training: workers compute gradients at their own pace, a parameter server holds the weights.

    spark-submit --master 'local[3]' examples/parameter_servers/parameter_servers.py --workers 2

The rows are scikit-learn's breast cancer data; Spark feeds them to the workers.
"""

import argparse
import os

import keras
import numpy as np
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from sklearn.datasets import load_breast_cancer

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasModel


def train(args, ctx):
    """Run on every node: the chief coordinates the training, the others serve."""
    if not ctx.is_chief:
        ctx.join_server()  # does not return
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # variables are placed on the parameter servers
        scaling = keras.layers.Normalization(mean=args["mean"], variance=args["variance"])
        layers = [scaling, keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential([keras.Input((len(args["mean"]),), name="features"), *layers])
        optimizer = keras.optimizers.Adam(2e-3)
        optimizer.build(model.trainable_variables)

    def on_worker(x, y, weights):
        count = tf.reduce_sum(weights)
        with tf.GradientTape() as tape:
            losses = keras.losses.binary_crossentropy(y[:, tf.newaxis], model(x, training=True))
            loss = tf.reduce_sum(weights * losses) / tf.maximum(count, 1.0)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.stack([loss * count, count])

    @tf.function
    def step(rows):
        batch = rows.get_next_as_optional()  # a worker may be out of rows while others have some
        return tf.cond(batch.has_value(), lambda: strategy.run(on_worker, batch.get_value()), lambda: tf.zeros(2))

    feed = ctx.feed()  # the rows are on the workers
    columns = {"features": "features", "label": "label", "dtypes": {"label": "float32"}}
    dataset = coordinator.create_per_worker_dataset(feed.per_worker(args["batch_size"], **columns))
    for epoch in range(args["epochs"]):
        rows, results = iter(dataset), []
        while feed.passes_ended <= epoch:
            results += [coordinator.schedule(step, args=(rows,)) for _ in range(16)]
            coordinator.join()
        loss, count = np.sum(coordinator.fetch(results), axis=0)
        ctx.report(epoch=epoch, loss=loss / count)
        print(f"epoch {epoch + 1}: {count:.0f} rows, loss {loss / count:.4f}", flush=True)
    ctx.export(model, args["output"])


def main():
    """Train on four fifths of the rows, and classify the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, help="beside the chief; each of them needs a slot")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of a worker's step")
    parser.add_argument("--ps-on-executors", action="store_true", help="in slots, in the place of the driver's machine")
    parser.add_argument("--output", type=os.path.abspath, default="parameter_servers.keras", help="of the model")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("parameter_servers").getOrCreate()
    features, labels = load_breast_cancer(return_X_y=True)
    rows = [(row.tolist(), int(label)) for row, label in zip(features, labels, strict=True)]
    table = spark.createDataFrame(rows, "features array<float>, label int").repartition(2 * options.workers)
    train_rows, test_rows = (part.cache() for part in table.randomSplit([0.8, 0.2], seed=1))

    scaling = tfos.adapt(keras.layers.Normalization(), train_rows, "features")  # Spark computes mean and variance
    moments = {"mean": np.ravel(scaling.mean).tolist(), "variance": np.ravel(scaling.variance).tolist()}
    settings = {"num_workers": options.workers, "num_ps": 1, "chief": True}
    ps_on_driver = not options.ps_on_executors
    with tfos.Cluster(
        spark, train, {**vars(options), **moments}, **settings, nodes=tfos.Nodes(ps_on_driver=ps_on_driver)
    ) as cluster:
        cluster.train(train_rows)

    classified = KerasModel.from_file(options.output).transform(test_rows)
    vectors = [part.withColumn("features", array_to_vector(f.col("features"))) for part in (train_rows, test_rows)]
    linear = LogisticRegression(standardization=True).fit(vectors[0]).transform(vectors[1])
    count = test_rows.count()
    for name, frame in {"logistic regression": linear, "the network": classified}.items():
        print(f"accuracy of {name} on {count} held-out rows: {frame.where('prediction = label').count() / count:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
