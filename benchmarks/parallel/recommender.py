"""A recommender with a vector of each user and item, on interactions whose best AUC is known.

Each user and item has a vector of 4 standard normal numbers; items are drawn with a popularity of 1 / (rank + 10),
users evenly. A user clicks on an item with the probability sigmoid(u · i - 1). So the best possible AUC is that of
these probabilities.
"""

import tensorflowonspark as tfos


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
    return history.history["val_auc"]
