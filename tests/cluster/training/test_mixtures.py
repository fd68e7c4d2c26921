"""Mixtures: DataFrames in stated shares, in the same steps on any number of workers."""

from collections import Counter

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import killer_at_step, network_of_two

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
ROWS, EPOCHS, BATCH = 200, 2, 15
SHARES = {"web": 0.7, "books": 0.3}


def train(args, ctx):
    """Train a network; return its history and weights."""
    model = network_of_two(ctx, on_jax=args["on_jax"])
    feed = ctx.feed()
    dataset = feed.dataset(BATCH, features="features", label="label")
    kill = killer_at_step(ctx, args["dies"], victim=ctx.num_workers - 1)
    callbacks = [ctx.checkpoint(args["directory"]).callback(every=3), kill] if args["directory"] else []
    validation = feed.validation_dataset(BATCH, features="features", label="label") if feed.validation else None
    history = model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=validation)
    return history.history, model.get_weights()


def validate(args, ctx):
    """Train; return the history, with the losses of each source's validation rows, and those of the last weights."""
    import keras

    keras.utils.set_random_seed(7)

    class BySource(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            for name, rows in validation.items():
                found = self.model.evaluate(rows, verbose=0, return_dict=True)
                logs |= {f"val_{name}_{metric}": value for metric, value in found.items()}

    with ctx.strategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    options = {"features": "features", "label": "label"}
    validation = {name: ctx.validation_dataset(BATCH, **options, only=name) for name in SHARES}
    history = model.fit(ctx.dataset(BATCH, **options), epochs=EPOCHS, verbose=0, callbacks=[BySource()])
    return history.history, model.get_weights()


def read(args, ctx):
    """Return the rows of each step of two epochs on this worker, with the numbers of their sources."""
    if args["files"]:
        paths = {name: (args["files"][name], share) for name, share in SHARES.items()}
        feed = getattr(ctx, f"read_{args['format']}")(paths, epoch_rows=ROWS)
    else:
        feed = ctx.feed()
    steps, batches = [], feed.batches(BATCH, features="id", source="number")
    for _ in range(EPOCHS):
        steps += [_rows(batch) for batch in batches]
    return steps


def _rows(batch):
    real = ~np.signbit(batch["sample_weight"])
    return list(zip(batch["id"][real].tolist(), batch["number"][real].tolist(), strict=True))


@pytest.fixture
def sources(spark):
    """Return two sources: a small one, one partition of which is empty, and a large one with another column order."""

    def columns():
        return f.array(f.sin("id"), f.cos("id")).alias("features"), (f.col("id") / 100).alias("label"), f.col("id")

    web = spark.range(0, 40, 1, 1).union(spark.range(0)).select(*columns())
    books = spark.range(1000, 1300, 1, 4).select(*reversed(columns()))
    return {"web": (web, SHARES["web"]), "books": (books, SHARES["books"])}


def run(spark, sources, workers, *, held=False, **options):
    """Train on a mixture; return what its workers return."""
    args = {"directory": "", "dies": 0, "on_jax": False, **options}
    env = {"KERAS_BACKEND": "jax"} if args["on_jax"] else {}
    validation = {"books": sources["books"][0].limit(30)}
    data = tfos.Data(sources, epoch_rows=ROWS, validation=validation)
    if held:
        return tfos.run(spark, train, args, num_workers=workers, data=data, env=env).by_worker
    with tfos.Cluster(spark, train, args, num_workers=workers, env=env) as cluster:
        cluster.train(sources, epoch_rows=ROWS, validation=validation, feed_timeout=60)
        assert cluster.metrics().sources == {"web": 140, "books": 60}
        results = cluster.shutdown()
    return results.by_worker


def all_steps(results):
    """Return the rows of each step on all workers, sorted."""
    return [sorted(sum(own, [])) for own in zip(*results, strict=True)]


def check_steps(steps):
    """Check two epochs: the shares, and that each source is passed over before it repeats a row."""
    assert [len(each) for each in steps] == 2 * [*[BATCH] * 13, ROWS % BATCH]
    seen = Counter(sum(steps, []))
    web, books = ({row: count for (row, own), count in seen.items() if own == number} for number in range(2))
    assert web == dict.fromkeys(range(40), 7)
    assert sum(books.values()) == 120
    assert set(books) <= set(range(1000, 1300))
    assert set(books.values()) == {1}


def check_equal(found, expected):
    """Check the losses and the weights."""
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(found[0][name], expected[0][name], rtol=1e-4, atol=1e-6)
    for each, wanted in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.smoke
def test_any_number_of_workers_reads_the_same_steps_in_the_stated_shares(spark, sources):
    one, three = (read_fed(spark, sources, workers) for workers in (1, 3))
    assert three == one
    check_steps(one)


def read_fed(spark, sources, workers):
    with tfos.Cluster(spark, read, {"files": {}}, num_workers=workers) as cluster:
        cluster.train(sources, epoch_rows=ROWS, feed_timeout=60)
        assert cluster.metrics().sources == {"web": 140, "books": 60}
        return all_steps(cluster.shutdown().by_worker)


@pytest.mark.parametrize("kind", ["parquet", pytest.param("tfrecord", marks=pytest.mark.slow)])
def test_sources_of_files(spark, sources, tmp_path, kind):
    args = {"files": {name: str(tmp_path / name) for name in sources}, "format": kind}
    if kind == "tfrecord":
        tfos.register_tfrecord(spark)
    for (name, (frame, _)), columns in zip(sources.items(), (["label", "id"], ["id", "label"]), strict=True):
        frame.select(columns).write.mode("append").format(kind).save(args["files"][name])
    one, two = (all_steps(tfos.run(spark, read, args, num_workers=workers).by_worker) for workers in (1, 2))
    assert two == one
    check_steps(one)


WRONG_FILES = {
    "epoch_rows is for a mixture": lambda ctx, path: ctx.read_parquet(path, epoch_rows=5),
    "paths: the shares of a mixture must add up to 1": lambda ctx, path: ctx.read_parquet({"a": (path, 0.5)}),
    "a mixture is for rows that are kept": lambda ctx, path: ctx.read_parquet({"a": (path, 1)}, cache=None),
    "source 'b': column 'x' is missing": lambda ctx, path: ctx.read_parquet(
        {"a": (path, 0.5), "b": (f"{path}/../other", 0.5)}
    ),
}


def test_files_that_are_no_mixture_are_named(spark, tmp_path):
    path = str(tmp_path / "rows")
    spark.range(9).withColumn("x", f.col("id")).write.parquet(path)
    spark.range(9).write.parquet(str(tmp_path / "other"))

    def errors(path, ctx):
        found = {}
        for text, call in WRONG_FILES.items():
            try:
                call(ctx, path)
            except tfos.SpecError as error:
                found[text] = str(error)
        return found

    found = tfos.run(spark, errors, path)["worker:0"]
    assert [text for text in WRONG_FILES if text not in found.get(text, "")] == []


@pytest.mark.slow
def test_any_number_of_workers_trains_alike(spark, sources):
    one, three = (run(spark, sources, workers) for workers in (1, 3))
    check_equal(three[0], one[0])


@pytest.mark.slow
@pytest.mark.parametrize("on_jax", [False, True])
def test_workers_that_hold_their_tasks(spark, sources, on_jax):
    if on_jax:
        pytest.importorskip("jax", reason="JAX is installed by users")
    one, two = (run(spark, sources, workers, held=True, on_jax=on_jax) for workers in (1, 2))
    check_equal(two[0], one[0])


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_other_workers_go_on_within_an_epoch(spark, sources, tmp_path, before, after):
    expected = run(spark, sources, before)
    directory = str(tmp_path / "checkpoints")
    with pytest.raises(tfos.NodeError, match="SIGKILL"):
        run(spark, sources, before, directory=directory, dies=17)
    found = run(spark, sources, after, directory=directory)
    for each, wanted in zip(found[0][1], expected[0][1], strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_each_source_is_validated_by_itself(spark, sources):
    validation = {"books": sources["books"][0].limit(31), "web": sources["web"][0].limit(9)}
    with tfos.Cluster(spark, validate, None, num_workers=2) as cluster:
        cluster.train(sources, epoch_rows=ROWS, validation=validation, feed_timeout=60)
        results = cluster.join()
        seen = cluster.metrics().epochs[-1].values
    history, (kernel, bias) = results["worker:0"]
    for name, frame in validation.items():
        rows = frame.toPandas()
        errors = np.stack(rows["features"]) @ kernel[:, 0] + bias - rows["label"]
        assert history[f"val_{name}_loss"][-1] == pytest.approx((errors**2).mean(), rel=1e-4)
        assert seen[f"val_{name}_loss"] == pytest.approx(history[f"val_{name}_loss"][-1])


@pytest.mark.slow
def test_a_column_marks_rows_to_validate_on(spark, sources):
    marked = {
        name: (frame.withColumn("held", f.col("id") % 10 == 0), share) for name, (frame, share) in sources.items()
    }

    def ids(args, ctx):
        feed = ctx.feed()
        batches = list(feed.validation_batches(10, features="id", source="number"))
        real = [~np.signbit(each["sample_weight"]) for each in batches]
        held = [
            pair
            for each, own in zip(batches, real, strict=True)
            for pair in zip(each["id"][own].tolist(), each["number"][own].tolist(), strict=True)
        ]
        return held, feed.total_rows

    results = tfos.run(spark, ids, None, num_workers=2, data=tfos.Data(marked, validation="held")).by_worker
    assert results[0][1] == 306
    assert sorted(sum((held for held, _ in results), [])) == [
        *((row, 0) for row in range(0, 40, 10)),
        *((row, 1) for row in range(1000, 1300, 10)),
    ]


def wrong(spark):
    """Return what is wrong with a mixture, by a part of its error."""
    a, b = spark.range(10), spark.range(5)
    named = b.withColumnRenamed("id", "ID")
    return {
        "add up to 1, and these make 0.9: 'a': 0.7, 'b': 0.2": ({"a": (a, 0.7), "b": (b, 0.2)}, {}),
        "(DataFrame[id: bigint], 0): expected a pair": ({"a": (a, 1.0), "b": (b, 0)}, {}),
        "nan): expected a pair": ({"a": (a, 1.0), "b": (b, float("nan"))}, {}),
        "at least one source": ({}, {}),
        "data['a']=DataFrame[id: bigint]: expected a pair": ({"a": a}, {}),
        "has no name": ({1: (a, 1.0)}, {}),
        "source 'b': column 'id' is missing": ({"a": (a, 0.5), "b": (named, 0.5)}, {}),
        "source 'b': column 'id' is int, and in the first source bigint": (
            {"a": (a, 0.5), "b": (b.selectExpr("cast(id AS int) AS id"), 0.5)},
            {},
        ),
        "'b' is a stream": ({"a": (a, 0.5), "b": (spark.readStream.format("rate").load(), 0.5)}, {}),
        "epoch_rows=0": ({"a": (a, 1.0)}, {"epoch_rows": 0}),
        "source 'b' would have no row": ({"a": (a, 0.9), "b": (b, 0.1)}, {"epoch_rows": 4}),
        "did you mean 'web'": ({"web": (a, 1.0)}, {"validation": {"wep": b}}),
        "by the names of sources": ({"web": (a, 1.0)}, {"validation": b}),
        "pass a dict as data": (a, {"epoch_rows": 5}),
        "for a mixture: pass a dict": (a, {"validation": {"a": b}}),
        "a mixture is for rows that are kept": ({"a": (a, 1.0)}, {"cache": None}),
    }


def test_what_is_no_mixture_is_refused_before_anything_starts(spark):
    for text, (data, settings) in wrong(spark).items():
        with pytest.raises((tfos.SpecError, tfos.FeedError)) as caught:
            tfos.run(spark, train, {}, num_workers=2, data=tfos.Data(data, **settings))
        assert text in str(caught.value)


def test_a_source_without_rows_is_named_by_the_programs(spark, sources):
    sources["none"] = sources["books"][0].where("id < 0"), 0.1
    sources["books"] = sources["books"][0], 0.2
    with pytest.raises(tfos.NodeError, match="source 'none' of the mixture has no rows"):
        tfos.run(spark, lambda ctx: ctx.dataset(10), num_workers=2, data=tfos.Data(sources))
