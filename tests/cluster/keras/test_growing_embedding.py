"""ShardedEmbedding(rows="dynamic") on several workers: it learns what a plain table learns, and resumes on others."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import tensorflowonspark as tfos

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
_BATCH, _BATCHES = 48, 3
_FAR = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 50)  # the ids of the rows of the plain table


def interactions(strings=False):
    """Return positions of ids, shape (rows, 3), these ids, and targets."""
    rng = np.random.default_rng(0)
    positions = rng.integers(0, 50, (_BATCH * _BATCHES, 3))
    ids = _FAR[positions]
    return positions, ids.astype(str) if strings else ids, rng.normal(size=(len(ids), 1)).astype("f4")


def strategy_of(ctx):
    """Return the strategy, one worker's is that of a single process."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy() if ctx.num_workers > 1 else tf.distribute.get_strategy()


def compiled(layer, kind, dense):
    """Return a compiled model that looks each id up twice."""
    import keras

    ids = keras.Input((3,), dtype=kind)
    kernel = keras.initializers.Constant(np.linspace(-1, 1, 12)[:, None].tolist())
    both = layer(ids) + layer(ids[:, ::-1])
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=kernel)(keras.layers.Flatten()(both)))
    model.compile(dense, "mse")
    return model


def tensors(ids, targets):
    """Return a dataset in batches; Keras takes strings in no array."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((tf.constant(ids), targets)).batch(_BATCH)


def learn(args, ctx):
    """Fit with a growing table, and on one worker with a plain one of the same rows; return losses and rows."""
    import keras

    _, ids, y = interactions(args["strings"])
    kind, every = ("string", _FAR.astype(str)) if args["strings"] else ("int64", _FAR)
    found = {}
    for optimizer in args["optimizers"]:
        with strategy_of(ctx).scope():
            layer = tfos.keras.ShardedEmbedding("dynamic", 4, optimizer, seed=3, name=optimizer)
            layer.build()
            before = layer.lookup(every)
            model = compiled(layer, kind, "sgd")
        history = model.fit(tensors(ids, y), epochs=4, verbose=0, validation_data=tensors(ids[:_BATCH], y[:_BATCH]))
        found[optimizer] = [history.history["loss"], history.history["val_loss"], layer.lookup(every)]
        found[f"{optimizer} rows"] = layer.own_rows
        if ctx.num_workers == 1:
            plain = keras.layers.Embedding(50, 4)
            plain.build()
            plain.set_weights([before])
            model = compiled(plain, "int64", args["optimizers"][optimizer])
            losses = model.fit(tensors(interactions()[0], y), epochs=4, verbose=0).history["loss"]
            np.testing.assert_allclose(found[optimizer][0], losses, rtol=1e-5)
            np.testing.assert_allclose(found[optimizer][2], plain.get_weights()[0], rtol=1e-4, atol=1e-5)
    return found


def compare(found, alone):
    """Check that workers learnt what one learnt, and that each has a part of the rows."""
    for optimizer, value in alone.items():
        if isinstance(value, int):
            assert value == 50
            assert sum(each[optimizer] for each in found) == 50
            assert min(each[optimizer] for each in found) > 5
        else:
            for each in found:
                for ours, theirs in zip(each[optimizer], value, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_two_workers_learn_what_a_plain_table_learns(spark):
    args = {"optimizers": {"sgd": "sgd"}, "strings": False}
    compare(list(tfos.run(spark, learn, args, num_workers=2).values()), learn(args, SimpleNamespace(num_workers=1)))


@pytest.mark.slow
@pytest.mark.parametrize("strings", [False, True])
def test_three_workers_learn_what_a_plain_table_learns(spark, strings):
    """Adam is lazy, and a plain one is not."""
    args = {"optimizers": {"sgd": "sgd", "adagrad": "sgd"}, "strings": strings}
    alone = learn({**args, "optimizers": {"sgd": "sgd"}}, SimpleNamespace(num_workers=1))
    found = list(tfos.run(spark, learn, args, num_workers=3).values())
    compare([{name: each[name] for name in alone} for each in found], alone)
    two = tfos.run(spark, learn, args, num_workers=2)["worker:0"]
    np.testing.assert_allclose(found[0]["adagrad"][0], two["adagrad"][0], rtol=1e-5)


def resume(args, ctx):
    """Fit with checkpoints; worker 1 is killed in an epoch once; return epochs, rows, and the number of rows."""
    import keras
    import tensorflow as tf

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if args["kill"] and ctx.index == 1 and self.model.optimizer.iterations.numpy() == 2 * _BATCHES + 2:
                os.kill(os.getpid(), signal.SIGKILL)

    _, ids, y = interactions(args["strings"])
    kind, every = ("string", _FAR.astype(str)) if args["strings"] else ("int64", _FAR)
    with strategy_of(ctx).scope():
        layer = tfos.keras.ShardedEmbedding("dynamic", 4, "adam", seed=3, name="items", **args["options"])
        model = compiled(layer, kind, "adagrad")
    checkpoint = ctx.checkpoint(args["directory"])
    data, callbacks = tensors(ids, y), [Kill(), checkpoint.callback()]
    history = model.fit(data, epochs=args["epochs"], verbose=0, callbacks=callbacks)
    found = [history.epoch, layer.lookup(every), layer.own_rows]
    if args["export"]:
        ctx.export(model, f"{args['export']}/model.keras")
        ctx.export(model, f"{args['export']}/saved")
        own = tf.constant(args["probe"][ctx.index :])
        found.append(model.predict(tf.data.Dataset.from_tensor_slices(own).batch(4), verbose=0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strings", [False, True])
def test_a_training_whose_worker_was_killed_resumes_on_another_number_of_workers(spark, tmp_path, strings):
    """With candidates for rows; and its export predicts what its workers predict, of unknown ids too."""
    import keras
    import tensorflow as tf

    probe = np.concatenate([interactions()[1][:8], np.arange(6).reshape(2, 3)])
    probe = probe.astype(str) if strings else probe
    args = {"epochs": 4, "kill": False, "export": "", "options": {"admit": 4}, "probe": probe, "strings": strings}
    whole = tfos.run(spark, resume, {**args, "directory": str(tmp_path / "whole")})["worker:0"]
    args["directory"] = str(tmp_path / "broken")
    with pytest.raises(tfos.NodeError, match="worker:1 .* ended by SIGKILL"):
        tfos.run(spark, resume, {**args, "kill": True}, num_workers=2)
    found = tfos.run(spark, resume, {**args, "epochs": 3}, num_workers=3)
    assert found["worker:0"][0] == [0, 1, 2]
    found = list(tfos.run(spark, resume, {**args, "export": str(tmp_path)}, num_workers=2).values())
    assert sum(each[2] for each in found) == whole[2] > 40
    for epochs, rows, _, _ in found:
        assert epochs == [0, 1, 2, 3]
        np.testing.assert_allclose(rows, whole[1], rtol=1e-4, atol=1e-5)
    model = keras.models.load_model(tmp_path / "model.keras")
    expected = model.predict(tf.constant(probe), verbose=0)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(served.serve(tf.constant(probe)), expected, rtol=1e-5)
    assert model.get_layer("items").own_rows == whole[2]
    for index, (*_, predicted) in enumerate(found):
        np.testing.assert_allclose(predicted, expected[index:], rtol=1e-5, atol=1e-6)


def overflow(args, ctx):
    """Fit with more ids than rows; return the numbers of rows after each epoch."""
    import keras

    rng = np.random.default_rng(ctx.index)
    with strategy_of(ctx).scope():
        layer = tfos.keras.ShardedEmbedding("dynamic", 4, max_rows=args["max_rows"], evict=args["evict"], name="items")
        model = compiled(layer, "int64", "sgd")
    sizes = []
    own_rows = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: sizes.append(layer.own_rows))
    ids = rng.zipf(1.1, (16 * 20, 3)) * np.int64(2**20 + 7)
    checkpoint = ctx.checkpoint(args["directory"])
    data = tensors(ids, np.ones((len(ids), 1), "f4")).unbatch().batch(8)
    losses = model.fit(data, epochs=args["epochs"], verbose=0, callbacks=[own_rows, checkpoint.callback()])
    assert np.isfinite(losses.history["loss"]).all()
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("evict", ["lru", "frequency"])
def test_rows_are_bounded_on_all_workers_also_when_there_are_fewer(spark, tmp_path, evict):
    args = {"max_rows": 100, "evict": evict, "directory": str(tmp_path), "epochs": 2}
    found = tfos.run(spark, overflow, args, num_workers=2)
    assert {max(each) for each in found.values()} == {50}
    for workers, epochs in ((3, 3), (1, 4)):
        found = tfos.run(spark, overflow, {**args, "epochs": epochs}, num_workers=workers)
        for index, each in enumerate(found.values()):
            assert max(each) == len(range(index, 100, workers))


@pytest.mark.slow
def test_ids_of_a_step_that_max_rows_cannot_hold_are_an_error(spark, tmp_path):
    args = {"max_rows": 30, "evict": None, "directory": str(tmp_path), "epochs": 1}
    with pytest.raises(tfos.NodeError, match="FeedError: .*'items': .* ids of a step have no room"):
        tfos.run(spark, overflow, args, num_workers=2)


def feed(args, ctx):
    """Fit on rows of a feed with lists of strings; return the number of rows."""
    import keras

    with strategy_of(ctx).scope():
        layer = tfos.keras.ShardedEmbedding("dynamic", 4, combiner="mean", name="items")
        ids = keras.Input((None,), dtype="string", ragged=True)
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.compile("sgd", "mse")
    dataset = ctx.dataset(10, features="ids", label="label", shapes={"ids": (None,)}, shuffle=False)
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    return layer.own_rows


@pytest.mark.slow
def test_lists_of_strings_of_a_feed_get_rows_and_nulls_are_refused(spark):
    rows = [([f"word {(3 * n + k) % 20}" for k in range(n % 4)], float(n % 5)) for n in range(13)]
    frame = spark.createDataFrame(rows, "ids array<string>, label float")
    found = tfos.run(spark, feed, {}, data=frame.repartition(2), num_workers=2)
    assert sum(found.values()) == len({word for words, _ in rows for word in words})
    bad = spark.createDataFrame([*rows, (["word 1", None], 1.0)], "ids array<string>, label float")
    with pytest.raises(tfos.ClusterError, match="null"):
        tfos.run(spark, feed, {}, data=bad.repartition(2), num_workers=2)
