"""A recommender whose tables of users and items are divided among the workers.

    python examples/recommender.py --master 'local[2]'

The interactions are generated. Each user and item has a vector of 4 standard normal numbers; items are drawn with a
popularity of 1 / (rank + 10), users evenly. A user clicks on an item with the probability sigmoid(u · i - 1). So the
best possible AUC is known: that of these probabilities. The model learns a vector of each user and item, from the
clicks alone.
"""

import argparse
import os
import sys

import tensorflowonspark as tfos
from tensorflowonspark.driver.preflight import check_environment


def interactions(users, items, rows, seed):
    """Return arrays of users, items, clicks, and the probabilities of these clicks."""
    import numpy as np

    rng = np.random.default_rng(seed)
    of_users, of_items = (rng.normal(size=(count, 4)) for count in (users, items))
    popularity = 1 / (np.arange(items) + 10)
    user, item = rng.integers(0, users, rows), rng.choice(items, rows, p=popularity / popularity.sum())
    probability = 1 / (1 + np.exp(1 - (of_users[user] * of_items[item]).sum(axis=1)))
    return user, item, (rng.random(rows) < probability).astype("float32"), probability


def auc(labels, scores):
    """Return the probability that a click has a higher score than another row."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))


def optimizer(args):
    """Return the optimizer of all variables."""
    import keras

    return keras.optimizers.Adagrad(args["learning_rate"], initial_accumulator_value=1e-6)


def build(args):
    """Return the model: the product of both vectors, summed with weights."""
    import keras

    def table(rows, name):
        if args["plain"]:
            initializer = keras.initializers.RandomNormal(stddev=0.3)
            return keras.layers.Embedding(rows, 8, embeddings_initializer=initializer, name=name)
        return tfos.keras.ShardedEmbedding(rows, 8, optimizer(args), initializer="normal", scale=0.3, name=name)

    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    both = keras.layers.Multiply()([table(args["users"], "users")(user), table(args["items"], "items")(item)])
    click = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(both)
    return keras.Model({"user": user, "item": item}, click)


def train(args, ctx):
    """Run in every node: train with the others; return the AUC of each epoch on the held-out rows."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(args["seed"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build(args)
        metrics = [keras.metrics.AUC(name="auc", num_thresholds=1000)]
        model.compile(optimizer(args), "binary_crossentropy", weighted_metrics=metrics)
    columns = {"features": ["user", "item"], "label": "click"}
    history = model.fit(
        ctx.dataset(args["batch_size"], seed=args["seed"], **columns),
        epochs=args["epochs"],
        validation_data=ctx.validation_dataset(args["batch_size"], **columns),
        verbose=2 if ctx.is_chief else 0,
    )
    if args["export"]:
        ctx.export(model, args["export"])  # on all workers: each sends its rows
    return history.history["val_auc"]


def main():
    """Train and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local[2]", help="of the Spark cluster (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--rows", type=int, default=60_000, help="interactions, a fifth of which are held out")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=500, help="rows of one step over all workers")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="with keras.layers.Embedding, whole on each worker")
    parser.add_argument("--export", help="where the chief writes the model for serving")
    options = parser.parse_args()
    check_environment()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or Spark takes the first python3 on the PATH
    if options.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import pandas as pd
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("recommender").master(options.master)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    user, item, click, probability = interactions(options.users, options.items, options.rows, seed=7)
    frame = spark.createDataFrame(pd.DataFrame({"user": user, "item": item, "click": click})).repartition(4)
    parts = [frame.where(f"user % 5 {sign} item % 5").cache() for sign in ("<>", "=")]
    of_held_out = user % 5 == item % 5
    best = auc(click[of_held_out], probability[of_held_out])
    print(f"{of_held_out.sum()} of {len(user)} rows are held out; their best possible AUC is {best:.3f}")
    found = tfos.run(spark, train, vars(options), num_workers=options.workers, data=parts[0], validation=parts[1])
    print(f"AUC on the held-out rows: {max(found['worker:0']):.4f}")
    spark.stop()


if __name__ == "__main__":
    try:
        main()
    except tfos.ClusterError as error:
        sys.exit(f"{type(error).__name__}: {error}")
