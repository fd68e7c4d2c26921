"""What a cluster's metrics say of trainings on real nodes."""

import logging
import math
import os
import signal
import time

import pytest
from pyspark import TaskContext

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model


def fit(args, ctx):
    import keras
    import tensorflow as tf

    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if ctx.index == 1:
                time.sleep(args["sleep"])

        def on_epoch_end(self, epoch, logs=None):
            logs["added"] = 0.5

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    dataset = ctx.dataset(8, features="features", label="label")
    validation = ctx.validation_dataset(8, features="features", label="label") if args.get("validates") else None
    model.fit(
        dataset, epochs=args["epochs"], validation_data=validation, verbose=args.get("verbose", 0), callbacks=[Slow()]
    )


def slow(rows, seconds, begun):
    """Return rows of which each partition but the first four takes some time, once the steps have begun."""

    def compute(batches):
        while TaskContext.get().partitionId() >= 4 and not os.path.exists(begun):
            time.sleep(0.05)
        for batch in batches:
            time.sleep(seconds if TaskContext.get().partitionId() >= 4 else 0.0)
            yield batch

    return rows.mapInArrow(compute, rows.schema)


@pytest.mark.masters("local")
def test_the_metrics_of_fit_name_its_epochs_rows_and_the_worker_that_the_others_wait_for(spark):
    args = {"epochs": 5, "sleep": 0.04, "validates": True}
    with tfos.Cluster(spark, fit, args, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=5.0)) as cluster:
        assert cluster.metrics().state == "running"
        cluster.train(small_frame(spark, [60, 60]), validation=small_frame(spark, [8]))
        cluster.join()
        found = cluster.metrics()
    first, second = found.nodes
    assert [each.epoch for each in found.epochs] == list(range(5))
    assert all(set(each.values) == {"loss", "mae", "val_loss", "val_mae", "added"} for each in found.epochs)
    assert (found.rows, first.total_steps, second.total_steps) == (5 * 120, 5 * 15, 5 * 15)
    assert first.bytes > 60 * 5 * 4 * 4
    assert (first.straggler, second.straggler) == (False, True)
    assert first.waiting_for_workers > 0.3
    assert first.waiting_for_rows < 0.2
    assert second.seconds_per_step > 0.04
    assert first.memory > 100 << 20
    assert [each.kind for each in found.events] == ["started"]
    last = cluster.metrics()
    assert (last.state, last.events[-1].kind) == ("ended", "ended")
    assert len(cluster._run.metrics.series()["time"]) >= 1


@pytest.mark.masters("local")
def test_steps_that_wait_for_slow_rows(spark, tmp_path):
    begun = tmp_path / "begun"

    def program(ctx):
        import keras

        class Begun(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):  # the first step, which compiles, does not wait
                begun.touch()

        model = small_model()
        model.fit(ctx.dataset(10, features="features", label="label"), verbose=0, callbacks=[Begun()])

    rows = slow(small_frame(spark, [20] * 16), 0.8, begun)
    with tfos.Cluster(spark, program, num_workers=1) as cluster:
        cluster.train(rows, cache=None)
        cluster.join()
        (node,) = cluster.metrics().nodes
    assert node.waiting_for_rows > 0.4
    assert node.waiting_for_workers == 0.0
    assert node.computing == pytest.approx(1.0 - node.waiting_for_rows)
    assert node.rows == 320


def own_loop(args, ctx):
    import numpy as np
    import tensorflow as tf

    for epoch in range(3):
        steps = sum(1 for _ in ctx.batches(10, features=["id"]))
        ctx.report(loss=tf.constant(0.5) / (epoch + 1), rows=np.int64(steps), broken=math.nan)
    ctx.report(epoch=7, loss=0.1)
    refused = {}

    @tf.function
    def step():
        ctx.report(loss=tf.constant(1.0))

    for name, act in {
        "graph": step,
        "epoch": lambda: ctx.report(epoch=-1, loss=1.0),
    }.items():
        try:
            act()
        except Exception as error:
            refused[name] = str(error)
    return refused


