"""An evaluator beside the training: its values are those of inline validation, whatever fails meanwhile."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def build():
    """Return a model with a dropout and statistics of batches."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, "relu", kernel_initializer=keras.initializers.GlorotUniform(1)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2)),
        ]
    )
    model.compile("adam", "mse", weighted_metrics=["mae"])
    return model


def train(args, ctx):
    """Train, with inline validation if it is asked for; the evaluator evaluates."""
    import keras

    keras.utils.set_random_seed(3)
    columns = {"features": "features", "label": "label"}
    if ctx.job == "evaluator":
        time.sleep(args.get("late", 0.0))
        rows = ctx.read_parquet(args["held"], cache=None).dataset(16, **columns)
        return ctx.evaluate_checkpoints(build, rows, directory=args["directory"], **args.get("evaluator", {}))
    checkpoint = ctx.checkpoint(args["directory"], **args.get("checkpoint", {}))
    with ctx.strategy().scope():
        model = build()
    validation = ctx.validation_dataset(16, **columns) if args.get("inline") else None
    rows = ctx.dataset(16, **columns)
    callbacks = [checkpoint.callback()]
    history = model.fit(rows, epochs=args["epochs"], validation_data=validation, callbacks=callbacks, verbose=0)
    best = None if args.get("late") else checkpoint.best()  # which waits for the evaluator
    return {**history.history, "epochs": history.epoch, "best": best and (best.epoch, best.metric, best.value)}


@pytest.fixture
def held(spark, tmp_path):
    frame = small_frame(spark, [50, 27])
    frame.write.parquet(str(tmp_path / "held"))
    return frame


def test_values_are_those_of_inline_validation(spark, tmp_path, held):
    args = {"held": str(tmp_path / "held"), "directory": str(tmp_path / "saved"), "inline": True, "epochs": 4}
    with tfos.Cluster(spark, train, args, num_workers=2, evaluator=True) as cluster:
        cluster.train(small_frame(spark, [100, 60]), validation=held)
        results = cluster.join()
    inline = results.chief
    assert results.validation["epoch"] == [0, 1, 2, 3]
    for name in ("val_loss", "val_mae"):
        assert results.validation[name] == pytest.approx(inline[name], rel=1e-5)
        assert [each.values[name] for each in results.metrics.epochs] == results.validation[name]
    losses = results.validation["val_loss"]
    assert inline["best"] == (losses.index(min(losses)) + 1, "val_loss", pytest.approx(min(losses)))
    assert 3 <= len(list((tmp_path / "saved").iterdir())) <= 4  # the best three, and the newest


def fail(times):
    """Have the store of this process fail so many times, and be tried again for three seconds."""
    from fsspec.implementations.local import LocalFileSystem

    from tensorflowonspark.node.checkpoint import evaluator

    failures, read = iter(range(times)), LocalFileSystem.get_file

    def get_file(*given, **options):
        if next(failures, None) is not None:
            raise OSError("Slow Down")
        return read(*given, **options)

    LocalFileSystem.get_file = get_file
    evaluator._STORE_SECONDS = 3.0


