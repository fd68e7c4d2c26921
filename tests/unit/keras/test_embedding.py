"""ShardedEmbedding in one process: its steps, its ids, its files, and its rows for other numbers of workers."""

import inspect
import io
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflowonspark as tfos
from tensorflowonspark.exports.writing import export
from tensorflowonspark.keras.embedding.row_optimizers import row_optimizer
from tensorflowonspark.keras.embedding.table import Table, initial_rows
from tensorflowonspark.keras.embedding.table_parts import read_parts, written_parts

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(50, 4)).astype("f4")


@pytest.fixture
def embedding():
    """Return a function that makes a layer with known rows."""

    def make(optimizer="sgd", **options):
        return tfos.keras.ShardedEmbedding(50, 4, optimizer, initializer=lambda ids: ROWS[ids], **options)

    return make


def step(layer, *calls):
    """Take one step, in which the loss is the weighted sum of what the calls return."""

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(layer(ids) * weights) for ids, weights in calls])
        return tape.gradient(loss, layer.trainable_weights)

    return train()


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_a_step_is_that_of_keras_with_the_sum_of_each_rows_gradients(embedding, name):
    kinds = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
    layer, dense = embedding(kinds[name](0.3)), kinds[name](0.3)
    variable = keras.Variable(ROWS)
    for _ in range(3):
        ids = np.concatenate([np.arange(50), RNG.integers(0, 50, 150)])  # each, or lazy Adam would differ
        weights = RNG.normal(size=(200, 4)).astype("f4")
        step(layer, (ids, weights))
        gradient = np.zeros_like(ROWS)
        np.add.at(gradient, ids, weights)
        dense.apply([tf.constant(gradient)], [variable])
    np.testing.assert_allclose(layer.lookup(range(50)), variable.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("eager", [False, True])
def test_calls_of_one_step_are_one_update_with_the_sum_of_their_gradients(embedding, eager):
    apart, together = embedding("adam"), embedding("adam")
    tf.config.run_functions_eagerly(eager)
    try:
        for _ in range(2):
            ids, weights = np.array([1, 2, 2, 9]), RNG.normal(size=(4, 4)).astype("f4")
            step(apart, (ids[:2], weights[:2]), (ids[2:], weights[2:]))
            step(together, (ids, weights))
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(apart.lookup(range(50)), together.lookup(range(50)), rtol=1e-6)


def test_rows_without_a_gradient_stay_as_they_are(embedding):
    """As those of ids in padding rows only; with Adam's momentum they would move."""
    layer = embedding("adam")
    step(layer, (np.array([1, 2]), np.ones((2, 4), "f4")))
    before = layer.lookup(range(50))
    step(layer, (np.array([1, 2]), np.array([[-0.0] * 4, [1.0] * 4], "f4")))
    changed = np.flatnonzero((layer.lookup(range(50)) != before).any(axis=1))
    assert changed.tolist() == [2]


def test_a_frozen_layer_learns_nothing(embedding):
    layer = embedding(trainable=False)
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile="auto")
    assert not model.jit_compile
    model.fit(np.array([[1, 2]]), np.ones((1, 1)), verbose=0)
    np.testing.assert_array_equal(layer.lookup(range(50)), ROWS)


def test_lists_of_ids_are_combined(embedding):
    ragged = tf.ragged.constant([[1, 2, 2], [], [7]], dtype=tf.int32)
    sums = np.stack([ROWS[1] + 2 * ROWS[2], np.zeros(4), ROWS[7]])
    for combiner, by in (("sum", [1, 1, 1]), ("mean", [3, 1, 1]), ("sqrtn", [3**0.5, 1, 1])):
        layer = embedding(combiner=combiner)
        np.testing.assert_allclose(layer(ragged), sums / np.array(by)[:, None], rtol=1e-6)
        np.testing.assert_allclose(layer(np.array([[7]])), ROWS[[7]], rtol=1e-6)
        np.testing.assert_allclose(layer(ragged[:1].to_sparse()), sums[:1] / by[0], rtol=1e-6)
        nested = tf.ragged.constant([[[1, 2, 2], []], [[7]]])
        np.testing.assert_allclose(layer(nested).flat_values, sums / np.array(by)[:, None], rtol=1e-6)
    np.testing.assert_array_equal(embedding()(ragged).flat_values, ROWS[[1, 2, 2, 7]])


@pytest.mark.deep
def test_a_model_takes_ragged_and_sparse_ids(embedding):
    ids = keras.Input((None,), dtype="int64", ragged=True)
    model = keras.Model(ids, keras.layers.Dense(1)(embedding(combiner="mean")(ids)))
    model.compile("sgd", "mse")
    batch = tf.ragged.constant([[1, 2, 2], [], [7]], dtype=tf.int64), np.ones((3, 1))
    losses = model.fit(tf.data.Dataset.from_tensors(batch).repeat(5), epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0]
    assert model.predict(tf.data.Dataset.from_tensors(batch[0]), verbose=0).shape == (3, 1)


