"""All that a user does with fit, on two workers fed from a DataFrame: callbacks, validation, predictions, restarts."""

from pathlib import Path

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.networks import misses
from tests.support.programs import small_frame


def everything(args, ctx):
    """Fit with every kind of callback, validate, evaluate, predict; in one directory shared by all workers."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(5)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile(
            keras.optimizers.Adam(args.get("rate", 1e-3)),
            "mse",
            metrics=[misses("misses")],
            weighted_metrics=["mae"],
            steps_per_execution=args.get("steps", 1),
        )
    x = np.sin(np.arange(37 * 3, dtype="f4")).reshape(37, 3)
    y = x.sum(axis=1)
    shared = args["directory"]
    callbacks = [
        keras.callbacks.BackupAndRestore(f"{shared}/backup", delete_checkpoint=False),
        keras.callbacks.ModelCheckpoint(f"{shared}/last.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(f"{shared}/log.csv"),
        keras.callbacks.TensorBoard(f"{shared}/board"),
        keras.callbacks.EarlyStopping("val_loss", patience=args.get("patience", 50)),
    ]
    dataset = ctx.dataset(16, features="features", label="label")
    history = model.fit(dataset, epochs=args["epochs"], verbose=0, callbacks=callbacks, validation_data=(x, y))
    predicted = model.predict(x, verbose=0)
    return {
        "epochs": history.epoch,
        "history": history.history,
        "weights": [np.asarray(weight.numpy()) for weight in model.weights],
        "evaluated": model.evaluate(x, y, verbose=0),
        "mse": float(np.mean((predicted[:, 0] - y) ** 2)),
        "predicted": predicted,
        "direct": np.asarray(keras.ops.convert_to_numpy(model(x, training=False))),
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def assert_agreement(results):
    one, two = results["worker:0"], results["worker:1"]
    assert one["epochs"] == two["epochs"]
    for name, values in one["history"].items():
        assert np.isfinite(values).all()
        assert values == pytest.approx(two["history"][name]), name
    for mine, theirs in zip(one["weights"], two["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert one["evaluated"] == pytest.approx(two["evaluated"])
    for result in results.values():
        np.testing.assert_allclose(result["predicted"], result["direct"], rtol=1e-4, atol=1e-6)  # in the rows' order
        assert result["evaluated"][0] == pytest.approx(result["mse"], rel=1e-4)


@pytest.mark.masters("local")
@pytest.mark.slow
def test_interrupted_training_ends_where_an_unbroken_one_does(spark, tmp_path):
    """BackupAndRestore in one directory shared by all workers; 50 and 23 rows: one worker pads in most steps."""
    frame = small_frame(spark, [50, 23]).cache()

    def run(directory, epochs, **settings):
        (tmp_path / directory).mkdir(exist_ok=True)
        args = {"directory": str(tmp_path / directory), "epochs": epochs, **settings}
        results = tfos.run(spark, everything, args, num_workers=2, data=frame.coalesce(2))
        assert_agreement(results)
        return results["worker:0"]

    run("broken", 1)
    resumed = run("broken", 3)
    assert resumed["epochs"] == [1, 2]
    assert resumed["iterations"] == 3 * 5
    files = sorted(path.name for path in (tmp_path / "broken").iterdir())
    assert files == ["backup", "board", "last.weights.h5", "log.csv"]
    # Two runs, each with one writer of training events and one of validation events.
    assert len(list((tmp_path / "broken" / "board").rglob("events*"))) == 4
    assert len(Path(tmp_path / "broken" / "log.csv").read_text().splitlines()) == 1 + 2  # the second run's


@pytest.mark.slow
@pytest.mark.masters("local")
def test_several_steps_per_execution_and_early_stopping(spark, tmp_path):
    """Five steps in executions of two: the last is short, and no row is lost."""
    args = {"directory": str(tmp_path), "epochs": 30, "steps": 2, "patience": 1, "rate": 0.3}
    results = tfos.run(spark, everything, args, num_workers=2, data=small_frame(spark, [40, 37]))
    assert_agreement(results)
    epochs = results["worker:0"]["epochs"]
    assert len(epochs) < 30
    assert results["worker:0"]["iterations"] == 5 * len(epochs)


@pytest.mark.masters("local")
def test_tf_keras_works_too(spark):
    """Keras 2, by TF_USE_LEGACY_KERAS: fit and evaluate on what Spark feeds, equal weights on both workers."""

    def program(args, ctx):
        import tensorflow as tf
        from tf_keras.src.engine import data_adapter

        from tensorflowonspark.keras.provenance import SHARE, sources

        keras = tf.keras
        assert "tf_keras" in keras.Model.__module__
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential(
                [keras.layers.Dense(4, input_shape=(3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            )
            model.compile("adam", "mse", weighted_metrics=["mae"])
        columns = {"features": "features", "label": "label"}
        history = model.fit(ctx.dataset(16, **columns), epochs=2, verbose=0)
        iterations = int(model.optimizer.iterations.numpy())
        model.fit(iter(ctx.batches(16, **columns)), verbose=0)
        reader = data_adapter.GeneratorDataAdapter(iter(ctx.batches(16, **columns)))
        assert SHARE in sources(reader.get_dataset())  # so a strategy takes it as it is
        ctx.export(model, args)
        return (
            history.history["loss"],
            [weight.numpy() for weight in model.weights],
            iterations,
        )

    path = spark.conf.get("spark.local.dir") + "/exported"
    frame = small_frame(spark, [50, 23])
    results = tfos.run(spark, program, path, num_workers=2, data=frame, env={"TF_USE_LEGACY_KERAS": "1"})
    one, two = results.values()
    assert one[0] == pytest.approx(two[0])
    assert one[2] == two[2] == 2 * 5
    for mine, theirs in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert (Path(path) / "saved_model.pb").exists()
