"""Metrics: what `evaluate` gives on rows that fill up, for a model with fixed weights."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.keras_table import losses
from tests.support.keras_table.cells import SYNCHRONOUS_ON_TENSORFLOW, cell, on
from tests.support.keras_table.columns import MULTI_WORKER
from tests.support.keras_table.training import in_steps, trained
from tests.support.networks import misses

_REGRESSION = (losses._plain, 3, None)
_BINARY = (losses._binary, 1, "sigmoid")
_ONE_HOT = (losses._one_hot, 3, "softmax")
_CLASS = (losses._class, 3, "softmax")
_SIGNS = (losses._signs, 1, "tanh")
_POSITIVE = (losses._positive, 1, "softplus")
_PROBABILITIES = (losses._probabilities, 3, "softmax")


def _rounded(x, y):
    return x, tf.round(y)[:, None] * 0


def _classes_as_labels(x, y):
    return x, tf.argmax(x[:, :2], axis=1)[:, None]


METRICS = {  # labels, the model's units, its activation, and how the metric is made
    "AUC": (*_BINARY, {}),
    "Accuracy": (_rounded, 1, "relu", {}),
    "BinaryAccuracy": (*_BINARY, {}),
    "BinaryCrossentropy": (*_BINARY, {}),
    "BinaryIoU": (*_BINARY, {"target_class_ids": [0, 1]}),
    "CategoricalAccuracy": (*_ONE_HOT, {}),
    "CategoricalCrossentropy": (*_ONE_HOT, {}),
    "CategoricalHinge": (*_ONE_HOT, {}),
    "ConcordanceCorrelation": (*_REGRESSION, {}),
    "CosineSimilarity": (*_REGRESSION, {}),
    "F1Score": (*_ONE_HOT, {}),
    "FBetaScore": (*_ONE_HOT, {"beta": 2.0}),
    "FalseNegatives": (*_BINARY, {}),
    "FalsePositives": (*_BINARY, {}),
    "Hinge": (*_SIGNS, {}),
    "IoU": (_classes_as_labels, 1, "sigmoid", {"num_classes": 2, "target_class_ids": [0]}),
    "KLDivergence": (*_PROBABILITIES, {}),
    "LogCoshError": (*_REGRESSION, {}),
    "MeanAbsoluteError": (*_REGRESSION, {}),
    "MeanAbsolutePercentageError": (*_POSITIVE, {}),
    "MeanIoU": (_classes_as_labels, 1, "sigmoid", {"num_classes": 2}),
    "MeanSquaredError": (*_REGRESSION, {}),
    "MeanSquaredLogarithmicError": (*_POSITIVE, {}),
    "OneHotIoU": (*_ONE_HOT, {"num_classes": 3, "target_class_ids": [0, 2]}),
    "OneHotMeanIoU": (*_ONE_HOT, {"num_classes": 3}),
    "PearsonCorrelation": (*_REGRESSION, {}),
    "Poisson": (*_POSITIVE, {}),
    "Precision": (*_BINARY, {}),
    "PrecisionAtRecall": (*_BINARY, {"recall": 0.5}),
    "R2Score": (*_REGRESSION, {}),
    "Recall": (*_BINARY, {}),
    "RecallAtPrecision": (*_BINARY, {"precision": 0.5}),
    "RootMeanSquaredError": (*_REGRESSION, {}),
    "SensitivityAtSpecificity": (*_BINARY, {"specificity": 0.5}),
    "SparseCategoricalAccuracy": (*_CLASS, {}),
    "SparseCategoricalCrossentropy": (*_CLASS, {}),
    "SparseTopKCategoricalAccuracy": (*_CLASS, {"k": 2}),
    "SpecificityAtSensitivity": (*_BINARY, {"sensitivity": 0.5}),
    "SquaredHinge": (*_SIGNS, {}),
    "TopKCategoricalAccuracy": (*_ONE_HOT, {"k": 2}),
    "TrueNegatives": (*_BINARY, {}),
    "TruePositives": (*_BINARY, {}),
}


_found: dict[tuple, dict] = {}


def _alike(name):
    """Return the metrics that a model of the same shape is evaluated with: one pass gives them all."""
    return [other for other, values in METRICS.items() if values[:3] == METRICS[name][:3]]


def _evaluate(column, names):
    labels, units, activation, _ = METRICS[names[0]]
    with column.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation=activation)])
        made = [getattr(keras.metrics, name)(**METRICS[name][3], name=name) for name in names]
        weighted = [
            getattr(keras.metrics, name)(**METRICS[name][3], name=f"weighted_{name}")
            for name in names
            if name not in _WITHOUT_WEIGHTS
        ]
        model.compile(
            "sgd", lambda truth, prediction: keras.ops.mean(prediction, -1), metrics=made, weighted_metrics=weighted
        )
    kernel = np.linspace(-1, 1, 4 * units, dtype="f4").reshape(4, units)
    model.set_weights([kernel, np.linspace(0.1, 0.3, units, dtype="f4")])
    rows = column.uneven().map(lambda x, y, w: (*labels(x, y), w))
    if column.coordinator:
        return _in_a_loop(column, model, rows, made, weighted, names)
    found = model.evaluate(rows, return_dict=True, verbose=0)
    again = model.evaluate(rows, return_dict=True, verbose=0)
    return {
        name: [found[f"{kind}{name}"] for kind in ("", "weighted_") if f"{kind}{name}" in found] for name in names
    } | {"again": all(np.array_equal(again[name], found[name]) for name in found)}


def _in_a_loop(column, model, rows, plain, weighted, names):
    def step(x, y, weight):
        predicted = model(x, training=False)
        for each in plain:
            each.update_state(y, predicted)
        for each in weighted:
            each.update_state(y, predicted, sample_weight=weight)
        return keras.ops.shape(weight)[0]

    in_steps(column, step, rows)
    found = {each.name: each.result() for each in [*plain, *weighted]}
    values = {
        name: [found[f"{kind}{name}"] for kind in ("", "weighted_") if f"{kind}{name}" in found] for name in names
    }
    return values | {"again": True}


_WITHOUT_WEIGHTS = ("ConcordanceCorrelation", "PearsonCorrelation")


@cell("Metrics", *METRICS)
def metric(column, name):
    names = tuple(_alike(name))
    key = (column.name, names)
    if key not in _found:
        _found[key] = _evaluate(column, names)
    return {"value": _found[key][name], "again": _found[key]["again"]}


@cell("Metrics", "MeanMetricWrapper")
def wrapper(column):
    def farthest(truth, prediction):
        return keras.ops.max(keras.ops.abs(keras.ops.reshape(truth, (-1, 1)) - prediction), axis=-1)

    with column.scope():
        metric = keras.metrics.MeanMetricWrapper(farthest, name="farthest")
    return trained(column, metrics=[metric])


@cell("Metrics", "Mean and Sum in a train_step of the model's own", columns=SYNCHRONOUS_ON_TENSORFLOW)
def trackers(column):
    class Tracking(keras.Sequential):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.mean = keras.metrics.Mean("own_mean")
            self.sum = keras.metrics.Sum("own_sum")

        def train_step(self, data):
            logs = super().train_step(data)
            self.mean.update_state(data[1])
            self.sum.update_state(data[1])
            return {**logs, "own_mean": self.mean.result(), "own_sum": self.sum.result()}

        @property
        def metrics(self):
            return [*super().metrics, self.mean, self.sum]

    return trained(column, lambda: Tracking([keras.Input((4,)), keras.layers.Dense(1)]))


@cell("Metrics", "a function of one's own")
def function(column):
    def close(truth, prediction):
        near = keras.ops.abs(keras.ops.reshape(truth, (-1, 1)) - prediction) < 1
        return keras.ops.mean(keras.ops.cast(near, "float32"), axis=-1)

    return trained(column, metrics=[close])


@cell("Metrics", "a class of one's own")
def own(column):
    with column.scope():
        metric = misses("far")
    return trained(column, metrics=[metric])


@cell(
    "Metrics",
    "a class of one's own whose state is not a sum",
    different=on(
        MULTI_WORKER,
        "Keras adds up a metric's variables over the replicas. A maximum over all rows is not a sum: make the variable "
        "with aggregation='mean' where that fits, or compute it from what is added up.",
    ),
)
def largest(column):
    class Largest(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

        def update_state(self, truth, prediction, sample_weight=None):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(truth)))

        def result(self):
            return self.largest

    with column.scope():
        metric = Largest(name="largest")
    return trained(column, metrics=[metric])


@cell("Metrics", "as strings, weighted and not")
def strings(column):
    return trained(column, metrics=["mae", "mse"], weighted_metrics=["mape"])


@cell("Metrics", "in train, reset at each epoch")
def in_training(column):
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])

    with column.scope():
        made = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    data = column.even().map(lambda x, y, w: (*losses._binary(x, y), w))
    return trained(column, build, loss="binary_crossentropy", data=data, metrics=made)


@cell("Metrics", "compute_metrics of a model's own")
def computed(column):
    class Own(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "constant": 3.0}

    return trained(column, lambda: Own([keras.Input((4,)), keras.layers.Dense(1)]), metrics=["mae"])
