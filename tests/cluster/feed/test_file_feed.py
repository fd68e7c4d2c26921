"""Files that the nodes read themselves: each row on one worker, once per epoch, in as many steps on all."""

import shutil

import pyarrow.compute as pc
import pytest

import tensorflowonspark as tfos
from tests.support.tables import make_delta, make_iceberg

pytestmark = pytest.mark.masters("local")


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """The rows 0 to 999 as TFRecords in files of very different lengths, and as Parquet with many row groups."""
    path = tmp_path_factory.mktemp("files")
    frame = spark.range(1000).selectExpr("id", "array(float(id), 1f) as x", "if(id < 700, 'a', 'b') as part")
    tfos.write_tfrecord(frame.coalesce(1), str(path / "records"), partition_by=["part"])
    sizes = frame.repartitionByRange(3, "id").write.option("parquet.block.size", 1024)
    sizes.option("parquet.block.row.check.min", 50).partitionBy("part").parquet(str(path / "parquet"))
    make_delta(path / "delta", range(1000))
    (path / "iceberg").write_text(make_iceberg(path, range(1000)))
    yield path
    shutil.rmtree(path)


def epochs(args, ctx):
    """Return the rows of two epochs, and the columns."""
    feed = getattr(ctx, args["call"])(args["path"], **args.get("options", {}))
    steps = []
    for _ in range(2):
        seen = []
        for batch in feed.batches(10, seed=3, shapes={"x": (2,)})():
            real = batch["sample_weight"] != 0
            assert (batch["x"][real, 0] == batch["id"][real]).all()
            seen.append(batch["id"][real].tolist())
        steps.append(seen)
    return {"columns": sorted(feed.columns), "rows": feed.rows, "steps": steps}


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("read_tfrecord", {}),
        ("read_tfrecord", {"cache": None, "cache_limit": 4_000}),
        ("read_parquet", {}),
        ("read_parquet", {"cache": None}),
    ],
    ids=["records", "records without a cache", "parquet", "parquet without a cache"],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_each_row_once_on_one_worker(spark, files, call, options, workers):
    path = str(files / call.replace("read_", "").replace("tfrecord", "records"))
    results = tfos.run(spark, epochs, {"call": call, "path": path, "options": options}, num_workers=workers)
    assert {tuple(result["columns"]) for result in results.values()} == {("id", "part", "x")}
    assert sum(result["rows"] for result in results.values()) == 1000
    for epoch in range(2):
        steps = [result["steps"][epoch] for result in results.values()]
        assert len({len(each) for each in steps}) == 1
        assert sorted(number for each in steps for step in each for number in step) == list(range(1000))


def test_training_on_own_files_and_feeds_one_after_another(spark, files):
    def program(args, ctx):
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        own = ctx.read_tfrecord(args, columns=["x", "id"])
        data = own.dataset(100, features="x", label="id", shapes={"x": (2,)}, dtypes={"id": "float32"})
        assert data.element_spec[0].shape.as_list() == [None, 2]
        model.fit(data, epochs=1, verbose=0)
        fed = sum(len(batch["id"]) for batch in ctx.feed().batches(10)())
        again = ctx.read_parquet(args.replace("records", "parquet"), columns=["id"], cache="memory")
        return own.total_rows, fed, again.total_rows, model.get_weights()[0].tolist()

    with tfos.Cluster(spark, program, str(files / "records"), num_workers=2) as cluster:
        cluster.train(spark.range(20))
        first, second = cluster.join().values()
    assert first[0] == second[0] == first[2] == 1000
    assert first[1] + second[1] == 20
    assert first[3] == second[3]


@pytest.mark.parametrize("call", ["read_parquet", "read_tfrecord"])
def test_training_on_files_without_a_cache(spark, files, call):
    """Two workers, of which one has fewer rows; a loop resumes in the middle of the second epoch."""

    def program(args, ctx):
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        feed = getattr(ctx, args["call"])(args["path"], columns=["x", "id"], cache=None, cache_limit=20_000)
        options = {"features": "x", "label": "id", "shapes": {"x": (2,)}, "dtypes": {"id": "float32"}}
        history = model.fit(feed.dataset(64, **options), epochs=2, verbose=0)
        steps = feed.steps(64)
        data = feed.dataset(64, **options)
        whole = [y.numpy().tolist() for _ in range(2) for _, y, _ in data]
        rest = [y.numpy().tolist() for _, y, _ in feed.dataset(64, first_step=steps + 3, **options)]
        assert len(whole) == 2 * steps
        return feed.rows, feed.total_rows, history.history["loss"], rest == whole[steps + 3 :]

    args = {"call": call, "path": str(files / call.replace("read_", "").replace("tfrecord", "records"))}
    first, second = tfos.run(spark, program, args, num_workers=2).values()
    assert first[0] + second[0] == first[1] == second[1] == 1000
    assert first[2] == second[2]
    assert first[2][1] < first[2][0]
    assert first[3]
    assert second[3]