@pytest.mark.masters("local")
def test_a_loop_of_ones_own_reports_numbers_and_is_refused_what_is_none(spark):
    with tfos.Cluster(spark, own_loop, {}, num_workers=1) as cluster:
        cluster.train(small_frame(spark, [25, 25]))
        refused = cluster.join()["worker:0"]
        epochs = cluster.metrics().epochs
    assert epochs[-1].epoch == 7
    assert epochs[0].values["loss"] == 0.5
    assert math.isnan(epochs[0].values["broken"])
    assert "a tensor of a graph, which has no value yet" in refused["graph"]
    assert "epoch=-1" in refused["epoch"]


def killed_once(args, ctx):
    import keras

    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if ctx.index == 1 and ctx.attempt == 0 and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    model.fit(ctx.dataset(8, features="features", label="label"), epochs=3, verbose=0, callbacks=[Kill()])


@pytest.mark.masters("local")
def test_a_restart_is_an_event_and_its_epochs_are_counted_apart(spark):
    restarts = tfos.RestartPolicy(1, causes=("killed",))
    with tfos.Cluster(spark, killed_once, {}, num_workers=2, restarts=restarts) as cluster:
        cluster.train(small_frame(spark, [40, 40]))
        cluster.join()
        found = cluster.metrics()
    assert [each.kind for each in found.events] == ["started", "failure", "restart", "started"]
    failure = found.events[1]
    assert (failure.node, "worker:1 on" in failure.text) == ("worker:1", True)
    again = [each.epoch for each in found.epochs if each.attempt == 1]
    assert again == [0, 1, 2]
    assert found.restarts == 1


@pytest.mark.masters("local")
@pytest.mark.parametrize("env", [{"TF_USE_LEGACY_KERAS": "1"}, {"KERAS_BACKEND": "jax"}], ids=["tf_keras", "jax"])
def test_the_epochs_of_other_kerases(spark, env):
    def program(ctx):
        import os

        if os.environ.get("TF_USE_LEGACY_KERAS"):
            import tf_keras as keras
        else:
            import keras

        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ctx.dataset(10, features="features", label="label"), epochs=2, verbose=2)

    with tfos.Cluster(spark, program, env=env) as cluster:
        cluster.train(small_frame(spark, [50]))
        cluster.join()
        found = cluster.metrics()
    assert [(each.epoch, set(each.values)) for each in found.epochs] == [(0, {"loss"}), (1, {"loss"})]
    assert found.nodes[0].total_steps == 10
    assert found.rows == 100


def killed_in_its_midst(args, ctx):
    """Train with a checkpoint every 30 steps; in the first attempt a worker is killed 26 steps after the first one."""
    import keras
    import tensorflow as tf

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)
            if ctx.attempt == 0 and ctx.index == 1 and batch == 55:
                os.kill(os.getpid(), signal.SIGKILL)

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    checkpoint = ctx.checkpoint(args["directory"])
    rows, validation = (each(8, features="features", label="label") for each in (ctx.dataset, ctx.validation_dataset))
    model.fit(rows, validation_data=validation, verbose=0, callbacks=[checkpoint.callback(every=30), Killer()])


@pytest.mark.slow
@pytest.mark.masters("local")
def test_goodput_says_what_became_of_the_time_of_a_training_that_was_started_again(spark, tmp_path, caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark.nodes")
    with tfos.Cluster(spark, killed_in_its_midst, {"directory": str(tmp_path)}, num_workers=2, restarts=1) as cluster:
        cluster.train(small_frame(spark, [320, 320]), validation=small_frame(spark, [64]))
        found = cluster.join().metrics.goodput
    assert 0.0 < found.share < 1.0
    assert found.share + sum(found.causes.values()) == pytest.approx(1.0)
    seconds = {cause: share * 2 * cluster.metrics().seconds for cause, share in found.causes.items()}
    assert seconds["repeated_steps"] > 2 * 1.0  # of 2.6; the last second may be unknown
    for cause in ("start", "importing", "waiting_for_rows", "saving", "validating"):
        assert seconds[cause] > 0.0, cause
    last = cluster.metrics().goodput
    assert last.causes["shutdown"] > 0.0
    assert caplog.messages[-1] == f"[training] {last}"
