"""Models whose metrics padding would change, and the batches they are given."""

import numpy as np
import pytest
import tensorflow as tf

ROWS = 10
BATCH = 4


def values():
    """Return features, a label, two more, and weights of real rows, among them some of zero."""
    x = np.sin(np.arange(ROWS * 3, dtype="f4") ** 2).reshape(ROWS, 3)
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("f4"), 2 * x[:, :2], np.arange(ROWS, dtype="f4") % 3


def padded(steps, rows=slice(None), weights=None):
    """Return what the feed gives of some of the rows: batches that are filled up with rows of the weight -0.0."""
    x, one, two, own = values()
    x, one, two, own = x[rows], one[rows], two[rows], (own if weights is None else weights)[rows]
    again = np.arange(steps * BATCH) % len(x)
    weight = np.where(np.arange(steps * BATCH) < len(x), np.resize(own, steps * BATCH), np.float32(-0.0))
    return tf.data.Dataset.from_tensor_slices((x[again], (one[again], two[again]), weight)).batch(BATCH)


def model_of(keras, outputs="one", rate=0.0, **settings):
    """Return a compiled model with one output, or with two of them in a list or a dict."""

    class Rows(keras.metrics.Metric):
        """A metric of the user's own that does not look at weights: how many rows it was given."""

        def __init__(self, **named):
            super().__init__(**named)
            self.count = self.add_weight(shape=(), initializer="zeros", name="count")

        def update_state(self, truth, prediction, sample_weight=None):
            self.count.assign_add(tf.cast(tf.shape(truth)[0], "float32"))

        def result(self):
            return 1.0 * self.count

    def layer(size, name, activation, **more):
        kernel = keras.initializers.RandomNormal(stddev=1.0, seed=size)
        return keras.layers.Dense(size, activation, name=name, kernel_initializer=kernel, **more)

    first = keras.Input((3,))
    hidden = layer(4, "hidden", "tanh", kernel_regularizer=keras.regularizers.L2(0.05))(first)
    one, two = layer(1, "one", "sigmoid")(hidden), layer(2, "two", None)(hidden)
    own = [keras.metrics.AUC(name="auc"), Rows(name="rows")]
    mae = keras.metrics.MeanAbsoluteError(name="mae")
    loss = {"one": "binary_crossentropy", "two": "mse"}
    if outputs == "one":
        model = keras.Model(first, one)
        settings |= {"loss": loss["one"], "metrics": ["accuracy", *own], "weighted_metrics": [mae]}
    elif outputs == "list":
        model = keras.Model(first, [one, two])
        settings |= {"loss": list(loss.values()), "metrics": [["accuracy", *own], ["mse"]]}
    else:
        model = keras.Model(first, {"one": one, "two": two})
        settings |= {"loss": loss, "metrics": {"one": own, "two": ["mse"]}, "weighted_metrics": {"two": [mae]}}
    model.compile(keras.optimizers.SGD(rate), **settings)
    return model


def labelled(dataset, outputs):
    """Return the data set with the labels that a model with these outputs takes."""

    def pick(x, y, weight):
        return x, {"one": y[0], "list": y, "dict": dict(zip(("one", "two"), y, strict=True))}[outputs], weight

    return dataset.map(pick)


def shown(model, dataset):
    """Return what evaluate shows, what fit shows of the training, and what fit shows of the validation."""
    history = model.fit(dataset, validation_data=dataset, verbose=0).history
    return [
        {name: float(value) for name, value in model.evaluate(dataset, return_dict=True, verbose=0).items()},
        {name: float(value) for name, (value,) in history.items() if not name.startswith("val_")},
        {name.removeprefix("val_"): float(value) for name, (value,) in history.items() if name.startswith("val_")},
    ]


def plain(keras, outputs="one", weights=None):
    """Return what Keras shows of all rows in one batch, when nothing is done to it."""
    x, one, two, own = values()
    rows = tf.data.Dataset.from_tensors((x, (one, two), own if weights is None else weights))
    return shown(model_of(keras, outputs), labelled(rows.map(with_static_shape), outputs))


def with_static_shape(x, y, w):
    """Return rows whose number Keras knows, as it must to count them right in the losses of several outputs."""
    return tf.ensure_shape(x, (ROWS, 3)), y, w


def assert_same(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
