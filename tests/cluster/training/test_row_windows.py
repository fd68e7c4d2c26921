"""Windows of ordered rows on real nodes: the weights are those of one process with the same windows in each step."""

from contextlib import nullcontext
from datetime import timedelta

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import killer_at_step

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
LENGTH, HORIZON, BATCH, EPOCHS, RATE = 4, 2, 8, 2, 0.05
STORES, DAYS, MISSING = 7, 30, 11  # each store lacks a day, before and after which no window reaches
WINDOWS = STORES * sum(max(0, days - LENGTH - HORIZON + 1) for days in (MISSING, DAYS - MISSING - 1))


def train(args, ctx):
    """Train a linear model on windows; return its batches and its weights."""
    import keras

    window = tfos.Window("store", "day", length=LENGTH, horizon=HORIZON, gap=timedelta(days=1))
    given = {"features": "sales", "label": "sales", "window": window, "seed": 3}
    with nullcontext() if args["on_jax"] else ctx.strategy().scope():
        layer = keras.layers.Dense(HORIZON, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((LENGTH,)), layer])
        model.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=False)
    checkpoint = ctx.checkpoint(args["directory"]) if args["directory"] else None
    callbacks = [checkpoint.callback(every=3), killer_at_step(ctx, args["dies"], victim=1)] if checkpoint else []
    epochs = ctx.batches(BATCH, **given)
    batches = [batch for _ in range(0 if checkpoint else EPOCHS) for batch in epochs]
    model.fit(ctx.dataset(BATCH, **given), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return batches, model.get_weights()[0]


@pytest.fixture
def rows(spark):
    frame = spark.range(0, STORES * DAYS, 1, 5).select(
        f.concat(f.lit("s"), f.col("id") % STORES).alias("store"), f.floor(f.col("id") / STORES).cast("int").alias("at")
    )
    day = f.date_add(f.lit("2026-01-01").cast("date"), f.col("at"))
    sales = f.sin(f.col("at") + f.length("store") + f.substring("store", 2, 9).cast("int"))
    return frame.where(f"at != {MISSING}").select("store", day.alias("day"), sales.cast("float").alias("sales"))


def run(spark, rows, workers, **options):
    args = {"on_jax": False, "directory": "", "dies": 0, **options}
    env = {"KERAS_BACKEND": "jax"} if args["on_jax"] else {}
    restarts = int(bool(args["directory"]))
    with tfos.Cluster(spark, train, args, num_workers=workers, env=env, restarts=restarts) as cluster:
        cluster.train(rows.repartition(6, "store"), rebalance=False)
        return list(cluster.shutdown().values())


def trained(steps):
    """Return the weights after these steps of all workers together, in one process."""
    kernel = np.zeros((LENGTH, HORIZON))
    for step in steps:
        x, y, weights = (np.concatenate([each[part] for each in step]) for part in range(3))
        real = ~np.signbit(weights)
        kernel -= RATE * 2 * x[real].T @ (x[real] @ kernel - y[real]) / real.sum() / HORIZON
    return kernel


@pytest.mark.parametrize(
    ("workers", "on_jax"),
    [
        pytest.param(2, False, id="tensorflow"),
        pytest.param(3, False, marks=pytest.mark.slow, id="three"),
        pytest.param(2, True, marks=pytest.mark.slow, id="jax"),
    ],
)
def test_the_weights_are_those_of_one_process_with_the_same_steps(spark, rows, workers, on_jax):
    if on_jax:
        pytest.importorskip("jax", reason="JAX is installed by users")
    found = run(spark, rows, workers, on_jax=on_jax)
    steps = list(zip(*(own for own, _ in found), strict=True))  # as many on all
    assert sum((~np.signbit(each[2])).sum() for step in steps for each in step) == EPOCHS * WINDOWS
    for _, kernel in found:
        np.testing.assert_allclose(kernel, trained(steps), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_restart_within_an_epoch_has_the_same_windows_in_each_step(spark, rows, tmp_path):
    (_, expected), _ = run(spark, rows, 2)
    for _, kernel in run(spark, rows, 2, directory=str(tmp_path / "checkpoints"), dies=20):
        np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_key_whose_rows_are_on_two_workers_is_named(spark, rows):
    with (
        pytest.raises(tfos.NodeError, match=r"rows of the key 's\d' are on workers \d and \d"),
        tfos.Cluster(spark, train, {"on_jax": False, "directory": "", "dies": 0}, num_workers=2) as cluster,
    ):
        cluster.train(rows)