def alone(args, ctx):
    """Fit rows of one's own on one worker; the loss of validation rises from the third epoch on."""

    import numpy as np

    if args.get("old"):
        import tf_keras as keras
    else:
        import keras

    class Rising(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if args.get("pause"):
                time.sleep(args["pause"])
            self.model.layers[0].bias.assign([abs(epoch - 2.0)])
            if ctx.attempt == 0 and args.get("kill_worker") == epoch:
                os.kill(os.getpid(), signal.SIGKILL)

    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mae")
        return model

    rows = np.zeros((8, 1), "float32"), np.zeros((8, 1), "float32")
    directory = args["directory"]
    if ctx.job == "evaluator":
        fail(args.get("failures", 0))
        model = make()
        evaluate = model.evaluate

        def counted(**settings):
            with open(f"{directory}-evaluated", "a") as file:
                print(float(model.layers[0].bias.numpy()[0]), ctx.attempt, file=file)
            time.sleep(args.get("slow", 0.0))
            if ctx.attempt == 0 and args.get("kill") == model.layers[0].bias.numpy()[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return evaluate(**settings)

        model.evaluate = counted
        return ctx.evaluate_checkpoints(model, rows, directory=directory, **args.get("evaluator", {}))
    checkpoint = ctx.checkpoint(directory, **args.get("checkpoint", {}))
    if keras.config.backend() == "jax" if hasattr(keras, "config") else False:
        model = make()
    else:
        with ctx.strategy().scope():
            model = make()
    callbacks = [Rising(), checkpoint.callback()]
    history = model.fit(*rows, epochs=args["epochs"], callbacks=callbacks, verbose=0)
    return history.epoch, checkpoint.best().epoch


def evaluated(args):
    """Return the biases of the models that were evaluated, which are known by them."""
    return [float(line.split()[0]) for line in Path(f"{args['directory']}-evaluated").read_text().splitlines()]


def test_a_criterion_ends_the_training_and_a_later_run_goes_on_with_it(spark, tmp_path):
    args = {"directory": str(tmp_path / "saved"), "epochs": 40, "pause": 0.3, "evaluator": {"patience": 2}}
    args["checkpoint"] = {"keep": 2}
    first = tfos.run(spark, alone, args, num_workers=1, evaluator=True)
    epochs, best = first.chief
    assert 5 <= len(epochs) < 40
    assert best == 3
    assert first.validation["epoch"] == epochs
    assert first.validation["val_loss"] == pytest.approx([abs(each - 2.0) for each in epochs])
    steps = sorted(each.name[:13] for each in (tmp_path / "saved").iterdir())
    assert steps == sorted({*steps[:2], f"step-{len(epochs):08d}"})  # the best two, and the newest
    assert "step-00000003" in steps
    count = len(evaluated(args))
    assert count == len(epochs)
    again = tfos.run(spark, alone, args, num_workers=1, evaluator=True)
    assert again.chief == (epochs, 3)
    assert again.validation == first.validation
    more = {**args, "epochs": len(epochs) + 2, "evaluator": {"patience": 60}}
    on = tfos.run(spark, alone, more, num_workers=1, evaluator=True)
    assert on.validation["epoch"] == list(range(len(epochs) + 2))
    biases = evaluated(args)  # those of the last epoch of the run before show what Keras takes for better
    assert biases[-2:] == pytest.approx([len(epochs) - 2.0, len(epochs) - 1.0])
    assert len(biases) <= count + 5


def test_a_restart_while_the_evaluator_reads_repeats_no_epoch(spark, tmp_path):
    """Of the training it repeats the fifth epoch; the evaluation of an epoch that it breaks off counts once."""
    args = {"directory": str(tmp_path / "saved"), "epochs": 6, "slow": 0.5, "pause": 0.4, "kill_worker": 4}
    results = tfos.run(spark, alone, args, num_workers=1, evaluator=True, restarts=1)
    assert results.restarts == 1
    assert results.validation == {"epoch": list(range(6)), "val_loss": pytest.approx([2.0, 1.0, 0.0, 1.0, 2.0, 3.0])}
    assert results.history["val_loss"] == results.validation["val_loss"]
    assert len(evaluated(args)) in (6, 7)


def test_an_evaluator_that_is_slow_and_killed_evaluates_each_epoch_once(spark, tmp_path):
    args = {"directory": str(tmp_path / "saved"), "epochs": 6, "slow": 0.3, "kill": 1.0}
    args["checkpoint"] = {"keep": 1, "wait": False, "best": "val_loss"}
    results = tfos.run(spark, alone, args, num_workers=1, evaluator=True, restarts=1)
    assert results.restarts == 1
    assert results.validation["epoch"] == list(range(6))
    assert results.validation["val_loss"] == pytest.approx([2.0, 1.0, 0.0, 1.0, 2.0, 3.0])
    assert results.history["val_loss"] == pytest.approx([2.0, 1.0, 0.0, 1.0, 2.0, 3.0])
    assert results.chief[1] == 3
    assert evaluated(args) == [2.0, 1.0, 1.0, 0.0, 1.0, 2.0, 3.0]  # that in which it was killed again
    assert len(list((tmp_path / "saved").iterdir())) == 2  # the best, and the newest


@pytest.mark.slow
def test_an_evaluator_that_begins_after_the_end_of_the_training_evaluates_it(spark, tmp_path, held):
    args = {"directory": str(tmp_path / "saved"), "held": str(tmp_path / "held"), "epochs": 2, "late": 14.0}
    with tfos.Cluster(spark, train, args, num_workers=1, evaluator=True) as cluster:
        cluster.train(small_frame(spark, [40]))
        assert cluster.join().validation["epoch"] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "environment"),
    [
        pytest.param({}, {}, id="tensorflow"),
        pytest.param({"old": True}, {"TF_USE_LEGACY_KERAS": "1"}, id="tf_keras"),
        pytest.param({}, {"KERAS_BACKEND": "jax"}, id="jax"),
    ],
)
def test_two_workers_stop_after_the_same_epoch(spark, tmp_path, args, environment):
    args |= {"directory": str(tmp_path / "saved"), "epochs": 60, "pause": 0.2, "evaluator": {"patience": 2}}
    results = tfos.run(spark, alone, args, num_workers=2, evaluator=True, env=environment)
    (epochs, best), other = results.by_worker
    assert other == (epochs, best) == (list(range(len(epochs))), 3)
    assert 5 <= len(epochs) < 60
    assert results.validation["val_loss"] == pytest.approx([abs(each - 2.0) for each in epochs])
    again = tfos.run(spark, alone, args, num_workers=2, evaluator=True, env=environment)
    assert again.by_worker == [(epochs, 3)] * 2
    assert len(evaluated(args)) == len(epochs) + 1  # the last model once more: so Keras knows what is better


