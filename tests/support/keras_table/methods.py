"""What a trainer's methods do: with what data, with which arguments."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.keras_table import rows
from tests.support.keras_table.cells import SYNCHRONOUS, cell, on, table
from tests.support.keras_table.columns import JAX, SEVERAL_WORKERS
from tests.support.keras_table.datasets import Rows
from tests.support.keras_table.training import linear, mapped, weights_of


def _compiled(column, build=linear, **options):
    with column.scope():
        model = build()
        model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": "mse", "metrics": ["mae"], **options})
    return model


def _fit(column, *arguments, build=linear, compiled=None, **options):
    model = _compiled(column, build, **(compiled or {}))
    history = model.fit(*arguments, **{"epochs": 2, "verbose": 0, **options}).history
    return {"weights": weights_of(model), "history": history}


def _fit_even(**options):
    """Return a program that fits on a fed dataset."""
    return lambda column: _fit(column, column.even(), **options)


table(
    "fit",
    {
        "validation_data: a fed dataset": lambda column: _fit(column, column.even(), validation_data=column.uneven()),
        "validation_data: arrays, validation_freq": lambda column: _fit(
            column, column.even(), validation_data=(column.x, column.y), validation_freq=2
        ),
        "validation_data, validation_steps": lambda column: _fit(
            column, column.even(), validation_data=column.even(), validation_steps=2
        ),
        "steps_per_epoch, with repeat()": lambda column: _fit(
            column, column.even().repeat(), steps_per_epoch=2, epochs=3
        ),
        "steps_per_epoch, without repeat()": _fit_even(steps_per_epoch=2, epochs=1),
        "initial_epoch": _fit_even(initial_epoch=1, epochs=3),
    },
)


@cell("fit", "twice, the same dataset")
def again(column):
    model = _compiled(column)
    data = column.even()
    return [model.fit(data, epochs=2, verbose=0).history for _ in range(2)] + weights_of(model)


table(
    "fit",
    {
        "steps_per_execution=2": _fit_even(compiled={"steps_per_execution": 2}),
        "run_eagerly=True": _fit_even(compiled={"run_eagerly": True}),
        "jit_compile=True": _fit_even(compiled={"jit_compile": True}),
    },
)


@cell("fit", "jit_compile=True: evaluate, predict, train_on_batch")
def compiled_others(column):
    model = _compiled(column, jit_compile=True)
    return [
        model.evaluate(column.even(), verbose=0),
        model.predict(column.x, verbose=0),
        model.train_on_batch(*_share(column)),
    ]


def _fit_arrays(batch_size=16, **options):
    """Return a program that fits on the arrays that all workers have."""
    return lambda column: _fit(column, column.x, column.y, batch_size=batch_size, shuffle=False, **options)


table(
    "fit",
    {
        "verbose=1 and 2": lambda column: [_fit(column, column.even(), verbose=each, epochs=1) for each in (1, 2)],
        "auto_scale_loss=False": _fit_even(compiled={"auto_scale_loss": False}),
        "arrays that all workers have": _fit_arrays(),
        "arrays with weights": lambda column: _fit_arrays(sample_weight=np.abs(column.x[:, 0]))(column),
        "arrays with validation_split, and a last batch of two rows": _fit_arrays(8, validation_split=0.25),
    },
)


@cell("fit", "arrays and class_weight")
def class_arrays(column):
    classes = np.argmax(column.x[:, :3], 1)
    loss = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": []}
    return _fit(
        column,
        column.x,
        classes,
        batch_size=16,
        shuffle=False,
        class_weight={0: 2.0, 1: 1.0, 2: 0.5},
        build=lambda: linear(3),
        compiled=loss,
    )


@cell("fit", "a tf.data.Dataset of one's own, which all workers have")
def dataset(column):
    return _fit(column, tf.data.Dataset.from_tensor_slices((column.x, column.y)).batch(16))


@cell("fit", "tensors")
def tensors(column):
    return _fit(column, tf.constant(column.x), tf.constant(column.y), batch_size=16, shuffle=False)


@cell("fit", "a pandas DataFrame")
def pandas(column):
    import pandas as pd

    frame = pd.DataFrame(column.x)
    return _fit(column, frame, pd.Series(column.y), batch_size=16, shuffle=False)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 3

    def __getitem__(self, number):
        part = slice(number * 16, (number + 1) * 16)
        return self.x[part], self.y[part]


@cell("fit", "a PyDataset of one's own, which all workers have")
def py_dataset(column):
    return _fit(column, Batches(column.x, column.y), shuffle=False)


@cell("fit", "a generator of global batches, which all workers have")
def generator(column):
    def batches():
        while True:
            for start in (0, 16, 32):
                yield column.x[start : start + 16], column.y[start : start + 16]

    return _fit(column, batches(), steps_per_epoch=3)


@cell("fit", "a generator over ctx.batches")
def fed_generator(column):
    return _fit(column, _generator(column), steps_per_epoch=3)


def _generator(column):
    """Yield this worker's batches for ever; in one process, the global ones."""
    if column.ctx is None:
        while True:
            for start in (0, 16, 32):
                yield column.x[start : start + 16], column.y[start : start + 16]
    epoch = column.ctx.batches(16, features="features", label="label", shuffle=False)
    while True:
        for x, y, weights in epoch():
            yield (x, y, weights) if column.name == JAX else (x, y)  # on JAX these mark padding


@cell("fit", "sparse batches", refused=on(JAX, "the dataset has sparse values"))
def sparse(column):
    def change(x, y):
        return tf.sparse.from_dense(tf.nn.relu(x)), y

    def build():
        return keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(1)])

    return _fit(column, mapped(column, change), build=build, compiled={"metrics": []})


