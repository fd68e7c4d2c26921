"""Feeds with ``order="global"``: a step has the same rows on any number of workers, and the weights are the same."""

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import killer_at_step, network_of_two

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
ROWS, EPOCHS, BATCH = 230, 2, 20


def train(args, ctx):
    """Train a network; return its losses and weights."""
    model = network_of_two(ctx, on_jax=args["on_jax"])
    feed = ctx.read_parquet(args["files"], order="global") if args["files"] else ctx.feed()
    dataset = feed.dataset(BATCH, features="features", label="label", shuffle=args["shuffle"])
    kill = killer_at_step(ctx, args["dies"], victim=ctx.num_workers - 1)
    callbacks = [ctx.checkpoint(args["directory"]).callback(every=3), kill] if args["directory"] else []
    history = model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return history.history["loss"], model.get_weights()


WAYS = {
    "train": {},
    "run": {"held": True},
    "parquet": {"files": True},
    "in order": {"held": True, "shuffle": False},
}


MARKED = ["run", *(pytest.param(each, marks=pytest.mark.slow) for each in WAYS if each != "run")]


@pytest.fixture
def rows(spark):
    """Return rows that are sorted by their label, in partitions of which one is empty and another is large."""
    label = (f.col("id") / ROWS).alias("label")
    made = spark.range(0, ROWS - 60, 1, 6).union(spark.range(0)).union(spark.range(ROWS - 60, ROWS, 1, 1))
    return made.select(f.array(f.sin("id"), f.cos("id")).alias("features"), label)


def run(spark, rows, way, workers, tmp_path, **options):
    """Run a cluster in one of the ways; return what its first worker returns."""
    args = {"files": "", "shuffle": True, "directory": "", "dies": 0, "on_jax": False, **WAYS[way], **options}
    held = args.pop("held", False)
    env = {"KERAS_BACKEND": "jax"} if args["on_jax"] else {}
    if args["files"]:
        args["files"] = str(tmp_path / "files")
        rows.write.mode("ignore").parquet(args["files"])
    if held or args["files"]:
        data = tfos.Data(rows, order="global") if held else None
        return tfos.run(spark, train, args, num_workers=workers, data=data, env=env)["worker:0"]
    with tfos.Cluster(spark, train, args, num_workers=workers) as cluster:
        cluster.train(rows, order="global", feed_timeout=60)
        return cluster.shutdown()["worker:0"]


def check_equal(found, expected):
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", MARKED)
def test_any_number_of_workers_ends_with_the_same_weights(spark, rows, tmp_path, way):
    expected = run(spark, rows, way, 1, tmp_path)
    for workers in (3,) if way == "run" else (2, 3):
        losses, weights = run(spark, rows, way, workers, tmp_path)
        check_equal([losses, *weights], [expected[0], *expected[1]])


@pytest.mark.slow
def test_any_number_of_workers_on_jax(spark, rows, tmp_path):
    pytest.importorskip("jax", reason="JAX is installed by users")
    one, two = (run(spark, rows, "run", workers, tmp_path, on_jax=True) for workers in (1, 2))
    check_equal([two[0], *two[1]], [one[0], *one[1]])


@pytest.mark.slow
@pytest.mark.parametrize(("way", "before", "after"), [("train", 3, 1), ("run", 1, 3), ("parquet", 2, 3)])
def test_other_workers_go_on_to_the_same_weights(spark, rows, tmp_path, way, before, after):
    expected = run(spark, rows, way, before, tmp_path)
    directory = str(tmp_path / "checkpoints")
    with pytest.raises(tfos.NodeError, match="SIGKILL"):
        run(spark, rows, way, before, tmp_path, directory=directory, dies=17)
    _, weights = run(spark, rows, way, after, tmp_path, directory=directory)
    check_equal(weights, expected[1])


WRONG = {
    "other": ({"order": "globl"}, tfos.SpecError),
    "once": ({"order": "global", "cache": None}, tfos.FeedError),
    "first rows": ({"order": "global", "start": "first_rows"}, tfos.FeedError),
    "shuffled": ({"order": "global", "global_shuffle": True}, tfos.FeedError),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_global_order_is_refused_before_anything_starts(spark, rows, name):
    settings, error = WRONG[name]
    with pytest.raises(error, match="order='glob"):
        tfos.run(spark, train, {}, num_workers=2, data=tfos.Data(rows, **settings))