def test_hashes_stand_in_for_strings_and_ids_out_of_range(embedding):
    layer = embedding(hash=True)
    np.testing.assert_array_equal(layer(np.array([3, 49])), ROWS[[3, 49]])
    far = layer(np.array([-1, 50, 10**15])).numpy()
    assert all((row == ROWS).all(axis=1).any() for row in far)
    words = layer(tf.constant([["a"], ["b"]])).numpy()
    assert words.shape == (2, 1, 4)
    np.testing.assert_array_equal(layer(tf.constant("a")), words[0, 0])


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (np.array([[1, 2], [3, 50]]), "id 50 in row 1"),
        (np.array([4, -7]), "id -7 in row 1"),
        (tf.ragged.constant([[1], [], [2, 3, 99]]), "id 99 in row 2"),
        (tf.ragged.constant([[[1], []], [[2, 3, 99]]]), "id 99 in row 1"),
    ],
)
def test_an_id_out_of_range_is_named_with_its_row(embedding, ids, named):
    with pytest.raises(tfos.FeedError, match=f"ShardedEmbedding 'items': {named} of the batch"):
        embedding(name="items")(ids)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rows": 0}, "rows=0"),
        ({"dim": 2.5}, "dim=2.5"),
        ({"combiner": "max"}, "combiner='max'"),
        ({"optimizer": "rmsprop"}, "'rmsprop'"),
        ({"optimizer": keras.optimizers.AdamW()}, "AdamW"),
        ({"optimizer": keras.optimizers.SGD(momentum=0.9)}, "momentum=0.9"),
        ({"optimizer": keras.optimizers.Adam(clipnorm=1.0)}, "clipnorm=1.0"),
        ({"initializer": "ones"}, "initializer='ones'"),
    ],
)
def test_arguments_that_are_refused(arguments, named):
    with pytest.raises(tfos.SpecError, match=named.replace("(", ".")):
        tfos.keras.ShardedEmbedding(**{"rows": 5, "dim": 2, **arguments})


def test_ids_of_other_types_are_refused(embedding):
    for ids, named in ((np.array([1.0]), "float64"), (tf.constant(["a"]), "hash=True")):
        with pytest.raises(tfos.SpecError, match=named):
            embedding()(ids)
    with pytest.raises(tfos.SpecError, match="a worker for each GPU"):
        devices = tf.config.list_logical_devices("CPU")
        with tf.distribute.MirroredStrategy([devices[0].name, "/device:CPU:1"]).scope():
            embedding().build()


@pytest.mark.deep
def test_a_learning_rate_may_follow_a_schedule_or_be_set(embedding):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    planned, by_hand = embedding(keras.optimizers.SGD(schedule)), embedding(keras.optimizers.SGD(1.0))
    for _ in range(2):
        for layer in (planned, by_hand):
            step(layer, (np.array([3]), np.ones((1, 4), "f4")))
        np.testing.assert_allclose(planned.lookup([3]), ROWS[[3]] - 1, rtol=1e-5)
        np.testing.assert_allclose(by_hand.lookup([3]), ROWS[[3]] - 1, rtol=1e-5)
        by_hand.learning_rate = 0.0
    assert by_hand.learning_rate == 0
    with pytest.raises(tfos.SpecError, match="schedule"):
        planned.learning_rate = 0.1


def test_scaled_losses_and_half_precision_leave_the_rows_exact(embedding):
    layer = embedding(keras.optimizers.SGD(0.5), dtype="mixed_float16")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    truth = np.zeros((2, 4), "f4")
    losses = [model.train_on_batch(np.array([1, 2]), truth) for _ in range(2)]
    assert layer.compute_dtype == "float16"
    expected = ROWS[[1, 2]] * (1 - 0.5 * 2 / 8) ** 2
    np.testing.assert_allclose(layer.lookup([1, 2]), expected, rtol=5e-3)
    assert losses[1] < losses[0]
    model.train_on_batch(np.array([1, 2]), np.full((2, 4), np.inf, "f4"))  # an overflow: no step
    np.testing.assert_allclose(layer.lookup([1, 2]), expected, rtol=5e-3)


@pytest.mark.parametrize("initializer", ["uniform", "normal"])
def test_initial_rows_do_not_depend_on_the_number_of_workers(initializer):
    def tables(workers, seed=4):
        def initial(ids):
            return initial_rows(initializer, ids, 8, seed, scale=0.05)

        return [Table(3001, 8, workers, rank, row_optimizer("sgd"), initial).values.numpy() for rank in range(workers)]

    (whole,), parts = tables(1), tables(3)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, whole[rank::3])
    deviation = 0.05 if initializer == "normal" else 0.05 / 3**0.5
    assert abs(whole.mean()) < 1e-3
    assert abs(whole.std() - deviation) < 1e-3
    assert abs(np.corrcoef(whole[:-1].ravel(), whole[1:].ravel())[0, 1]) < 0.02
    assert not (whole == tables(1, seed=5)[0]).any()


def zeros(ids):
    return np.zeros((len(ids), 3))