@cell("fit", "scipy's sparse matrices", refused=on(JAX, "and no sparse ones"))
def scipy_sparse(column):
    import scipy.sparse

    matrix = scipy.sparse.csr_matrix(np.maximum(column.x, 0))

    def build():
        return keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(1)])

    model = _compiled(column, build, metrics=[])
    history = model.fit(matrix, column.y, batch_size=16, shuffle=False, verbose=0).history
    return {
        "history": history,
        "weights": weights_of(model),
        "evaluated": model.evaluate(matrix, column.y, batch_size=16, verbose=0),
        "predicted": model.predict(matrix, batch_size=16, verbose=0),
    }


@cell("fit", "ragged batches", refused=on(JAX, "the dataset has ragged values"))
def ragged(column):
    def change(x, y):
        return tf.ragged.boolean_mask(x, x > 0), y

    class Sums(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            dense = x.to_tensor(shape=(None, 4)) if isinstance(x, tf.RaggedTensor) else x
            return self.dense(dense)

    return _fit(column, mapped(column, change), build=Sums, compiled={"metrics": []})


table(
    "evaluate",
    {
        "a fed dataset whose workers have unequal numbers of rows": lambda column: _compiled(column).evaluate(
            column.uneven(), return_dict=True, verbose=0
        ),
        "a fed dataset, steps": lambda column: _compiled(column).evaluate(column.even(), steps=2, verbose=0),
        "arrays": lambda column: _compiled(column).evaluate(column.x, column.y, batch_size=16, verbose=0),
        "arrays with weights": lambda column: _compiled(column, weighted_metrics=["mse"]).evaluate(
            column.x, column.y, batch_size=16, sample_weight=np.abs(column.x[:, 0]), verbose=0
        ),
        "a loss per row, steps_per_execution=2": lambda column: _compiled(column, steps_per_execution=2).evaluate(
            column.uneven(), verbose=0
        ),
    },
)
table(
    "predict",
    {
        "arrays": lambda column: _compiled(column).predict(column.x, verbose=0),
        "arrays in short batches": lambda column: _compiled(column).predict(column.x[:31], batch_size=16, verbose=0),
        "steps_per_execution=2": lambda column: _compiled(column, steps_per_execution=2).predict(
            column.x, batch_size=16, verbose=0
        ),
    },
)


@cell("predict", "several outputs by name")
def predict_outputs(column):
    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(2)(inputs)})

    return _compiled(column, build, metrics=None).predict(column.x, verbose=0)


def _predicted_ids(model, data, ids):
    """Return the ids of the rows that were predicted: each worker predicts its own."""
    direct = np.ravel(model(rows.features(ids)))
    return Rows(sorted(ids[np.argmin(abs(direct - value))] for value in np.ravel(model.predict(data, verbose=0))))


@cell(
    "predict",
    "a fed dataset: all workers together predict each row once",
    different={
        JAX: "On JAX the rows that pad the last batches of a feed are predicted too: take them out by their weights, "
        "as in the next program."
    },
)
def predict_fed(column):
    return _predicted_ids(_compiled(column), column.even().map(lambda x, y, w: x), column.ids)


@cell("predict", "a fed dataset with unequal batches")
def predict_uneven(column):
    data = column.uneven().map(lambda x, y, w: tf.boolean_mask(x, w > 0))  # weights of padding are -0.0
    return _predicted_ids(_compiled(column), data, column.uneven_ids)


def _share(column):
    """Return this worker's part of the first batch, as train_on_batch takes it."""
    if column.name in SEVERAL_WORKERS:
        part = slice(8 * column.ctx.index, 8 * (column.ctx.index + 1))
        return column.x[:16][part], column.y[:16][part]
    return column.x[:16], column.y[:16]


@cell("on a batch", "train_on_batch")
def train_on_batch(column):
    model = _compiled(column)
    logs = [model.train_on_batch(*_share(column), return_dict=True) for _ in range(3)]
    return [logs, weights_of(model)]


@cell("on a batch", "train_on_batch with weights and class_weight")
def train_on_weighted_batch(column):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = _compiled(column, lambda: linear(3), loss=loss, metrics=[])
    x = _share(column)[0]
    y = np.argmax(x[:, :3], 1)
    first = model.train_on_batch(x, y, sample_weight=np.abs(x[:, 0]))
    return [first, model.train_on_batch(x, y, class_weight={0: 2.0, 1: 1.0, 2: 0.5}), weights_of(model)]


@cell("on a batch", "test_on_batch")
def test_on_batch(column):
    model = _compiled(column)
    return [model.test_on_batch(*_share(column), return_dict=True) for _ in range(2)]


@cell("on a batch", "predict_on_batch")
def predict_on_batch(column):
    model = _compiled(column)
    return model.predict_on_batch(column.x[:16])


@cell("on a batch", "model(x)")
def called(column):
    model = _compiled(column)
    return [np.asarray(model(column.x)), np.asarray(model(column.x, training=False))]


@cell("on a batch", "batches of a fed dataset, one by one", columns=SYNCHRONOUS)
def fed_batches(column):
    model = _compiled(column)
    for x, y, w in column.even():
        model.train_on_batch(x, y, sample_weight=w)
    return weights_of(model)


@cell("on a batch", "compute_loss, compute_metrics, reset_metrics, get_metrics_result")
def computed(column):
    model = _compiled(column)
    model.evaluate(column.even(), verbose=0)
    kept = model.get_metrics_result()
    model.reset_metrics()
    return {name: float(value) for name, value in kept.items()}
