"""Training that begins with the first rows of a feed and keeps them for its further epochs."""

import os
import signal
import time
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model

pytestmark = pytest.mark.masters("local")
STEPS = 15  # of an epoch: the larger share of small_frame(spark, [40, 80, 40, 40]) has 120 rows
HELD_STEPS = 13  # where the tasks have divided the rows: 100 for each node


def fit(args, ctx):
    """Fit for three epochs; note the first step, and die once if asked to."""
    import warnings

    import keras
    import tensorflow as tf

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            Path(args["directory"], f"{ctx.index}.begun").touch()
            if (self.epoch, batch) == args.get("dies_at") and not ctx.attempt and ctx.index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

    warnings.filterwarnings("error", message="Your input ran out of data")
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    data = ctx.dataset(16, features="features", label="label")
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints", keep=99)
    history = model.fit(
        data,
        epochs=3,
        verbose=2,
        validation_data=ctx.feed().validation_dataset(16, features="features", label="label")
        if ctx.feed().validation
        else None,
        callbacks=[Note(), checkpoint.callback(every=4)],
    )
    return history.epoch, int(model.optimizer.iterations.numpy()), ctx.feed().rows, sorted(history.history)


def after_the_first_step(directory):
    """Return a function that holds back the second and the fourth partition until both workers have trained."""

    def hold(batches):
        from pyspark import TaskContext

        late = TaskContext.get().partitionId() in (2, 3)
        for batch in batches:
            while late and len(list(Path(directory).glob("*.begun"))) < 2:
                time.sleep(0.02)
            yield batch

    return hold


def test_training_begins_before_the_last_rows_have_come(spark, tmp_path):
    frame = small_frame(spark, [40, 80, 40, 40])
    late = frame.mapInArrow(after_the_first_step(str(tmp_path)), frame.schema)
    args = {"directory": str(tmp_path)}
    with tfos.Cluster(spark, fit, args, num_workers=2) as cluster:
        cluster.train(late, validation=frame.limit(10), start="first_rows", feed_timeout=60)
        results = cluster.join()
    assert {rows for _, _, rows, _ in results.values()} == {80, 120}
    for epochs, iterations, _, history in results.values():
        assert (epochs, iterations) == ([0, 1, 2], 3 * STEPS)
        assert "val_loss" in history


def test_held_nodes_begin_with_the_first_rows(spark, tmp_path):
    """The rows to validate on come among the others; the tasks divide all rows evenly."""
    frame = small_frame(spark, [60, 140])
    args = {"directory": str(tmp_path)}
    results = tfos.run(
        spark, fit, args, num_workers=2, data=tfos.Data(frame, validation=frame.where("id < 10"), start="first_rows")
    )
    assert sum(rows for _, _, rows, _ in results.values()) == 200
    for epochs, iterations, rows, history in results.values():
        assert abs(rows - 100) <= 10
        assert (epochs, iterations % 3) == ([0, 1, 2], 0)
        assert iterations in (3 * HELD_STEPS, 3 * (HELD_STEPS + 1))
        assert "val_loss" in history
    assert len({iterations for _, iterations, _, _ in results.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("dies_at", [(0, 9), (1, 9)])
def test_a_restart_feeds_anew_and_resumes_after_the_first_epoch(spark, tmp_path, dies_at, held):
    """No checkpoint is written within the first epoch, so that no row of it comes twice. The history has all epochs."""
    args = {"directory": str(tmp_path), "dies_at": dies_at}
    frame, settings = small_frame(spark, [40, 80, 40, 40]), {"num_workers": 2, "restarts": 1}
    if held:
        results = tfos.run(spark, fit, args, data=tfos.Data(frame, start="first_rows"), **settings)
    else:
        with tfos.Cluster(spark, fit, args, **settings) as cluster:
            cluster.train(frame, start="first_rows", cache="memory")
            results = cluster.join()
    steps = HELD_STEPS if held else STEPS
    assert [each[:2] for each in results.values()] == [([0, 1, 2], 3 * steps)] * 2
    saved = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "checkpoints").iterdir())
    assert saved[0] == steps


