"""Models whose weights show when rows do not count the same, and the batches that several workers share unevenly."""

from collections import Counter
from itertools import cycle, islice

import keras
import numpy as np

ROWS = 64
_RNG = np.random.default_rng(3)
X = np.linspace(0.5, 2.5, ROWS, dtype="f4")
LENGTHS = np.arange(ROWS) % 4  # of tokens; a row of none is all mask
TOKENS = np.where(np.arange(3) < LENGTHS[:, None], _RNG.uniform(0.5, 2.0, (ROWS, 3)), 0.0).astype("f4")
WEIGHTS = (np.arange(ROWS) % 5 / 2).astype("f4")
CLASSES = (X > 1.5).astype("i8")

# Partitions, each of one worker, and rows of a step. All cases are run with the first of each number of workers, which
# has shares that are not equal, and an odd last batch; some with the others.
SHAPES = {
    2: {
        "one and seven": ([[1], list(range(2, 9))], 4),
        "three rows": ([[0, 1], [2]], 4),
        "none and four": ([[], [1, 2, 3, 5]], 4),
        "batches of three": ([[1, 2, 3, 4], [5, 6, 7]], 3),
        "one token and three": ([[1, 4], [3, 7, 6]], 2),
    },
    3: {
        "batches of seven": ([[9, 10, 11], [3], [4, 5, 6, 7]], 7),
        "sixty-four": ([list(range(22)), list(range(22, 43)), list(range(43, 64))], 64),
    },
}
ESSENTIAL = (
    "weights",
    "mean_with_sample_weight",
    "regularized",
    "masked",
    "masked and normalized",
    "a gradient of one's own",
    "own step: that of Keras's guide to VAE",
)


def in_steps(partitions, batch):
    """Return the rows of each step: they are dealt to the workers in turn, first to those with the most rows."""
    left = [list(rows) for rows in partitions]
    turns = cycle(sorted(range(len(left)), key=lambda worker: -len(left[worker])))
    steps = []
    while any(left):
        dealt = Counter(islice(turns, batch))
        steps.append([row for worker, rows in enumerate(left) for row in rows[: dealt[worker]]])
        left = [rows[dealt[worker] :] for worker, rows in enumerate(left)]
    return steps


class Place:
    """Where models are trained: on one of several workers, or in one process.

    Parameters
    ----------
    strategy : tf.distribute.Strategy
        In whose scope they are made.
    dataset : callable
        Returns a dataset with these features, label and weights by name (or None).
    alone : bool
        Whether it is one process, in plain Keras.
    names : sequence of str, optional
        The cases to run.
    """

    def __init__(self, strategy, dataset, alone, names=None):
        self.strategy, self.dataset, self.alone, self.names = strategy, dataset, alone, names

    def fitted(self, layers, data, rate=0.01, loss="mse", kind=keras.Sequential, fit=None, **compiled):
        """Return a model's weights, and what is shown of its epochs and steps, after two epochs."""
        with self.strategy.scope():
            model = kind(layers())
            optimizer = compiled.pop("optimizer", keras.optimizers.SGD)
            model.compile(optimizer(rate), loss, **compiled)
        steps = []
        seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: steps.append(list(logs.values())))
        history = model.fit(data, epochs=2, verbose=0, callbacks=[seen], **(fit or {})).history
        return [np.asarray(each) for each in [*(each.numpy() for each in model.weights), *history.values(), steps]]


def line():
    return [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]


def regularized():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(x**2))
            self.add_loss(0.01 * keras.ops.sum(x**2))
            return x

    dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2", activity_regularizer="l2")
    return [keras.Input((1,)), dense, Adds()]


def normalized():
    return [
        keras.Input((1,)),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.Dense(1, kernel_initializer="ones"),
    ]


def clipping():
    """Return layers of which one clips what comes back to it, which depends on the rows of all workers."""
    import tensorflow as tf

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -0.5, 0.5)

    class Clips(keras.layers.Layer):
        def call(self, x):
            return clipped(x)

    return [*line(), Clips()]


def masked(*more):
    return [keras.Input((3, 1)), keras.layers.Masking(), *more, keras.layers.Dense(1, kernel_initializer="ones")]


def masked_and_normalized():
    return masked(keras.layers.BatchNormalization(synchronized=True))


def several_outputs():
    tokens = keras.Input((3, 1))
    each = keras.layers.Dense(1, kernel_initializer="ones", name="each")(keras.layers.Masking()(tokens))
    first = keras.layers.Dense(1, kernel_initializer="ones", name="first")(keras.layers.Flatten()(tokens))
    return {"inputs": tokens, "outputs": [each, first]}


