"""The line at the end of a training, for each cause on real workers."""

import logging
import time
from functools import partial

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver import advice
from tests.support.programs import small_frame, small_model


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch):
    """Let trainings of less than a second count, which the tests can afford."""
    monkeypatch.setattr(advice.Threshold, "LEAST_SECONDS", 0.3)


@pytest.fixture
def fed_at_once(monkeypatch):
    """Leave out the time of feeding, in which a new Spark session starts its Python workers."""
    monkeypatch.setattr(advice.Threshold, "FEEDING", 2.0)


def advice_after(spark, program, frame, args=None, **settings):
    with tfos.Cluster(spark, program, args, num_workers=2) as cluster:
        cluster.train(frame, **settings)
        found = cluster.advice
        assert cluster.join()
        assert cluster.advice == found
    return found


def slow(rows, seconds):
    """Return rows of which each batch takes some time."""

    def compute(batches, seconds):
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return rows.mapInArrow(partial(compute, seconds=seconds), rows.schema)


def compute_for(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def loop(args, ctx):
    for _ in range(args["epochs"]):
        for _ in ctx.batches(8, features="features", label="label"):
            compute_for(args["step"])


def fit(args, ctx):
    import keras
    import tensorflow as tf

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.index == 1:
                compute_for(args)

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    model.fit(ctx.dataset(8, features="features", label="label"), epochs=4, verbose=0, callbacks=[Slow()])


@pytest.mark.masters("local")
@pytest.mark.usefixtures("fed_at_once")
def test_steps_that_compute_are_named_in_one_line(spark, caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark.nodes")
    found = advice_after(spark, loop, small_frame(spark, [100, 100]), {"epochs": 3, "step": 0.02})
    assert found.startswith("computing bounded it: ")
    lines = [line for line in caplog.messages if line.startswith("[training]")]
    assert [line.partition("goodput")[0] for line in lines] == [f"[training] {found}", "[training] "]


@pytest.mark.masters("local")
@pytest.mark.usefixtures("fed_at_once")
def test_with_a_higher_log_level_the_line_is_not_shown(spark, caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark.nodes")
    args = {"epochs": 3, "step": 0.02}
    with tfos.Cluster(spark, loop, args, num_workers=2, logs=tfos.Logs(log_level="WARNING")) as cluster:
        cluster.train(small_frame(spark, [100, 100]))
        assert cluster.advice.startswith("computing bounded it: ")
    assert "[training]" not in caplog.text


@pytest.mark.masters("local")
def test_a_held_cluster_shows_the_line_too(spark, caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark.nodes")
    args = {"epochs": 3, "step": 0.02}
    tfos.run(spark, loop, args, num_workers=2, data=small_frame(spark, [100, 100]))
    assert caplog.text.count("[training] computing bounded it: ") == 1


@pytest.mark.masters("local")
def test_rows_that_come_slowly_bound_a_stream(spark):
    rows = slow(small_frame(spark, [20] * 20), 0.3)
    found = advice_after(spark, loop, rows, {"epochs": 1, "step": 0.001}, cache=None)
    assert found.startswith("waiting for rows bounded it: reading them took ")


@pytest.mark.masters("local")
def test_rows_that_come_slowly_keep_all_steps_of_a_cached_feed_waiting(spark):
    rows = slow(small_frame(spark, [20] * 8), 1.0)
    found = advice_after(spark, loop, rows, {"epochs": 1, "step": 0.001})
    assert found.startswith("waiting for rows bounded it: all steps waited for ")
    assert "start='first_rows'" in found


@pytest.mark.masters("local")
@pytest.mark.usefixtures("fed_at_once")
def test_one_slow_worker_bounds_all_that_train_in_step(spark):
    found = advice_after(spark, fit, small_frame(spark, [100, 100]), 0.1)
    assert found.startswith("waiting for other workers bounded it: worker:1 on ")
