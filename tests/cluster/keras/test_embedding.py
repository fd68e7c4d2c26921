"""ShardedEmbedding on several workers: it learns what one process learns, resumes on others, and never hangs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.paths import ROOT

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
ROWS = np.random.default_rng(5).normal(size=(50, 4)).astype("f4")
_BATCH, _BATCHES = 48, 3


def interactions():
    """Return ids, shape (rows, 3), and targets; more rows than whole batches."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 50, (_BATCH * _BATCHES, 3)), rng.normal(size=(_BATCH * _BATCHES, 1)).astype("f4")


def make_model(optimizer, name="items", dense="sgd", **options):
    """Return a compiled model that looks each id up twice, in the scope of a strategy."""
    import keras

    import tensorflowonspark as tfos

    layer = tfos.keras.ShardedEmbedding(50, 4, optimizer, initializer=lambda ids: ROWS[ids], name=name)
    ids = keras.Input((3,), dtype="int64")
    both = layer(ids) + layer(ids[:, ::-1])
    kernel = keras.initializers.Constant(np.linspace(-1, 1, 12)[:, None].tolist())
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=kernel)(keras.layers.Flatten()(both)))
    model.compile(dense, "mse", **options)
    return model, layer


def learn(args, ctx):
    """Fit with each optimizer; return losses, those of validation, and rows."""
    import tensorflow as tf

    several = ctx.num_workers > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    x, y = args["data"]
    found = {}

    @tf.function
    def twice(layer):
        """Call one function twice, whose calls must not get each other's rows, and look up no ids."""
        looked_up = tf.function(lambda ids: layer(ids), reduce_retracing=True)
        return [looked_up(tf.constant(ids, tf.int64)) for ids in ([3], [[4, 5]], [6], [])]

    for optimizer, steps in args["optimizers"].items():
        with strategy.scope():
            model, layer = make_model(optimizer, name=optimizer, steps_per_execution=steps)
        settings = {"batch_size": _BATCH, "verbose": 0, "shuffle": False}
        history = model.fit(x, y, epochs=5, validation_data=(x[:_BATCH], y[:_BATCH]), **settings).history
        found[optimizer] = [history["loss"], history["val_loss"], layer.lookup(range(ctx.index, 50)), layer.lookup([3])]
        for rows, ids in zip(strategy.run(twice, (layer,)), ([3], [[4, 5]], [6], []), strict=True):
            np.testing.assert_array_equal(rows, layer.lookup(np.ravel(ids).astype(int)).reshape(rows.shape))
    return found


