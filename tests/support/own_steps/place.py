"""Where a program trains: on one of several workers, or in one process of plain Keras."""

from contextlib import nullcontext

import keras
import numpy as np

from tests.support.own_steps.data import COLUMNS, SHAPES, batch_size


def small_sgd(rate=0.05):
    """Return an optimizer whose steps show each factor of a gradient, with a memory and a schedule."""
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.8), momentum=0.5)


class Place:
    """What a program gets.

    Parameters
    ----------
    workers : int
        How many workers train.
    feed : Feed, optional
        This worker's rows; without it the place is one process.
    steps : list of list of int, optional
        The rows of each step of one process.
    strategy : tf.distribute.Strategy, optional
        In whose scope models are made.

    Attributes
    ----------
    taken : int
        The steps that the program's callbacks have seen.
    """

    def __init__(self, workers, feed=None, steps=None, strategy=None):
        self.workers, self.feed, self.steps, self.strategy = workers, feed, steps, strategy
        self.alone = feed is None
        self.taken = 0

    def scope(self):
        return self.strategy.scope() if self.strategy else nullcontext()

    @property
    def rows(self):
        """The rows of a whole step over all workers."""
        return batch_size(self.workers)

    def dataset(self, features, label=None, weights=None):
        """Return batches as ``ctx.dataset`` makes them: ``(x, y, w)``, or a dict without a label."""
        if self.alone:
            return self._plain(features, label, weights)
        used = [*_names(features), *_names(label), *_names(weights)]
        shapes = {name: shape for name, shape in SHAPES.items() if name in used}
        return self.feed.dataset(
            self.rows, features=features, label=label, sample_weight=weights, shapes=shapes, shuffle=False
        )

    def tokens(self, features="tokens", label="labels"):
        """Return batches of sequences with one weight for each row."""
        data = self.dataset(features, label)
        # Plain Keras multiplies weights and the losses of tokens as they are.
        return data.map(lambda x, y, w: (x, y, w[:, None])) if self.alone else data

    def _plain(self, features, label, weights):
        import tensorflow as tf

        def picked(rows, names):
            return COLUMNS[names][rows] if isinstance(names, str) else {name: COLUMNS[name][rows] for name in names}

        def element(rows):
            w = COLUMNS[weights][rows] + 0.0 if weights else np.ones(len(rows), "f4")
            if label is None:
                x = picked(rows, features)
                return {**(x if isinstance(x, dict) else {features: x}), "sample_weight": w}
            return picked(rows, features), picked(rows, label), w

        elements = [element(rows) for rows in self.steps]
        spec = tf.nest.map_structure(lambda each: tf.TensorSpec((None, *each.shape[1:]), each.dtype), elements[0])
        dataset = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)
        # With an unknown number of steps plain Keras counts one more in each epoch.
        return dataset.apply(tf.data.experimental.assert_cardinality(len(elements)))

    def fit(self, model, data, epochs=2, callbacks=(), **options):
        """Fit a compiled model, and return what is compared: weights, history, the logs of each step, iterations."""
        steps = []

        def seen(batch, logs):
            self.taken += 1
            steps.append({name: np.asarray(value, "f8").tolist() for name, value in sorted(logs.items())})

        each = keras.callbacks.LambdaCallback(on_train_batch_end=seen)
        history = model.fit(data, epochs=epochs, verbose=0, callbacks=[each, *callbacks], **options).history
        return {"weights": weights_of(model), "history": history, "steps": steps, **iterations_of(model)}

    def trained(self, build, data, loss="mse", optimizer=small_sgd, *, epochs=2, fit=None, **compiled):
        """Build a model, compile and fit it; return what is compared."""
        with self.scope():
            model = build()
            model.compile(optimizer(), loss, **compiled)
        return self.fit(model, data, epochs, **(fit or {}))


def weights_of(model):
    return [np.asarray(keras.ops.convert_to_numpy(each)) for each in model.weights]


def iterations_of(model):
    optimizer = getattr(model, "optimizer", None)
    return {"iterations": int(keras.ops.convert_to_numpy(optimizer.iterations))} if optimizer is not None else {}


def line(units=1, **options):
    """Return a linear model of ``x``."""
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, **options)])


def normalization():
    """Return a layer that normalizes with the rows of all workers; on JAX it always does."""
    options = {"synchronized": True} if keras.backend.backend() == "tensorflow" else {}
    return keras.layers.BatchNormalization(momentum=0.5, **options)


def network(units=1):
    """Return a model of two layers of ``x``."""
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(units)])


def _names(columns):
    return [columns] if isinstance(columns, str) else list(columns or ())