def loop(args, ctx):
    """Train in a loop of one's own, which counts epochs."""
    import keras
    import numpy as np
    import tensorflow as tf

    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", "mae")
        return model

    if ctx.job == "evaluator":
        rows = tf.data.Dataset.from_tensor_slices((np.zeros((8, 1)), np.zeros((8, 1)))).batch(4)
        return ctx.evaluate_checkpoints(make, rows, directory=args, patience=1)
    checkpoint, model = ctx.checkpoint(args), make()
    for epoch in range(200):
        model.layers[0].bias.assign([abs(epoch - 1.0)])
        ctx.report(epoch=epoch, loss=0.5)
        checkpoint.save(tf.train.Checkpoint(model=model), epoch + 1, epoch=epoch + 1)
        if checkpoint.is_over():
            break
    return epoch + 1


def test_a_loop_of_ones_own_is_shown_and_logged_as_fit_is(spark, tmp_path, mlflow):
    with mlflow.start_run() as run:
        results = tfos.run(spark, loop, str(tmp_path / "saved"), num_workers=1, evaluator=True)
    assert 3 <= results.chief < 200
    expected = [abs(each - 1.0) for each in range(results.chief)]
    assert results.validation == {"epoch": list(range(results.chief)), "val_loss": pytest.approx(expected)}
    assert results.history["val_loss"] == pytest.approx(expected)
    found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "val_loss")
    assert [(each.step, each.value) for each in found] == list(enumerate(pytest.approx(expected).expected))


@pytest.mark.parametrize(("failures", "message"), [(2, ""), (1000, "checkpoints could not be read .* Slow Down")])
def test_a_store_that_fails_is_tried_again(spark, tmp_path, caplog, failures, message):
    args = {"directory": str(tmp_path / "saved"), "epochs": 2, "failures": failures}
    with pytest.raises(tfos.NodeError, match=f"evaluator:0 .*{message}") if message else nullcontext():
        results = tfos.run(spark, alone, args, num_workers=1, evaluator=True)
        assert results.validation["epoch"] == [0, 1]
    assert "the evaluator tries again for 3 s: checkpoints could not be read" in caplog.text


def test_an_evaluator_that_takes_longer_than_the_user_waits_is_named(spark, tmp_path):
    args = {"directory": str(tmp_path / "saved"), "epochs": 1, "slow": 300.0, "checkpoint": {"best": "loss"}}
    with pytest.raises(tfos.ClusterError, match=r"after 20 s \(timeout\) the program still runs on evaluator:0 on"):
        with tfos.Cluster(spark, alone, args, num_workers=1, evaluator=True) as cluster:
            cluster.join(timeout=20)


def refused(args, ctx):
    """Call it as one should not."""
    import numpy as np

    caller, call = args
    if ctx.job != caller:
        return
    if call == "rows":
        ctx.validation_dataset(8)
    else:
        ctx.evaluate_checkpoints(lambda: None, (np.zeros(2), np.zeros(2)), directory="/none")


@pytest.mark.parametrize(
    ("args", "evaluator", "message"),
    [
        (
            ("worker", "model"),
            False,
            "on worker:0: it is for the evaluator's program .the cluster has none: start it with evaluator=",
        ),
        (("worker", "model"), True, "on worker:0: it is for the evaluator's program .which ctx.job tells"),
        (("evaluator", "model"), True, "expected a Keras model, or a function that returns one"),
        (
            ("evaluator", "rows"),
            True,
            "evaluator:0 is not fed: rows go to worker:0: it reads rows of its own, as by ctx.read_parquet",
        ),
    ],
)
def test_calls_that_are_refused(spark, args, evaluator, message):
    with pytest.raises(tfos.NodeError, match=message):
        tfos.run(spark, refused, args, num_workers=1, evaluator=evaluator)


def embed(args, ctx):
    """Train a table that is divided among the workers."""
    import keras
    import numpy as np

    def build():
        table = tfos.keras.ShardedEmbedding(50, 4)
        model = keras.Sequential([keras.Input((), dtype="int64"), table, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    if ctx.job == "evaluator":
        held = np.arange(50), np.arange(50, dtype="float32") / 50
        return ctx.evaluate_checkpoints(build, held, directory=args, batch_size=16)
    with ctx.strategy().scope():
        model = build()
    rows, held = (make(16, features="id", label="label") for make in (ctx.dataset, ctx.validation_dataset))
    callbacks = [ctx.checkpoint(args).callback()]
    return model.fit(rows, validation_data=held, epochs=3, callbacks=callbacks, verbose=0).history["val_loss"]


@pytest.mark.slow
def test_a_table_that_is_divided_among_the_workers(spark, tmp_path):
    rows = spark.range(50).selectExpr("id", "float(id / 50) as label")
    with tfos.Cluster(spark, embed, str(tmp_path / "saved"), num_workers=2, evaluator=True) as cluster:
        cluster.train(rows, validation=rows)
        results = cluster.join()
    assert results.validation["val_loss"] == pytest.approx(results.chief, rel=1e-5)
