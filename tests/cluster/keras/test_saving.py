"""Models saved, exported and loaded by workers in a strategy's scope."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model


def everything_in_scope(args, ctx):
    """Write a program as many do: all of it in the strategy's scope, with every way to save a model."""
    import os

    import keras

    keras.utils.set_random_seed(3)
    directory = args
    checkpoint = keras.callbacks.ModelCheckpoint
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
        callbacks = [
            keras.callbacks.BackupAndRestore(f"{directory}/backup", delete_checkpoint=False),
            checkpoint(f"{directory}/each.{{epoch}}.keras"),
            checkpoint(f"{directory}/batches.weights.h5", save_freq=2, save_weights_only=True),
            checkpoint(f"{directory}/best.keras", monitor="loss", save_best_only=True),
            checkpoint(f"{directory}/older.h5", save_freq=3),
            keras.callbacks.TensorBoard(f"{directory}/board", histogram_freq=1, write_graph=True),
            keras.callbacks.CSVLogger(f"{directory}/log.csv"),
            ctx.checkpoint(f"{directory}/ours").callback(),
        ]
        dataset = ctx.dataset(16, features="features", label="label")
        by_class = dict.fromkeys(range(7), 2.0)
        model.fit(dataset, epochs=2, callbacks=callbacks, validation_data=dataset, class_weight=by_class, verbose=0)
        resumed = model.fit(dataset, epochs=3, callbacks=callbacks[:1], verbose=0).epoch
        for name in ("exported.keras", "exported.h5", "exported"):
            ctx.export(model, f"{directory}/{name}")
        if ctx.is_chief:  # as a user may write it
            model.save(f"{directory}/own.keras")
            keras.saving.save_model(model, f"{directory}/own.h5")
            model.save_weights(f"{directory}/own.weights.h5")
            model.export(f"{directory}/own", verbose=False)
        # The workers still agree on what comes next, in loading too, where the chief has made its variables already.
        again = keras.saving.load_model(f"{directory}/each.2.keras")
        again.load_weights(f"{directory}/batches.weights.h5")
        again.fit(dataset, verbose=0)
    return sorted(os.listdir(directory)), resumed, [np.asarray(each.numpy()) for each in again.weights]


@pytest.mark.masters("local")
def test_a_program_may_do_everything_in_the_scope(spark, tmp_path):
    results = tfos.run(spark, everything_in_scope, str(tmp_path), num_workers=2, data=small_frame(spark, [40, 33]))
    (files, resumed, one), (_, also_resumed, two) = results.values()
    assert resumed == also_resumed == [2]
    kept = {"backup", "batches.weights.h5", "best.keras", "board", "each.1.keras", "each.2.keras", "older.h5", "ours"}
    exported = {"exported", "exported.h5", "exported.keras", "own", "own.h5", "own.keras", "own.weights.h5"}
    manifests = {"exported.h5.manifest.json", "exported.keras.manifest.json"}
    assert set(files) == {"log.csv", *kept, *exported, *manifests}
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def save_by_all(directory, ctx):
    """Save on all workers to the same paths, to a path for each, and on the second worker alone; read back at once."""
    import keras

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.index)
        model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(3000), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    expected = model.get_weights()[0]
    table = tf.Module()
    table.rows = tf.Variable(expected)
    for _ in range(2):
        model.save(f"{directory}/all.keras")
        model.save(f"{directory}/all.h5")
        model.save_weights(f"{directory}/all.weights.h5")
        model.export(f"{directory}/all", verbose=False)
        tf.saved_model.save(table, f"{directory}/table")
        loaded = [keras.saving.load_model(f"{directory}/all.{kind}", compile=False) for kind in ("keras", "h5")]
        read = [each.get_weights()[0] for each in loaded]
        read += [tf.saved_model.load(f"{directory}/all").variables[0].numpy()]
        read += [tf.saved_model.load(f"{directory}/table").rows.numpy()]
        model.load_weights(f"{directory}/all.weights.h5")
        for each in [*read, model.get_weights()[0]]:
            np.testing.assert_array_equal(each, expected)
    model.save(f"{directory}/worker-{ctx.index}.keras")
    if ctx.index == 1:
        model.save_weights(f"{directory}/second.weights.h5")


@pytest.mark.masters("local")
def test_all_workers_may_save_to_one_path(spark, tmp_path):
    tfos.run(spark, save_by_all, str(tmp_path), num_workers=2)
    own = {"worker-0.keras", "worker-1.keras", "second.weights.h5"}
    assert {each.name for each in tmp_path.iterdir()} == {"all.keras", "all.h5", "all.weights.h5", "all", "table", *own}
