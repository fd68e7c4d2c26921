"""Keras on JAX: rows that fill up batches count in nothing, also where `tests.support.own_steps` has no program."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(900)]

JAX = {"KERAS_BACKEND": "jax"}
EPOCHS = 2


def programs():
    """Return, by name, functions that give a compiled model; labels are classes from 0 to 2."""
    import keras

    def network(*layers, **compiled):
        keras.utils.set_random_seed(5)
        hidden = [keras.layers.Dense(4, "tanh"), *layers, keras.layers.Dense(3, "softmax")]
        model = keras.Sequential([keras.Input((3,)), *hidden])
        model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", **compiled)
        return model

    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.max(keras.ops.abs(x)))
            return x

    return {
        "add_loss of the largest": lambda: network(Adds(), keras.layers.ActivityRegularization(0.1)),
        "Dropout": lambda: network(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.3)),
        "weighted_metrics": lambda: network(weighted_metrics=["accuracy"]),
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