def _trained(workers, rows=101):
    """Return the tables of some workers, whose rows and slots tell their id."""
    tables = [Table(rows, 3, workers, rank, row_optimizer("adam"), zeros) for rank in range(workers)]
    for table in tables:
        table.block_rows = 7  # several parts
        table.steps.assign(12)
        for number, variable in enumerate(table.variables.values()):
            ids = table.rank + workers * np.arange(table.own)
            table.assign(variable, np.arange(table.own), np.repeat(ids[:, None] + 1000.0 * number, 3, axis=1))
    return tables


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (4, 2), (2, 4), (3, 1), (1, 4)])
def test_parts_of_a_checkpoint_are_dealt_to_any_number_of_workers(before, after):
    files = dict(part for table in _trained(before) for part in written_parts(table, "items"))
    for rank in range(after):
        table, taken = Table(101, 3, after, rank, row_optimizer("adam"), zeros), []
        read_parts(table, "items", list(files), lambda name: taken.append(name) or files[name])  # noqa: B023
        for number, variable in enumerate(table.variables.values()):
            expected = np.arange(rank, 101, after) + 1000.0 * number
            np.testing.assert_array_equal(variable.numpy(), np.repeat(expected[:, None], 3, axis=1))
        assert table.steps.numpy() == 12
        owners = {name.split("/")[1] for name in taken}
        assert len(owners) == before // np.gcd(before, after)


def test_parts_that_do_not_fit_are_refused():
    files = dict(part for table in _trained(2) for part in written_parts(table, "items"))
    for table, layer, named in (
        (Table(101, 3, 1, 0, row_optimizer("adam"), zeros), "users", "no rows of ShardedEmbedding 'users'"),
        (Table(100, 3, 1, 0, row_optimizer("adam"), zeros), "items", "rows is 101 there, and 100 here"),
        (Table(101, 3, 1, 0, row_optimizer("sgd"), zeros), "items", "optimizer is 'adam' there"),
    ):
        with pytest.raises(tfos.CheckpointError, match=named):
            read_parts(table, layer, list(files), files.__getitem__)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_that_is_missing_is_an_error_on_all_workers(rank):
    """Its rows would stay as they are initialised."""
    files = dict(written_parts(_trained(2)[1], "items"))
    table = Table(101, 3, 2, rank, row_optimizer("adam"), zeros)
    words = "only a part of the rows of ShardedEmbedding 'items': what 1 of the 2 workers .*first: worker 0"
    with pytest.raises(tfos.CheckpointError, match=words):
        read_parts(table, "items", list(files), files.__getitem__)


@pytest.mark.slow
def test_saved_models_have_plain_embeddings_and_predict_alike(embedding, tmp_path):
    ids = keras.Input((3,), dtype="int64")
    first, second = embedding(name="a"), tfos.keras.ShardedEmbedding(9, 4, combiner="mean", hash=True, name="b")
    parts = [first(ids), keras.layers.Embedding(50, 4)(ids), embedding(name="c")(ids)]
    flat = [keras.layers.Flatten()(part) for part in parts]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()([*flat, second(ids)])))
    model.compile("adam", "mse")
    batch = RNG.integers(0, 50, (5, 3))
    model.fit(batch, np.ones((5, 1)), verbose=0)
    expected = model.predict(batch, verbose=0)
    for layer in (first, second):
        layer._lookup.table.block_rows = 4  # several blocks
    export(model, f"{tmp_path}/model.keras", True, None)
    export(model, f"{tmp_path}/model", True, None)
    model.save(tmp_path / "own.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain.get_layer("a")) is keras.layers.Embedding
    assert type(plain.get_layer("b")) is tfos.keras.ShardedEmbedding
    served = tf.saved_model.load(str(tmp_path / "model"))
    own = keras.models.load_model(tmp_path / "own.keras")
    for found in (plain.predict(batch, verbose=0), served.serve(batch).numpy(), own.predict(batch, verbose=0)):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert "ShardedEmbedding" in io.TextIOWrapper(file.open("config.json")).read()  # the one that hashes
    np.testing.assert_allclose(first.to_embedding()(batch), first(batch), rtol=1e-6)
    with pytest.raises(tfos.SpecError, match=".keras, or as a SavedModel"):
        export(model, f"{tmp_path}/model.h5", True, None)


def test_a_configuration_makes_an_equal_layer(embedding):
    layer = embedding(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9), beta_1=0.8), hash=True)
    again = tfos.keras.ShardedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert inspect.signature(tfos.keras.ShardedEmbedding).parameters["optimizer"].default == "adagrad"


@pytest.mark.deep
def test_the_examples_of_its_docstrings():
    import doctest

    from tensorflowonspark.keras.embedding import layer

    found = doctest.testmod(layer, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


def test_its_interface_is_typed_and_documented():
    from tests.unit.test_interface import _faults, _methods

    kind = tfos.keras.ShardedEmbedding
    assert _faults(kind, False) == []
    assert {name: faults for name, method in _methods(kind) if (faults := _faults(method, False))} == {}