@pytest.mark.smoke
def test_a_filter_of_rows_and_tables_on_two_workers(spark, files):
    """Parquet, Delta and Iceberg, in each cache: the same rows pass, each on one worker, in as many steps on all."""

    def program(args, ctx):
        import pyarrow.compute as pc

        rows = pc.field("id") > 420
        found = {}
        for call, source in args.items():
            for cache in (None, "memory"):
                feed = getattr(ctx, call)(source, columns=["x"], filter=rows, cache=cache)
                epochs = [
                    [
                        batch["x"][batch["sample_weight"] != 0, 0].tolist()
                        for batch in feed.batches(10, shapes={"x": (2,)})
                    ]
                    for _ in range(2)
                ]
                found[call, cache] = feed.columns, feed.total_rows, epochs
        return found

    sources = {"parquet": str(files / "parquet"), "delta": str(files / "delta")}
    sources["iceberg"] = (files / "iceberg").read_text()
    args = {f"read_{name}": source for name, source in sources.items()}
    first, second = tfos.run(spark, program, args, num_workers=2).values()
    for key, (columns, total, epochs) in first.items():
        assert (columns, total) == second[key][:2] == (["x"], 579)
        for one, other in zip(epochs, second[key][2], strict=True):
            assert len(one) == len(other) <= 65
            assert sorted(number for step in one + other for number in step) == list(range(421, 1000))


def test_workers_without_row_groups_take_as_many_steps(spark, files):
    rows = pc.field("id") == 3
    args = {"call": "read_parquet", "path": str(files / "parquet"), "options": {"cache": None, "filter": rows}}
    results = tfos.run(spark, epochs, args, num_workers=3).values()
    assert sorted(result["rows"] for result in results) == [0, 0, 1]
    for epoch in range(2):
        steps = [result["steps"][epoch] for result in results]
        assert sorted(steps) == [[[]], [[]], [[3]]]


def test_an_evaluator_reads_all_rows_by_itself(spark, files, tmp_path):
    def program(args, ctx):
        import json
        import time
        from pathlib import Path

        feed = ctx.read_parquet(args["path"], columns=["id"], cache=None)
        found = Path(args["found"])
        if ctx.job == "evaluator":
            ids = [number for batch in feed.batches(10, shuffle=False) for number in batch["id"].tolist()]
            found.with_suffix(".half").write_text(json.dumps([feed.rows, feed.total_rows, len(set(ids))]))
            found.with_suffix(".half").rename(found)
        while not found.exists():
            time.sleep(0.05)
        return feed.rows, feed.total_rows, json.loads(found.read_text())

    args = {"path": str(files / "parquet"), "found": str(tmp_path / "found")}
    first, second = tfos.run(spark, program, args, num_workers=2, evaluator=True).values()
    assert first[0] + second[0] == first[1] == 1000
    assert first[2] == [1000, 1000, 1000]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda args, ctx: ctx.index or ctx.read_tfrecord(args).rows, "worker:1 returned without ctx.read_tfrecord"),
        (
            lambda args, ctx: (ctx.read_tfrecord if ctx.index else ctx.read_parquet)(
                args if ctx.index else args.replace("records", "parquet")
            ),
            "its program called .* and another worker's .* in its place",
        ),
        (lambda args, ctx: ctx.read_tfrecord("/no/such"), "there is no file or directory '/no/such'"),
        (lambda args, ctx: ctx.read_tfrecord(args, columns=["y"]), r"columns=\['y'\]: there is no y, only id, x, part"),
        (lambda args, ctx: ctx.read_parquet(args), "is no Parquet file"),
        (
            lambda args, ctx: ctx.read_parquet(args.replace("records", "parquet"), filter=pc.field("colour") > 3),
            r"filter=\(colour > 3\): No match for FieldRef.Name\(colour\), only id, x, part",
        ),
        (
            lambda args, ctx: ctx.read_parquet(
                args.replace("records", "parquet"), cache=None, filter=pc.field("x").is_null()
            ),
            r"filter=is_null\(x.*\): there are no rows",
        ),
        (
            lambda args, ctx: ctx.read_parquet(args.replace("records", "parquet"), filter=pc.field("id") > ctx.index),
            r"its program called .*filter=\(id > .\)\), and another worker's .*filter=\(id > .\)\) in its place",
        ),
        (lambda args, ctx: ctx.read_tfrecord(args.replace("records", "parquet")), "byte 0: the length of a record"),
    ],
)
def test_what_can_not_be_is_named(spark, files, program, message):
    with pytest.raises(tfos.NodeError, match=message):
        tfos.run(spark, program, str(files / "records"), num_workers=2)
