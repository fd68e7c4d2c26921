"""Notices that a host goes: all workers save after the same step, and a restart goes on there."""

import logging
import os
import signal
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos


def points(spark):
    return spark.range(0, 300, 1, 3).select(
        f.array(f.col("id") / 300, f.sin(f.col("id"))).alias("features"), (f.col("id") % 7).cast("float").alias("label")
    )


def fit(args, ctx):
    """Train with Keras, slowly, and say when the second epoch has begun; return what was saved, and the weights."""
    from contextlib import nullcontext

    if args.get("old"):
        import tf_keras as keras
    else:
        import keras

    class Noting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)
            if args["now"] and epochs == [0, 1] and batch >= 2 and ctx.attempt == 0:
                Path(args["now"]).touch()
            if ctx.preemption() != seen[-1]:
                seen.append(ctx.preemption())

    epochs, seen, scope = [], [None], nullcontext()
    keras.utils.set_random_seed(1)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    with scope:
        layers = [keras.layers.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=args.get("execution", 1))
    checkpoint = ctx.checkpoint(args["directory"], keep=9)
    model.fit(ctx.dataset(10, seed=3), epochs=4, verbose=0, callbacks=[checkpoint.callback(), Noting()])
    saved = [(each.epoch, each.batch) for each in checkpoint._store.complete()]
    return ctx.attempt, epochs, saved, seen, [np.asarray(value).tolist() for value in model.get_weights()]


def train(spark, args, notice=None, **settings):
    """Train on a cluster that is fed; `notice` is called with it once the second epoch's third step has ended."""
    with tfos.Cluster(spark, fit, args, num_workers=2, **settings) as cluster:
        if notice:
            Thread(target=give, args=(cluster, Path(args["now"]), notice), daemon=True).start()
        cluster.train(points(spark))
        return cluster.join()


def give(cluster, path, notice):
    while not path.exists():
        time.sleep(0.01)
    notice(cluster)


@pytest.mark.timeout(240)
@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("args", "env"),
    [
        pytest.param({}, {}, marks=pytest.mark.smoke, id="tensorflow"),
        pytest.param({"old": True}, {"TF_USE_LEGACY_KERAS": "1"}, marks=pytest.mark.slow, id="tf_keras"),
        pytest.param({}, {"KERAS_BACKEND": "jax"}, marks=pytest.mark.slow, id="jax"),
        pytest.param({"execution": 4}, {}, marks=pytest.mark.slow, id="executions"),
    ],
)
def test_all_workers_save_after_the_same_step(spark, tmp_path, args, env):
    """Its hosts are the driver's own, so no restart follows; the notice is withdrawn later."""
    place = tmp_path / "notice"

    def notice(cluster):
        place.write_text("taken")
        while len(list((tmp_path / "there").glob("*/*.json"))) < 3:
            time.sleep(0.05)
        place.unlink()

    args = {**args, "directory": str(tmp_path / "there"), "now": str(tmp_path / "now")}
    results = train(spark, args, notice, env=env, restarts=1, nodes=tfos.Nodes(notice=str(place)))
    for attempt, epochs, saved, seen, _ in results.values():
        assert (attempt, epochs) == (0, [0, 1, 2, 3])
        ((epoch, batch),) = [each for each in saved if each[1]]
        assert epoch in (1, 2)  # a notice is looked for every second
        assert batch > (2 if epoch == 1 else 0)
        assert seen[1].nodes == ("worker:0", "worker:1")
        assert (seen[1].reason, seen[1].until) == ("taken", None)
        assert seen[2:] in ([], [None])


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.masters("standalone")
def test_an_executor_that_spark_decommissions_is_left_after_a_step(spark, tmp_path, caplog):
    unbroken = train(spark, {"directory": str(tmp_path / "unbroken"), "now": ""})["worker:0"]
    args = {"directory": str(tmp_path / "broken"), "now": str(tmp_path / "now")}

    def notice(cluster):
        os.kill(cluster.nodes[1].jvm_pid, signal.SIGPWR)  # as Spark's script does where a host goes

    with caplog.at_level(logging.WARNING):
        broken = train(spark, args, notice, restarts=tfos.RestartPolicy(0, max_preemptions=1))["worker:0"]
    assert (broken[0], broken[1]) == (1, [1, 2, 3])
    ((epoch, batch),) = [each for each in broken[2] if each[1]]
    assert epoch == 1
    assert 3 <= batch < 30
    assert "All nodes are started again (preemption 1 of 1)" in caplog.text
    for one, other in zip(unbroken[-1], broken[-1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
