"""Keras on JAX: rows that fill up batches count in nothing, whatever a program computes of a batch."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(900)]

JAX = {"KERAS_BACKEND": "jax"}
EPOCHS = 2


def programs():  # noqa: C901 - they need Keras, which only the nodes import on JAX
    """Return, by name, functions that give a compiled model; labels are classes from 0 to 2."""
    import jax
    import keras

    ops = keras.ops

    def network(*layers, loss="sparse_categorical_crossentropy", kind=keras.Sequential, **compiled):
        keras.utils.set_random_seed(5)
        model = kind([keras.Input((3,)), keras.layers.Dense(4, "tanh"), *layers, keras.layers.Dense(3, "softmax")])
        model.compile(keras.optimizers.Adam(0.05), loss, **compiled)
        return model

    def errors(y, predicted):
        return ops.square(ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3) - predicted)

    def masked(y, predicted):
        mask = ops.cast(ops.reshape(y, (-1, 1)) > 0, "float32")
        valid = ops.maximum(ops.sum(mask), 1)  # what XLA makes of 0 / 0 depends on the number of rows
        return ops.sum(errors(y, predicted) * mask) / valid

    def dice(y, predicted):
        truth = ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3)
        return keras.losses.Dice()(truth, predicted)

    class Own(keras.losses.Loss):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return ops.mean(errors(y_true, y_pred))

    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(ops.max(ops.abs(x)))
            return x

    class Counts(keras.layers.Layer):
        def build(self, _):
            self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False)
            self.built = True

        def call(self, x, training=False):
            if training:
                self.rows.assign(self.rows + ops.shape(x)[0])
            return x

    class Rows(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.count = self.add_weight(shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign(self.count + ops.shape(y_true)[0])

        def result(self):
            return self.count + 0.0

        def reset_state(self):
            self.count.assign(0.0)

    class Step(keras.Sequential):
        def train_step(self, state, data):
            trainable, others, of_optimizer, metrics = state
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)

            def loss(trainable, others):
                predicted, others = self.stateless_call(trainable, others, x, training=True)
                return ops.sqrt(ops.mean(errors(y, predicted))), others

            (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others)
            trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
            return {"loss": value}, (trainable, others, of_optimizer, metrics)

    return {
        "ignore_class": lambda: network(loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0)),
        "valid elements": lambda: network(loss=masked),
        "the root of a mean": lambda: network(loss=lambda y, predicted: ops.sqrt(ops.mean(errors(y, predicted)))),
        "Dice": lambda: network(loss=dice),
        "a loss that returns a mean": lambda: network(loss=Own()),
        "sum": lambda: network(loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum")),
        "add_loss": lambda: network(Adds(), keras.layers.ActivityRegularization(0.1)),
        "Dropout": lambda: network(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.3)),
        "BatchNormalization": lambda: network(keras.layers.BatchNormalization(momentum=0.5)),
        "a layer that counts rows": lambda: network(Counts()),
        "metrics": lambda: network(metrics=[Rows(), lambda y, predicted: ops.mean(ops.max(predicted, axis=-1))]),
        "train_step": lambda: network(kind=Step),
        "weighted_metrics": lambda: network(weighted_metrics=["accuracy"]),
        "two steps at a time": lambda: network(steps_per_execution=2),
    }


def train(model, data, **options):
    history = model.fit(data, epochs=EPOCHS, verbose=0, **options).history
    return [np.asarray(each) for each in model.get_weights()], history, int(model.optimizer.iterations.numpy())


def weighted(weights):
    """Return a map of a dataset that gives each row a weight of its own: -0.0 for some."""
    import tensorflow as tf

    return lambda x, y, w: (x, y, tf.where(x[:, 0] > weights, -0.0, tf.abs(x[:, 1])))


def on_workers(args, ctx):
    options = {"features": "features", "label": "label", "shuffle": False}
    x, y, weights = own_arrays(ctx.index % 2)  # before a feed has filled up any batch, which -0.0 would mark
    build = programs()["weighted_metrics"]
    found = {"arrays": train(build(), x, y=y, sample_weight=weights, batch_size=4, shuffle=False)}
    for name, build in programs().items():
        found[name] = train(build(), ctx.dataset(8, **options))
    build = programs()["weighted_metrics"]
    found["own weights"] = train(build(), ctx.dataset(8, **options).map(weighted(0.3)))
    model = build()
    for batch in ctx.batches(8, **options):
        model.train_on_batch(*batch)
    found["train_on_batch"] = [np.asarray(each) for each in model.get_weights()]
    return found, list(ctx.batches(8, **options))


def own_arrays(worker):
    """Return seven rows of a worker, one with a weight of -0.0."""
    rng = np.random.default_rng(3)
    x, y = rng.random((14, 3), np.float32), rng.integers(0, 3, 14)
    weights = np.where(np.arange(14) % 7 == 2, -0.0, 1.0).astype("f4")
    rows = slice(7 * worker, 7 * worker + 7)
    return x[rows], y[rows], weights[rows]


def in_one_process(batches, ctx):
    import keras

    class Given(keras.utils.PyDataset):
        def __init__(self, given):
            super().__init__()
            self.given = given

        def __len__(self):
            return len(self.given)

        def __getitem__(self, number):
            return self.given[number]

    found = {name: train(build(), Given(batches), shuffle=False) for name, build in programs().items()}
    build = programs()["weighted_metrics"]
    own = [(x, y, np.where(x[:, 0] > 0.3, -0.0, np.abs(x[:, 1])).astype("f4")) for x, y, _ in batches]
    found["own weights"] = train(build(), Given(own), shuffle=False)
    one, two = map(own_arrays, range(2))
    steps = [slice(0, 4), slice(4, 7)]
    own = [tuple(np.concatenate([a[rows], b[rows]]) for a, b in zip(one, two, strict=True)) for rows in steps]
    found["arrays"] = train(build(), Given(own), shuffle=False)
    model = build()
    for batch in batches:
        model.train_on_batch(*batch)
    found["train_on_batch"] = [np.asarray(each) for each in model.get_weights()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[10, 4], [7, 2, 6]])
def test_what_a_program_computes_of_a_batch_is_what_one_process_computes(spark, sizes):
    frame = small_frame(spark, sizes).selectExpr("features", "cast(id % 3 as int) as label")
    data = tfos.Data(frame, rebalance=False)
    results = tfos.run(spark, on_workers, num_workers=len(sizes), data=data, env=JAX)
    batches = []
    for parts in zip(*(batches for _, batches in results.values()), strict=True):
        x, y, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
        batches.append(tuple(each[~np.signbit(weights)] for each in (x, y, weights)))
    assert any(len(x) < 8 for x, *_ in batches)
    expected = tfos.run(spark, in_one_process, batches, num_workers=1, env=JAX)["worker:0"]
    for found, _ in results.values():
        for name, its in expected.items():
            if name != "arrays" or len(sizes) == 2:
                compare(name, found[name], its)


def compare(name, found, expected):
    if isinstance(expected, dict):
        assert set(found) == set(expected), name
        for each in expected:
            compare(f"{name}: {each}", found[each], expected[each])
    elif isinstance(expected, (tuple, list)) and not np.isscalar(expected[0]):
        assert len(found) == len(expected), name
        for one, other in zip(found, expected, strict=True):
            compare(name, one, other)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5, err_msg=name)
