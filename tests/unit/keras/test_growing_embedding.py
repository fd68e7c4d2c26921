"""ShardedEmbedding(rows="dynamic") in one process: any ids, admission, eviction, its files, and other workers' rows."""

import io
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflowonspark as tfos
from tensorflowonspark.exports.writing import export
from tensorflowonspark.keras.embedding.growing_table import GrowingTable, Growth
from tensorflowonspark.keras.embedding.row_optimizers import row_optimizer
from tensorflowonspark.keras.embedding.table import initial_rows
from tensorflowonspark.keras.embedding.table_parts import read_parts, written_parts

RNG = np.random.default_rng(5)
FAR = np.array([0, -1, 1, 2**63 - 1, -(2**63), 7 * 10**17], np.int64)


def growing(optimizer="sgd", dim=4, **options):
    return tfos.keras.ShardedEmbedding("dynamic", dim, optimizer, seed=3, **{"name": "items", **options})


def step(layer, ids, weights=None):
    """Take one step, whose loss is the weighted sum of the rows."""
    ids = tf.constant(ids)
    weights = tf.ones([*ids.shape, layer.dim]) if weights is None else weights

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) * weights)
        return tape.gradient(loss, layer.trainable_weights)

    return train()


def names(table):
    return set(table.map.columns["ids"][table.map.live(), 0].tolist())


@pytest.mark.deep
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_it_learns_what_a_plain_table_learns(optimizer):
    """The same rows, whichever order they come in; a plain table of Keras too, where it is not lazy."""
    kinds = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
    layer = growing(kinds[optimizer](0.3))
    fixed = tfos.keras.ShardedEmbedding(50, 4, kinds[optimizer](0.3), seed=3)
    fixed.build()
    plain, dense = fixed.to_embedding(), kinds[optimizer](0.3)
    for _ in range(4):
        every = np.arange(50) if optimizer == "adam" else []  # a dense Adam moves all rows
        ids = np.concatenate([every, RNG.integers(0, 50, 60)]).astype(np.int64)
        RNG.shuffle(ids)
        weights = RNG.normal(size=(len(ids), 4)).astype("f4")
        step(layer, ids, weights)
        step(fixed, ids, weights)
        np.testing.assert_allclose(layer.lookup(range(50)), fixed.lookup(range(50)), rtol=2e-6, atol=1e-7)
        gradient = np.zeros((50, 4), "f4")
        np.add.at(gradient, ids, weights)
        dense.apply([tf.constant(gradient)], [plain.embeddings])
    np.testing.assert_allclose(layer.lookup(range(50)), plain.get_weights()[0], rtol=1e-4, atol=1e-5)


def test_any_int64_and_any_string_is_an_id():
    layer = growing(keras.optimizers.SGD(1.0))
    before = layer.lookup(FAR) if layer.build() is None else None
    assert len(np.unique(before, axis=0)) == len(FAR)
    step(layer, FAR[:4])
    np.testing.assert_allclose(layer.lookup(FAR)[:4], before[:4] - 1, rtol=1e-5)
    np.testing.assert_array_equal(layer.lookup(FAR)[4:], before[4:])
    assert layer.own_rows == 4
    words = growing(keras.optimizers.SGD(1.0), combiner="sum")
    tea = words(tf.ragged.constant([["tea", "tea"], []])).numpy()
    assert (tea[1] == 0).all()
    step(words, [["tea", ""]], tf.ones([1, 4]))
    np.testing.assert_allclose(words.lookup(["tea"]), tea[:1] / 2 - 1, rtol=1e-5)
    assert words.lookup([]).shape == (0, 4)
    with pytest.raises(tfos.SpecError, match="are int64 now, and were str before"):
        words.lookup([1])


def test_reading_and_rows_without_a_gradient_make_no_rows():
    layer = growing()
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.predict(np.array([[1, 2]]), verbose=0)
    model.evaluate(np.array([[1, 2]]), np.ones((1, 1)), verbose=0)
    step(layer, [4, 5], tf.constant([[0.0] * 4, [1.0] * 4]))
    assert names(layer._lookup.table) == {5}


@pytest.mark.deep
def test_an_id_gets_a_row_in_the_step_of_its_admission():
    layer = growing(keras.optimizers.SGD(1.0), admit=3, initializer="zeros", max_rows=4, evict="lru")
    for taken in range(1, 5):
        step(layer, [7, 7, 7])  # one step, however often it is there
        np.testing.assert_array_equal(layer.lookup([7]), [[-3.0 * max(0, taken - 2)] * 4])
        assert layer.own_rows == (taken >= 3)
    step(layer, [1])
    for other in range(100, 110):  # more candidates than rows: 1 is forgotten, and 7 has its row
        step(layer, [other])
    step(layer, [1])
    step(layer, [1])
    assert names(layer._lookup.table) == {7}
    step(layer, [1])
    assert names(layer._lookup.table) == {1, 7}


