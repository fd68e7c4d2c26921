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
from tests.support.programs import wait_for


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
        pytest.param({}, {}, id="tensorflow"),
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


def coordinate(args, ctx):
    """Take steps on the chief until it is to save; return the step that was saved, and who goes."""
    if ctx.job != "chief":
        ctx.join_server()
    import tensorflow as tf

    checkpoint, steps = ctx.checkpoint(args["directory"]), tf.Variable(0)
    for step in range(400):
        steps.assign_add(1)
        time.sleep(0.05)
        if step == 10:
            Path(args["now"]).touch()
        if checkpoint.is_due():
            checkpoint.save(tf.train.Checkpoint(steps=steps), steps)
            break
    return checkpoint.latest().step, ctx.preemption().nodes


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.masters("local")
def test_the_chief_of_parameter_servers_saves_alone(spark, tmp_path):
    args = {"directory": str(tmp_path / "saved"), "now": str(tmp_path / "now")}
    with tfos.Cluster(
        spark, coordinate, args, num_workers=1, num_ps=1, chief=True, nodes=tfos.Nodes(notice=args["now"])
    ) as cluster:
        step, nodes = cluster.join()["chief:0"]
    assert 11 < step < 400
    assert nodes == ("ps:0", "chief:0", "worker:0")


def beside(args, ctx):
    """Train slowly, with an evaluator, and show that the second epoch has begun; return where each checkpoint was."""
    import keras
    import numpy as np

    def build():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    def end_step(batch, logs):
        time.sleep(0.1)
        if batch >= 2 and ctx.attempt == 0 and epochs == [0, 1]:
            Path(args["now"]).touch()

    if ctx.job == "evaluator":
        rows = np.ones((8, 2), "float32"), np.ones(8, "float32")
        return ctx.evaluate_checkpoints(build, rows, directory=args["directory"])
    epochs = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epochs.append(epoch), on_train_batch_end=end_step
    )
    checkpoint = ctx.checkpoint(args["directory"], keep=9)
    with ctx.strategy().scope():
        model = build()
    model.fit(ctx.dataset(10, seed=3), epochs=4, verbose=0, callbacks=[checkpoint.callback(), note])
    saved = [(each.epoch, each.batch) for each in checkpoint._store.complete()]
    return ctx.attempt, ctx.num_workers, saved


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.masters("local")
def test_a_notice_beside_an_evaluator_saves_within_an_epoch_and_each_epoch_is_evaluated_once(spark, tmp_path):
    """The evaluator is on the host that goes, too."""
    place = tmp_path / "notice"
    args = {"directory": str(tmp_path / "saved"), "now": str(tmp_path / "now")}
    settings = {"evaluator": True, "restarts": 1, "nodes": tfos.Nodes(notice=str(place))}
    with tfos.Cluster(spark, beside, args, num_workers=2, **settings) as cluster:
        give_when = (cluster, tmp_path / "now", lambda _: place.write_text("taken"))
        Thread(target=give, args=give_when, daemon=True).start()
        cluster.train(points(spark))
        results = cluster.join()
    attempt, _, saved = results["worker:0"]
    assert attempt == 0
    assert len([batch for _, batch in saved if batch]) == 1
    assert results.validation["epoch"] == [0, 1, 2, 3]
    (notice,) = [each for each in results.metrics.events if each.kind == "notice"]
    assert "evaluator:0" in notice.text


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.masters("local")
def test_a_slot_that_becomes_free_beside_an_evaluator_is_taken_in_by_a_worker(spark, tmp_path):
    """Of four slots another cluster holds two, until the second epoch has begun."""
    args = {"directory": str(tmp_path / "saved"), "now": str(tmp_path / "now")}

    def hold(ctx):
        Path(f"{tmp_path}/held-{ctx.index}").touch()
        while not os.path.exists(args["now"]):
            time.sleep(0.1)

    holder = Thread(target=lambda: tfos.run(spark, hold, num_workers=2))
    holder.start()
    wait_for(lambda: len(list(tmp_path.glob("held-*"))) == 2, 60)
    settings = {"evaluator": True, "restarts": 1, "nodes": tfos.Nodes(grow_after=1.0)}
    try:
        with tfos.Cluster(spark, beside, args, num_workers=(1, 2), **settings) as cluster:
            cluster.train(points(spark))
            results = cluster.join()
    finally:
        Path(args["now"]).touch()
        holder.join()
    assert [result[:2] for result in results.values()] == [(1, 2), (1, 2)]
    assert [each.kind for each in results.metrics.events] == ["started", "restart", "started"]
    assert results.validation["epoch"] == [0, 1, 2, 3]


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


def count_alone(args, ctx):
    """Take steps alone until the chief has been started again; it saves when it is to, and goes on there."""
    import tensorflow as tf

    steps, ended = tf.Variable(0), Path(args["ended"])
    state, checkpoint = tf.train.Checkpoint(steps=steps), ctx.checkpoint(args["directory"])
    first = checkpoint.restore(state) if ctx.is_chief else 0
    for step in range(first + 1, 4000):
        steps.assign_add(1)
        time.sleep(0.02)
        if step == 10 and ctx.is_chief:
            Path(args["now"]).touch()
        if checkpoint.is_due():
            assert ctx.is_chief
            checkpoint.save(state, step)
        if ended.exists():
            break
        if ctx.is_chief and ctx.attempt and step == first + 10:
            ended.touch()
    return ctx.attempt, first, int(steps) - step, checkpoint.latest().step


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.masters("standalone")
def test_a_chief_that_is_started_again_alone_has_saved_before(spark, tmp_path, caplog):
    args = {name: str(tmp_path / name) for name in ("directory", "now", "ended")}
    policy = tfos.RestartPolicy(0, max_preemptions=1, scope="node")
    with (
        caplog.at_level(logging.WARNING),
        tfos.Cluster(spark, count_alone, args, num_workers=2, restarts=policy) as cluster,
    ):
        give(cluster, Path(args["now"]), lambda _: os.kill(cluster.nodes[0].jvm_pid, signal.SIGPWR))
        results = cluster.join()
    (attempt, first, difference, saved), (other_attempt, *_) = results["worker:0"], results["worker:1"]
    assert (attempt, other_attempt) == (1, 0)
    assert first == saved > 10
    assert difference == 0
    assert "and it has saved" in caplog.text
    assert "while the others continue (preemption 1 of 1)" in caplog.text