class Quartic(keras.losses.Loss):
    def call(self, truth, prediction):
        return keras.ops.mean((truth - prediction) ** 4, axis=-1)


def own_step(of_batch, name="OwnStep"):
    """Return a class with a ``train_step`` as Keras's guides write it, for a loss of inputs and outputs."""
    import tensorflow as tf

    class OwnStep(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.tracker, self.total = keras.metrics.Mean(name="own_loss"), keras.metrics.Sum(name="total")

        @property
        def metrics(self):
            return [self.tracker, self.total]

        def train_step(self, data):
            x = data["x"] if isinstance(data, dict) else data[0]
            with tf.GradientTape() as tape:
                loss = of_batch(self, x[:, None] * 2, self(x[:, None], training=True))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.tracker.update_state(loss)
            self.total.update_state(loss)
            return {"own_loss": self.tracker.result(), "total": self.total.result()}

    OwnStep.__name__ = name
    return OwnStep


def _vae(model, x, y):
    """Return the loss of Keras's guide to variational autoencoders."""
    by_row = keras.losses.mean_squared_error(x[:, :, None], y[:, :, None])
    divergence = -0.5 * (1 + y - keras.ops.square(y) - keras.ops.exp(y))
    return keras.ops.mean(keras.ops.sum(by_row, axis=1)) + keras.ops.mean(keras.ops.sum(divergence, axis=1))


def _rows(x):
    return keras.ops.cast(keras.ops.shape(x)[0], "float32")


OWN_LOSSES = {
    "a mean": lambda model, x, y: keras.ops.mean((x - y) ** 2),
    "a sum": lambda model, x, y: keras.ops.sum((x - y) ** 2),
    "a sum, divided by a number": lambda model, x, y: keras.ops.sum((x - y) ** 2) / 8.0,
    "a sum, divided by the rows": lambda model, x, y: keras.ops.sum((x - y) ** 2) / _rows(x),
    "Keras's": lambda model, x, y: keras.losses.MeanSquaredError()(x, y),
    "Keras's and others": lambda model, x, y: (
        keras.losses.Huber()(x, y) + keras.ops.mean(y**2) + 0.1 * keras.ops.sum(model.trainable_weights[0] ** 2)
    ),
    "a mean of Keras's": lambda model, x, y: keras.ops.mean(keras.losses.MeanSquaredError(reduction="none")(x, y)),
    "a mean, divided by the replicas": lambda model, x, y: (
        keras.ops.mean((x - y) ** 2) / model.distribute_strategy.num_replicas_in_sync
    ),
    "Keras's, and a mean divided by the replicas": lambda model, x, y: (
        keras.losses.MeanSquaredError()(x, y)
        + keras.ops.mean(y**2) / model.distribute_strategy.num_replicas_in_sync
    ),
    "that of Keras's guide to VAE": _vae,
    "a sum and a mean": lambda model, x, y: keras.ops.sum((x - y) ** 2) + keras.ops.mean(y**2),
    "a sum and a regularizer": lambda model, x, y: (
        keras.ops.sum((x - y) ** 2) + keras.ops.sum(model.trainable_weights[0] ** 2)
    ),
    "divided by what all workers have": lambda model, x, y: keras.ops.sum((x - y) ** 2) / keras.ops.sum(x),
    "the root of a mean": lambda model, x, y: keras.ops.sqrt(keras.ops.mean((x - y) ** 2)),
    "divided by what is trained": lambda model, x, y: keras.ops.sum((x - y) ** 2) / (1 + keras.ops.sum(y**2)),
}  # fmt: skip
REFUSED = {
    "the largest": lambda model, x, y: keras.ops.max((x - y) ** 2),
}


def cases(place):
    """Return functions that train a model, by name."""
    found = {**losses(place), **options(place), **masks(place), **own_functions(place)}
    return {name: case for name, case in found.items() if place.names is None or name in place.names}


def _fit(place, layers, *columns, **settings):
    return lambda: place.fitted(layers, place.dataset(*columns), **settings)


_BY_WEIGHT = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


def losses(place):
    """Return cases of losses without a mask."""

    def mean(truth, y):
        return keras.ops.mean((truth - y) ** 2)

    def total(truth, y):
        return keras.ops.sum((truth - y) ** 2)

    def by_class():
        data = place.dataset("x", "class")
        if not place.alone:
            return place.fitted(line, data, fit={"class_weight": {0: 0.5, 1: 3.0}})
        # Plain Keras takes no class weights beside those of rows.
        return place.fitted(line, data.map(lambda x, y, w: (x, y, keras.ops.where(y > 0, 3.0, 0.5))))

    def evaluated():
        with place.strategy.scope():
            model = keras.Sequential(line())
            model.compile("sgd", "mse")
        return [np.asarray(model.evaluate(place.dataset("x", "y", "w"), verbose=0))]

    found = {"class_weight": by_class, "evaluate": evaluated}
    for reduction in ("sum", "none", None, "mean"):
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        found[f"reduction={reduction}"] = _fit(place, line, "x", "y", "w", rate=0.002, loss=loss)
    return {
        **found,
        "plain": _fit(place, line, "x", "y", metrics=["mae"], weighted_metrics=["mse"]),
        "no second axis": _fit(place, lambda: [*line(), keras.layers.Reshape(())], "x", "y"),
        "weights": _fit(place, line, "x", "y", "w", metrics=["mae"], weighted_metrics=["mse"]),
        "mean_with_sample_weight": _fit(place, line, "x", "y", "w", loss=_BY_WEIGHT),
        "a mean of the batch": _fit(place, line, "x", "y", loss=mean),
        "a sum of the batch": _fit(place, line, "x", "y", rate=0.001, loss=total),
        "regularized": _fit(place, regularized, "x", "y"),
        "normalized": _fit(place, normalized, "x", "y"),
        "a gradient of one's own": _fit(place, clipping, "x", "y"),
    }


def options(place):
    """Return cases of what ``compile`` and optimizers offer."""
    optimizers = keras.optimizers
    return {
        "adam": _fit(place, line, "x", "y", optimizer=optimizers.Adam),
        "run_eagerly": _fit(place, line, "x", "y", run_eagerly=True),
        "jit_compile": _fit(place, line, "x", "y", "w", jit_compile=True),
        "steps_per_execution": _fit(place, line, "x", "y", steps_per_execution=2),
        "gradient_accumulation_steps": _fit(
            place, line, "x", "y", optimizer=lambda rate: optimizers.SGD(rate, gradient_accumulation_steps=2)
        ),
        "loss scale": _fit(
            place, line, "x", "y", optimizer=lambda rate: optimizers.LossScaleOptimizer(optimizers.SGD(rate))
        ),
    }


def masks(place):
    """Return cases of losses of time steps, of which rows have different numbers."""

    def outputs():
        data = place.dataset("tokens", "labels").map(lambda x, y, w: (x, (y, y[:, 0]), w))
        found = place.fitted(
            several_outputs, data, kind=lambda made: keras.Model(**made), loss=["mse", "mae"], loss_weights=[1.0, 2.0]
        )
        return found[:4]  # plain Keras counts a short batch as much as a whole one in the losses of outputs

    summed = keras.losses.MeanSquaredError(reduction="sum")
    return {
        "several outputs": outputs,
        "masked": _fit(place, masked, "tokens", "labels"),
        "masked, jit_compile": _fit(place, masked, "tokens", "labels", jit_compile=True),
        "masked, weights": _fit(place, masked, "tokens", "labels", "w"),
        "masked, mean_with_sample_weight": _fit(place, masked, "tokens", "labels", "w", loss=_BY_WEIGHT),
        "masked, a loss of one's own": _fit(place, masked, "tokens", "labels", rate=0.0001, loss=Quartic()),
        "masked, reduction=sum": _fit(place, masked, "tokens", "labels", loss=summed),
        "masked and normalized": _fit(place, masked_and_normalized, "tokens", "labels"),
    }


def own_functions(place):
    """Return cases of models with a ``train_step`` or a ``compute_loss`` of their own."""

    class OwnLoss(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.abs(keras.ops.reshape(y, (-1, 1)) - y_pred))

    def without_labels():
        data = place.dataset("x", "y").map(lambda x, y, w: {"x": x, "sample_weight": w})
        return place.fitted(line, data, rate=0.002, loss=None, kind=own_step(OWN_LOSSES["a mean"]))

    found = {"compute_loss": _fit(place, line, "x", "y", kind=OwnLoss), "own step: without labels": without_labels}
    for name, loss in OWN_LOSSES.items():
        found[f"own step: {name}"] = _fit(place, line, "x", "y", rate=0.002, kind=own_step(loss))
    if not place.alone:
        for name, loss in REFUSED.items():
            found[f"refused: {name}"] = _fit(place, line, "x", "y", kind=own_step(loss, "Refused"))
    return found
