"""Clusters that restart after a failure: their feeds, checkpoints, workers and results."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import psutil
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.programs import count_rows

local = pytest.mark.masters("local")


def killed_in(args, ctx, attempt=0):
    """End this node's process as no program can, in one attempt."""
    if ctx.attempt == attempt and ctx.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)


# ---- training


def points(spark):
    return spark.range(300).select(
        f.array(f.col("id") / 300, f.sin(f.col("id"))).alias("features"), (f.col("id") % 7).cast("float").alias("label")
    )


def fit(args, ctx):
    """Train with Keras; on the first attempt, one worker is killed in the midst of the third epoch."""
    import tensorflow as tf

    if args["keras"] == 2:
        import tf_keras as keras
    else:
        import keras

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if args["kill"] and ctx.attempt == 0 and ctx.index == 1 and epochs == [0, 1, 2] and batch == 6:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)

    epochs: list[int] = []
    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        drops = [keras.layers.Dropout(0.3)] if args["keras"] == 3 else []  # whose random numbers go on
        norm = keras.layers.BatchNormalization()  # whose statistics each worker has of its own rows within an epoch
        layers = [keras.layers.Input((2,)), keras.layers.Dense(8, "tanh"), *drops, norm, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01), "mse")
    rows = ctx.dataset(32, seed=3)
    checkpoint = ctx.checkpoint(args["directory"], wait=args["wait"])
    model.fit(rows, epochs=4, verbose=0, callbacks=[checkpoint.callback(every=args["every"]), Killer()])
    return ctx.attempt, epochs, [value.tolist() for value in model.get_weights()]