def pass_over_parts(args, ctx):
    """Note the rows of two epochs; worker 1 dies in the first one, with a part of its rows taken."""
    batches = ctx.feed().batches(1000, features="id")
    found = []
    for epoch in range(2):
        ids = []
        for step, batch in enumerate(batches):
            ids += batch["id"][batch["sample_weight"] > 0].tolist()
            if (epoch, step, ctx.attempt, ctx.index) == (0, 60, 0, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        found.append((step, ids))
    return ctx.attempt, found


@pytest.mark.slow
def test_each_row_of_a_held_cluster_comes_once_though_a_node_is_killed(spark):
    frame = spark.range(0, 200_000, 1, 4).selectExpr("id", "repeat('x', 16) as text")  # 2 MB or more for each node
    results = tfos.run(spark, pass_over_parts, num_workers=2, data=tfos.Data(frame, start="first_rows"), restarts=1)
    assert {attempt for attempt, _ in results.values()} == {1}
    for epoch in range(2):
        passes = [found[epoch] for _, found in results.values()]
        assert sorted(row for _, ids in passes for row in ids) == list(range(200_000))
        assert len({steps for steps, _ in passes}) == 1


def test_a_loop_of_ones_own(spark, tmp_path):
    """It passes over the rows again in full, and can't save within the first epoch, nor begin there."""

    def program(args, ctx):
        feed = ctx.feed()
        checkpoint = ctx.checkpoint(args)
        batches = feed.batches(10, features="id")
        found = [feed.total_rows, []]
        for batch in batches:
            found[1] += batch["id"].tolist()
            if len(found[1]) == 10:
                import tensorflow as tf

                state = tf.train.Checkpoint(weight=tf.Variable(0.0))
                with pytest.raises(tfos.CheckpointError, match=r"feed 0 began with its first rows .*save after that"):
                    checkpoint.save(state, 1)
        checkpoint.save(state, 6)
        with pytest.raises(tfos.FeedError, match=r"first_step=3: the first epoch has 6 steps, .*start='all_rows'"):
            next(iter(feed.batches(10, first_step=3)))
        rest = [row for batch in feed.batches(10, features="id", first_step=8) for row in batch["id"].tolist()]
        again = [row for batch in batches for row in batch["id"].tolist()]
        return *found, again, rest, feed.total_rows, feed.steps(10)

    with tfos.Cluster(spark, program, str(tmp_path), num_workers=1) as cluster:
        cluster.train(spark.range(0, 60, 1, 3), start="first_rows")
        before, first, again, rest, after, steps = cluster.join()["worker:0"]
    assert (before, after, steps) == (None, 60, 6) or (before, after, steps) == (60, 60, 6)
    assert sorted(first) == sorted(again) == list(range(60))
    assert len(rest) == 40
    assert rest == again[20:]


def test_what_does_not_go_with_first_rows_is_refused(spark):
    frame = small_frame(spark, [10, 10])
    flagged = frame.withColumn("held_out", frame.id > 5)
    with tfos.Cluster(spark, lambda args, ctx: None, num_workers=1) as cluster:
        with pytest.raises(tfos.SpecError, match="start='some_rows': expected 'all_rows' or 'first_rows'"):
            cluster.train(frame, start="some_rows")
        with pytest.raises(tfos.FeedError, match=r"start='first_rows' the rows to validate on must be a DataFrame"):
            cluster.train(flagged, validation="held_out", start="first_rows")
    with pytest.raises(tfos.SpecError, match="start='soon': expected 'all_rows' or 'first_rows'"):
        tfos.run(spark, lambda ctx: None, data=tfos.Data(frame, start="soon"))
    with pytest.raises(tfos.SpecError, match="there is no data to train on"):
        tfos.run(spark, lambda ctx: None, data=tfos.Data(None, start="first_rows"))