@pytest.mark.deep
@pytest.mark.parametrize(("evict", "left"), [("lru", {1, 3, 4}), ("frequency", {1, 2, 4})])
def test_rows_make_room_with_their_slots(evict, left):
    layer = growing("adagrad", max_rows=3, evict=evict)
    for ids in ([1, 2], [1, 2], [1, 3], [4, 1]):
        step(layer, ids)
    table = layer._lookup.table
    assert names(table) == left
    step(layer, [9])
    new = table.map.columns["accumulator"][table.map.find(np.array([[9, 0]]))]
    np.testing.assert_allclose(new, [[1.1] * 4], rtol=1e-6)  # its own step alone
    gone = next(iter({1, 2, 3, 4} - names(table)))
    fresh = initial_rows("uniform", np.array([gone]), 4, 3, 0.05)
    np.testing.assert_array_equal(layer.lookup([gone]), fresh)


@pytest.mark.deep
@pytest.mark.parametrize("evict", ["lru", "frequency"])
def test_memory_is_bounded_whatever_comes(evict):
    layer = growing("adam", max_rows=40, evict=evict, admit=2)
    layer.build()
    layer._lookup.table.block_rows = 7
    layer._lookup.table.clear()
    for _ in range(25):
        ids = RNG.zipf(1.2, 15).astype(np.int64)
        step(layer, ids)
        table = layer._lookup.table
        for slots in (table.map, table._candidates):
            assert {len(column) for column in slots.columns.values()} <= set(range(0, 40, 7)) | {40}
            live = slots.live()
            np.testing.assert_array_equal(slots.find(slots.columns["ids"][live]), live)
            assert slots._slots.size() == len(live)
            assert sorted([*live, *slots._empty]) == list(range(len(slots.columns["used"])))


@pytest.mark.parametrize(("evict", "named"), [(None, "set evict=.lru."), ("lru", "take smaller batches")])
def test_a_batch_that_max_rows_cannot_hold_is_an_error(evict, named):
    layer = growing(max_rows=3, evict=evict)
    with pytest.raises(
        tf.errors.UnknownError,
        match=f"FeedError: .*'items': 2 ids of a step have no room .* the 3 rows of max_rows .*{named}",
    ):
        step(layer, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rows": "grow"}, "rows='grow'"),
        ({"max_rows": 0}, "max_rows=0"),
        ({"max_rows": 5, "evict": "random"}, "evict='random'"),
        ({"evict": "lru"}, "evict='lru': expected one of ('lru', 'frequency') with max_rows"),
        ({"admit": 0}, "admit=0"),
        ({"rows": 5, "max_rows": 9}, 'need rows="dynamic", and rows=5'),
        ({"rows": 5, "admit": 2}, 'need rows="dynamic", and rows=5'),
        ({"hash": True}, "neither hash=True"),
        ({"initializer": np.zeros_like}, "a function as initializer"),
    ],
)
def test_arguments_that_are_refused(arguments, named):
    with pytest.raises(tfos.SpecError, match=re.escape(named)):
        tfos.keras.ShardedEmbedding(**{"rows": "dynamic", "dim": 2, **arguments})


@pytest.mark.parametrize(
    "ids", [[2**63], [-(2**63) - 1], [1, None], ["a", None], [1.0], np.array([1, 2], np.uint64), [True]]
)
def test_ids_that_are_refused(ids):
    layer = growing()
    layer.build()
    with pytest.raises(tfos.SpecError, match="'items': ids must be int64, or strings, without nulls"):
        layer.lookup(ids)


def test_two_strings_of_one_hash_are_an_error():
    """Such strings are not known: two tables' ids stand in for their hashes."""
    table = GrowingTable(Growth(None, None, 1), "a", 2, 1, 0, row_optimizer("sgd"), lambda ids: np.zeros((len(ids), 2)))
    with pytest.raises(tfos.FeedError, match="two different strings have the 64-bit hash 7"):
        table.update(tf.constant([[7, 1], [7, 2]], tf.int64), tf.ones([2, 2]))
    table.update(tf.constant([[7, 1], [7, 1]], tf.int64), tf.ones([2, 2]))
    with pytest.raises(tfos.FeedError, match="two different strings have the 64-bit hash 7"):
        table.read(tf.constant([[7, 2]], tf.int64))


@pytest.mark.parametrize("initializer", ["uniform", "normal", "zeros"])
def test_a_model_for_serving_makes_the_initial_rows_of_the_layer(initializer):
    ids = np.concatenate([FAR, RNG.integers(-(2**63), 2**63 - 1, 1000)])
    expected = initial_rows(initializer, ids, 8, 4, 0.05)
    np.testing.assert_allclose(initial_rows(initializer, tf.constant(ids), 8, 4, 0.05), expected, atol=1e-8)