@pytest.mark.slow
@local
@pytest.mark.parametrize(
    ("keras", "every", "wait"),
    [(3, None, False), (3, 3, False), (2, 3, False), (3, 3, True)],
    ids=["epochs", "steps", "tf_keras", "waiting"],
)
def test_a_training_ends_with_the_weights_of_an_unbroken_one(spark, tmp_path, keras, every, wait):
    environment = {"TF_USE_LEGACY_KERAS": "1"} if keras == 2 else {}
    settings = {"num_workers": 2, "data": points(spark), "env": environment}
    args = {"keras": keras, "every": every, "wait": wait, "kill": False, "directory": str(tmp_path / "unbroken")}
    unbroken = tfos.run(spark, fit, args, **settings)["worker:0"]
    args.update(kill=True, directory=str(tmp_path / "broken"))
    broken = tfos.run(spark, fit, args, restarts=1, **settings)["worker:0"]
    assert (unbroken[0], broken[0]) == (0, 1)
    assert unbroken[1] == [0, 1, 2, 3]
    # The checkpoint of the second epoch may be on its way when the worker is killed, if no other one follows it.
    assert broken[1] == [2, 3] or (every is None and broken[1] == [1, 2, 3])
    for one, other in zip(unbroken[2], broken[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def fit_each(args, ctx):
    """Train with each feed; one worker may be killed in the second one's second epoch. Return epochs and weights."""
    import keras
    import tensorflow as tf

    class Killer(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            if args["kill"] and ctx.index == 1 and epochs == [0, 1, 0, 1] and batch == 4:
                os.kill(os.getpid(), signal.SIGKILL)

    epochs: list[int] = []
    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    callbacks = [ctx.checkpoint(args["directory"]).callback(every=3), Killer()]
    for feed in ctx.feeds():
        model.fit(feed.dataset(32, seed=3), epochs=2, verbose=0, callbacks=callbacks)
    return epochs, [value.tolist() for value in model.get_weights()]


@pytest.mark.slow
@local
def test_a_later_run_trains_what_is_left_of_each_feed(spark, tmp_path):
    """Of the first feed nothing is; the second is resumed in the midst of its second epoch."""

    def run(directory, kill=False):
        args = {"directory": str(tmp_path / directory), "kill": kill}
        with tfos.Cluster(spark, fit_each, args, num_workers=2) as cluster:
            cluster.train(points(spark))
            cluster.train(points(spark).where("label < 5"))
            return cluster.join()["worker:0"]

    unbroken = run("unbroken")
    with pytest.raises(tfos.NodeError, match="SIGKILL"):
        run("broken", kill=True)
    resumed = run("broken")
    assert (unbroken[0], resumed[0]) == ([0, 1, 0, 1], [1])
    for one, other in zip(unbroken[1], resumed[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.smoke
@local
def test_a_loop_goes_on_with_the_step_that_comes_next(spark, tmp_path):
    counts = tfos.run(spark, count_rows, str(tmp_path), data=spark.range(100), restarts=1)["worker:0"]
    assert sum(counts) == 250
    assert set(counts) == {2, 3}  # two epochs and a half: each row twice, and half of them once more


# ---- feeds


def rows_of_feeds(args, ctx):
    """Note what each feed brings; be killed with the second one."""
    found = []
    checkpoint = ctx.checkpoint(args) if args else None
    for feed in ctx.feeds():
        found.append(feed.total_rows)
        if feed.total_rows == 20:
            killed_in(args, ctx)
            time.sleep(3600 if ctx.attempt == 0 else 0)
        if checkpoint:
            import tensorflow as tf

            checkpoint.save(tf.train.Checkpoint(seen=tf.Variable(1)), len(found))
    return ctx.attempt, found


def trained(spark, args, **settings):
    with tfos.Cluster(spark, rows_of_feeds, args, num_workers=2, restarts=2, **settings) as cluster:
        for rows in (10, 20, 30):
            cluster.train(spark.range(rows))
        return cluster.shutdown()


def test_without_checkpoints_all_feeds_come_again(spark):
    assert trained(spark, "") == {"worker:0": (1, [10, 20, 30]), "worker:1": (1, [10, 20, 30])}


@pytest.mark.slow
@local
def test_with_checkpoints_those_since_the_last_one_do(spark, tmp_path):
    """It was written when the program was through with the first feed, before it asked for the second."""
    found = trained(spark, str(tmp_path))
    assert found == {"worker:0": (1, [10, 20, 30]), "worker:1": (1, [10, 20, 30])}


@local
def test_a_feed_that_was_complete_before_the_last_checkpoint_does_not_come_again(spark, tmp_path):
    """Nor in a second restart, before which none was written."""

    def program(args, ctx):
        import tensorflow as tf

        killed_in(args, ctx, attempt=1)
        found = []
        for feed in ctx.feeds():
            ctx.checkpoint(args, wait=True).save(tf.train.Checkpoint(seen=tf.Variable(1)), 1)
            found.append(feed.total_rows)
            killed_in(args, ctx) if feed.total_rows == 30 else None
        return found

    with tfos.Cluster(spark, program, str(tmp_path), num_workers=2, restarts=2) as cluster:
        for rows in (10, 20, 30):
            cluster.train(spark.range(rows))
        assert cluster.shutdown() == {"worker:0": [30], "worker:1": [30]}


@local
def test_a_failure_after_the_last_feed(spark):
    def program(args, ctx):
        rows = [feed.total_rows for feed in ctx.feeds()]
        killed_in(args, ctx)
        return rows

    with tfos.Cluster(spark, program, num_workers=2, restarts=1) as cluster:
        cluster.train(spark.range(10))
        cluster.train(spark.range(20))
        assert cluster.shutdown() == {"worker:0": [10, 20], "worker:1": [10, 20]}


@pytest.mark.slow
@local
def test_a_stream_comes_again_as_a_whole_or_not_at_all(spark, tmp_path):
    def program(directory, ctx):
        import tensorflow as tf

        rows = 0
        for batch in ctx.dataset(10, shuffle=False):
            rows += int(tf.math.count_nonzero(batch["sample_weight"] > 0))
            if directory:
                ctx.checkpoint(directory).save(tf.train.Checkpoint(seen=tf.Variable(1)), 1)
            killed_in(directory, ctx) if rows > 20 else None
        return rows

    def train(directory):
        with tfos.Cluster(spark, program, directory, num_workers=2, restarts=1) as cluster:
            cluster.train(spark.range(0, 100, 1, 4), cache=None)
            return sum(cluster.shutdown().values())

    assert train("") == 100
    with pytest.raises(tfos.NodeError, match="SIGKILL"):
        train(str(tmp_path))


# ---- the policy


@local
def test_what_happens_is_reported(spark, caplog):
    def program(args, ctx):
        killed_in(args, ctx)
        killed_in(args, ctx, attempt=1)
        return ctx.attempt

    policy = RestartPolicy(2, backoff=0.2)
    assert tfos.run(spark, program, num_workers=2, restarts=policy) == {"worker:0": 2, "worker:1": 2}
    told = [record.getMessage() for record in caplog.records if "started again" in record.getMessage()]
    assert told[0].startswith("worker:1 on 127.0.0.1 failed: its process was ended by SIGKILL")
    assert [line.splitlines()[1] for line in told] == [
        "All nodes are started again (restart 1 of 2)",
        "All nodes are started again in 0.2 s (restart 2 of 2)",
    ]


# ---- as many workers as there is room for


@local
def test_a_cluster_takes_what_there_is(spark):
    def program(args, ctx):
        return ctx.num_workers, int(next(iter(ctx.batches(12, shuffle=False)()))["id"].size)

    assert tfos.run(spark, program, num_workers=(2, 8), data=spark.range(48)) == {
        f"worker:{each}": (4, 3) for each in range(4)
    }
    assert len(tfos.run(spark, lambda args, ctx: None, num_workers=(1, 8), num_ps=1, chief=True)) == 3
    assert len(tfos.run(spark, lambda args, ctx: None, num_workers=(1, 2))) == 2
    with pytest.raises(tfos.SlotsError, match="needs 5 task slots .* has 4"):
        tfos.run(spark, lambda args, ctx: None, num_workers=(5, 8))


# ---- executors


@pytest.mark.masters("standalone")
def test_an_executor_that_dies_is_replaced(spark):
    def program(args, ctx):
        if ctx.attempt == 0:
            time.sleep(3600)
        return ctx.attempt

    with tfos.Cluster(spark, program, num_workers=2, restarts=3) as cluster:
        time.sleep(1)
        psutil.Process(cluster.nodes[1].jvm_pid).kill()
        assert set(cluster.shutdown().values()) < {1, 2, 3}


@pytest.mark.masters("standalone")
@pytest.mark.parametrize("scope", ["cluster", "node"])
@pytest.mark.parametrize(
    ("ending", "preempted", "saves"),
    [
        (signal.SIGPWR, True, False),
        pytest.param(signal.SIGPWR, True, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, False, marks=pytest.mark.slow),
    ],
)
def test_an_executor_that_spark_decommissions_uses_up_no_restart(spark, scope, ending, preempted, saves):
    """Also if its program raises, since Spark removes the directory in which that writes, before its end is known."""

    def program(args, ctx):
        while ctx.attempt == 0 and (scope == "cluster" or ctx.index == 1):
            if saves:
                Path(os.environ["SPARK_LOCAL_DIRS"], "model").write_bytes(bytes(1000))
            time.sleep(0.001 if saves else 3600)
        return ctx.attempt

    policy = tfos.RestartPolicy(0, max_preemptions=1, scope=scope)
    with nullcontext() if preempted else pytest.raises(tfos.NodeError, match="executor") as caught:
        with tfos.Cluster(spark, program, num_workers=2, restarts=policy) as cluster:
            time.sleep(1)
            os.kill(cluster.nodes[1].jvm_pid, ending)  # on SIGPWR an executor asks Spark to decommission it
            assert cluster.shutdown()["worker:1"] == 1
    assert preempted or caught.value.cause in ("executor_lost", "lost")