def test_two_workers_learn_what_one_learns(spark):
    args = {"data": interactions(), "optimizers": {"sgd": 1}}
    alone = learn(args, SimpleNamespace(num_workers=1, index=0))
    for index, found in enumerate(tfos.run(spark, learn, args, num_workers=2).values()):
        for optimizer, (losses, validation, rows, row) in alone.items():
            np.testing.assert_allclose(found[optimizer][0], losses, rtol=1e-6)
            np.testing.assert_allclose(found[optimizer][1], validation, rtol=1e-6)
            np.testing.assert_allclose(found[optimizer][2], rows[index:], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found[optimizer][3], row, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_three_workers_learn_what_one_learns(spark):
    """Each optimizer, and several steps per execution."""
    args = {"data": interactions(), "optimizers": {"sgd": 1, "adagrad": 2, "adam": 3}}
    alone = learn(args, SimpleNamespace(num_workers=1, index=0))
    for found in tfos.run(spark, learn, args, num_workers=3).values():
        for optimizer, (losses, validation, _, row) in alone.items():
            np.testing.assert_allclose(found[optimizer][0], losses, rtol=1e-5)
            np.testing.assert_allclose(found[optimizer][1], validation, rtol=1e-5)
            np.testing.assert_allclose(found[optimizer][3], row, rtol=1e-4, atol=1e-5)


def resume(args, ctx):
    """Fit with checkpoints; worker 1 is killed in an epoch once; return losses, and what else one worker may call."""
    import keras
    import tensorflow as tf

    import tensorflowonspark as tfos

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if args["kill"] and ctx.index == 1 and self.model.optimizer.iterations.numpy() == 2 * _BATCHES + 2:
                os.kill(os.getpid(), signal.SIGKILL)

    several = ctx.num_workers > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    with strategy.scope():
        model, layer = make_model("adagrad", dense="adagrad")
    x, y = args["data"]
    checkpoint = ctx.checkpoint(args["directory"])
    callbacks = [Kill(), checkpoint.callback()]
    history = model.fit(x, y, batch_size=_BATCH, epochs=args["epochs"], verbose=0, shuffle=False, callbacks=callbacks)
    if not args["export"]:
        return history.epoch, layer.lookup(range(50))
    ctx.export(model, f"{args['export']}/model.keras")
    ctx.export(model, f"{args['export']}/saved")
    refused = []
    for call in (lambda: ctx.serve(model), lambda: model.save(f"{ctx.scratch}/own.keras")):
        try:
            call()
        except tfos.SpecError as error:
            refused.append(str(error))
    with strategy.scope():
        model.compile(steps_per_execution=2)
    own = x[: 9 if ctx.index else 4]  # three batches and two, in executions of two
    predicted = model.predict(own, batch_size=4 if ctx.index else 2, verbose=0)
    return history.epoch, layer.lookup(range(50)), refused, layer.to_embedding()(x[:4]).numpy(), predicted


@pytest.mark.slow
def test_a_training_whose_worker_was_killed_resumes_on_another_number_of_workers(spark, tmp_path):
    import keras
    import tensorflow as tf

    args = {"data": interactions(), "epochs": 4, "kill": False, "export": ""}
    whole = tfos.run(spark, resume, {**args, "directory": str(tmp_path / "whole")})["worker:0"]
    args["directory"] = str(tmp_path / "broken")
    with pytest.raises(tfos.NodeError, match="worker:1 .* ended by SIGKILL"):
        tfos.run(spark, resume, {**args, "kill": True}, num_workers=2)
    epochs, rows = tfos.run(spark, resume, {**args, "epochs": 3}, num_workers=3)["worker:0"]
    assert epochs == [0, 1, 2]
    found = tfos.run(spark, resume, {**args, "export": str(tmp_path)}, num_workers=2)
    for epochs, rows, refused, embedded, _ in found.values():
        assert epochs == [0, 1, 2, 3]
        np.testing.assert_allclose(rows, whole[1], rtol=1e-4, atol=1e-5)
        assert "model with layer.to_embedding()" in refused[0]
        assert "ctx.export(model, path) on all workers" in refused[1]
        np.testing.assert_array_equal(embedded, rows[args["data"][0][:4]])
    batch = args["data"][0][:9]
    model = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(model.get_layer("items").get_weights()[0], whole[1], rtol=1e-4, atol=1e-5)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    expected = model.predict(batch, verbose=0)
    np.testing.assert_allclose(served.serve(batch), expected, rtol=1e-5)
    for *_, predicted in found.values():
        np.testing.assert_allclose(predicted, expected[: len(predicted)], rtol=1e-5)
    written = list(Path(args["directory"]).glob("step-*/parts/items/*-of-00003/rows-*.npy"))
    assert len(written) in (3, 6)  # the checkpoint that was being written at the kill may have been the third


def feed(args, ctx):
    """Fit on rows of a feed with lists of ids; return losses and rows."""
    import keras
    import tensorflow as tf

    import tensorflowonspark as tfos

    several = ctx.num_workers > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    with strategy.scope():
        layer = tfos.keras.ShardedEmbedding(
            50, 4, "adam", "mean", initializer=lambda ids: ROWS[ids], dtype=args.get("dtype")
        )
        ids = keras.Input((None,), dtype="int64", ragged=True)
        kernel = keras.initializers.Constant([[1.0], [-1.0], [0.5], [0.1]])
        outputs = keras.layers.Dense(1, kernel_initializer=kernel, dtype="float32")(layer(ids))
        model = keras.Model(ids, outputs)
        model.compile("sgd", "mse")
    dataset = ctx.dataset(10, features="ids", label="label", shapes={"ids": (None,)}, shuffle=False)
    losses = model.fit(dataset, epochs=3, verbose=0).history["loss"]
    return losses, layer.lookup(range(50))


@pytest.mark.slow
def test_lists_of_a_feed_whose_batches_are_padded_give_what_one_process_learns(spark):
    """13 rows: the last batch of one worker has padding rows, whose ids are those of real rows."""
    rows = [([(3 * n + k) % 50 for k in range(n % 4)], float(n % 5)) for n in range(13)]
    frame = spark.createDataFrame(rows, "ids array<long>, label float")
    alone = tfos.run(spark, feed, {}, data=frame.coalesce(1))["worker:0"]
    for losses, found in tfos.run(spark, feed, {}, data=frame.repartition(2), num_workers=2).values():
        assert np.isfinite(losses).all()
        touched = (found != ROWS).any(axis=1)
        np.testing.assert_array_equal(touched, (alone[1] != ROWS).any(axis=1))
    half = tfos.run(spark, feed, {"dtype": "mixed_bfloat16"}, data=frame.repartition(2), num_workers=2)["worker:0"]
    np.testing.assert_allclose(half[0], losses, rtol=0.05)


def wrong_id(args, ctx):
    """Look up an id out of range on the second worker."""
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model, _ = make_model("sgd")
    x, y = interactions()
    if ctx.index == 1:
        x[:] = 50
    model.fit(x, y, batch_size=_BATCH, verbose=0)


@pytest.mark.slow
def test_an_id_out_of_range_on_one_worker_is_an_error_that_names_it(spark):
    with pytest.raises(tfos.NodeError, match="worker:1 .* FeedError: .*'items': id 50 in row 0 of the batch"):
        tfos.run(spark, wrong_id, num_workers=2)


@pytest.mark.slow
def test_the_recommender_of_the_examples_comes_near_to_the_best_possible(tmp_path):
    environment = {"PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, ROOT / "examples/wide_deep/wide_deep.py"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    popular, reached, best = (float(found) for found in re.findall(r"AUC.*: (0\.\d+)$", done.stdout, re.MULTILINE))
    assert popular < best - 0.06 < reached < best