def _table(workers, rank, admit=2):
    def initial(ids):
        return np.zeros((len(ids), 3))

    table = GrowingTable(Growth(None, None, admit), "items", 3, workers, rank, row_optimizer("adam"), initial)
    table.block_rows = 7
    table.clear()
    return table


@pytest.mark.deep
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (4, 2), (3, 1), (1, 4)])
def test_parts_of_a_checkpoint_are_dealt_to_any_number_of_workers(before, after):
    """With the candidates, and what decides on eviction."""
    ids = RNG.integers(-(2**63), 2**63 - 1, 100)
    tables = [_table(before, rank) for rank in range(before)]
    for ids_of_step in (ids, ids[:70], ids[:70]):
        for table in tables:
            own = ids_of_step[table.owned(ids_of_step)]
            table.update(tf.constant(own), tf.cast(own[:, None] % 11 + 1, tf.float32) * tf.ones([1, 3]))
    files = dict(part for table in tables for part in written_parts(table, "items"))
    found = []
    for rank in range(after):
        table, taken = _table(after, rank), []
        table.update(tf.constant([5] * 2, tf.int64), tf.ones([2, 3]))  # what a restore replaces
        read_parts(table, "items", list(files), lambda name: taken.append(name) or files[name])  # noqa: B023
        assert table.steps.numpy() == 3
        assert table._kind is np.int64
        assert len({name.split("/")[1] for name in taken}) == before // np.gcd(before, after)
        found.append(table)
    for name in ("map", "_candidates"):
        old, new = ([getattr(table, name) for table in group] for group in (tables, found))
        for column in old[0].columns:
            rows = []
            for group in (old, new):
                of = [(each.columns["ids"][each.live(), 0], each.columns[column][each.live()]) for each in group]
                keys, values = (np.concatenate(each) for each in zip(*of, strict=True))
                rows.append(values[np.argsort(keys)])
            np.testing.assert_array_equal(*rows)
        assert sum(len(each.live()) for each in new) == (70 if name == "map" else 30)


def test_a_checkpoint_of_strings_does_not_fit_a_table_of_integers():
    table = _table(1, 0, admit=1)
    table.update(table.keys(tf.constant(["a"])), tf.ones([1, 3]))
    files = dict(written_parts(table, "items"))
    other = _table(1, 0)
    other.take_kind(np.int64)
    with pytest.raises(tfos.SpecError, match="the ids are str now, and were int64 before"):
        read_parts(other, "items", list(files), files.__getitem__)


def test_an_array_of_another_shape_is_a_damaged_checkpoint():
    table = _table(1, 0, admit=1)
    table.update(tf.constant([1, 2, 3], tf.int64), tf.ones([3, 3]))
    files = dict(written_parts(table, "items"))
    file = io.BytesIO()
    np.save(file, np.zeros((3, 1), "f4"))
    files["items/00000-of-00001/rows-000000.npy"] = file.getvalue()
    with pytest.raises(tfos.CheckpointError, match="is damaged"):
        read_parts(_table(1, 0), "items", list(files), files.__getitem__)


@pytest.mark.slow
@pytest.mark.parametrize("strings", [False, True])
def test_exports_have_the_map_and_predict_alike(strings, tmp_path):
    ids = keras.Input((3,), dtype="string" if strings else "int64")
    parts = [growing(), growing(name="mean", combiner="mean", initializer="normal", max_rows=30, evict="frequency")]
    outputs = [keras.layers.Flatten()(part(ids)) for part in parts]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(outputs)))
    model.compile("adam", "mse")
    with pytest.raises(tfos.SpecError, match="'items' has no rows yet"):
        export(model, f"{tmp_path}/empty.keras", True, None)
    every = RNG.integers(-(10**18), 10**18, (9, 3)) if not strings else RNG.integers(0, 99, (9, 3)).astype("S")
    if strings:
        every = tf.constant(every)
    model.fit(every[:6], np.ones((6, 1)), verbose=0)
    expected = model.predict(every, verbose=0)  # of ids without rows, too
    for layer in parts:
        layer._lookup.table.block_rows = 4  # several blocks
    export(model, f"{tmp_path}/model.keras", True, None)
    export(model, f"{tmp_path}/model", True, None)
    model.save(tmp_path / "own.keras")
    served = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(served.serve(every).numpy(), expected, rtol=1e-5)
    for name in ("model", "own"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(loaded.predict(every, verbose=0), expected, rtol=1e-5)
        assert loaded.get_layer("mean").own_rows == parts[1].own_rows
    loaded.compile("sgd", "mse")
    loaded.fit(every, np.ones((9, 1)), verbose=0)
    with pytest.raises(tfos.SpecError, match="no map from ids to rows"):
        parts[0].to_embedding()
