"""Feeds through real Spark: splits, streams, answers, and what goes wrong."""

import os
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.driver.feed import announcer, sources
from tests.support.programs import all_ids, read, small_frame, wait_for


@pytest.mark.smoke
def test_rows_reach_the_programs(spark):
    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        cluster.train(small_frame(spark, [50, 3, 0, 40]))
        results = cluster.join()
    assert all_ids(results) == list(range(93))
    assert len({feeds[0][1] for feeds in results.values()}) == 1


@pytest.mark.masters("local")
def test_feeds_of_all_kinds_follow_each_other_on_one_cluster(spark):
    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        for cache in (None, "disk", None, "memory"):
            cluster.train(spark.range(0, 100, 1, 5), cache=cache)
        results = cluster.join()
    for feed in range(4):
        assert all_ids(results, feed) == list(range(100))


def read_both(args, ctx):
    feed = ctx.feed()
    rows = {}
    for name, part in (("train", feed), ("validation", feed.validation)):
        rows[name] = [
            int(row) for batch in part.batches(10)() for row in batch["id"][~np.signbit(batch["sample_weight"])]
        ]
    return rows


@pytest.mark.masters("local", "standalone")
@pytest.mark.parametrize("way", [pytest.param("column", marks=pytest.mark.smoke), "frame", "frame beside a stream"])
def test_rows_to_validate_on_come_apart(spark, way):
    frame = spark.range(0, 100, 1, 4)
    chosen = frame.id % 10 == 0
    with tfos.Cluster(spark, read_both, num_workers=2) as cluster:
        if way == "column":
            cluster.train(frame.withColumn("held_out", chosen), validation="held_out")
        else:
            cluster.train(
                frame.where(~chosen), validation=frame.where(chosen), cache=None if "stream" in way else "disk"
            )
        results = cluster.join()
    assert sorted(sum((each["validation"] for each in results.values()), [])) == list(range(0, 100, 10))
    assert sorted(sum((each["train"] for each in results.values()), [])) == [i for i in range(100) if i % 10]


@pytest.mark.masters("local")
@pytest.mark.parametrize("given", ["column", "frame"])
def test_a_held_stage_feeds_rows_to_validate_on_too(spark, given):
    frame = spark.range(100).withColumn("held_out", f.col("id") % 10 == 0)
    if given == "column":
        results = tfos.run(spark, read_both, num_workers=2, data=tfos.Data(frame, validation="held_out"))
    else:
        train, validation = (frame.where(each).drop("held_out") for each in ("not held_out", "held_out"))
        results = tfos.run(spark, read_both, num_workers=2, data=tfos.Data(train, validation=validation))
    assert sorted(sum((each["validation"] for each in results.values()), [])) == list(range(0, 100, 10))
    assert sorted(sum((each["train"] for each in results.values()), [])) == [i for i in range(100) if i % 10]


def read_partitions(args, ctx):
    return [[each for part in ctx.feed().partitions() for batch in part for each in batch.column("id").to_pylist()]]


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("how", "settings"),
    [
        pytest.param({"cache": None}, {}, marks=pytest.mark.smoke),
        ({"cache": "memory", "cache_limit": "8m", "feed_timeout": 60.0}, {}),
        ({"rebalance": False}, {}),
        ({"global_shuffle": True}, {}),
        ({}, {"nodes": tfos.Nodes(hold=False)}),
        ({}, {"nodes": tfos.Nodes(hold=True)}),
        ({}, {"restarts": tfos.RestartPolicy(1, scope="node")}),
    ],
)
def test_run_feeds_as_its_data_says_by_its_tasks_or_by_a_job(spark, how, settings):
    frame = spark.range(0, 93, 1, 5)
    results = tfos.run(spark, read, {}, num_workers=2, data=tfos.Data(frame, **how), **settings)
    assert all_ids(results) == list(range(93))


@pytest.mark.masters("local")
def test_run_feeds_workers_that_read_at_their_own_pace(spark):
    data = tfos.Data(spark.range(0, 93, 1, 5), cache=None, independent_workers=True)
    results = tfos.run(spark, read_partitions, num_workers=2, data=data)
    assert sorted(sum((each for (each,) in results.by_worker), [])) == list(range(93))


@pytest.mark.masters("local")
def test_a_cluster_that_holds_its_slots_is_fed_by_no_job(spark):
    with pytest.raises(tfos.SpecError, match="hold=True keeps the slots"):
        data = tfos.Data(spark.range(9), cache=None)
        tfos.run(spark, read, {}, data=data, nodes=tfos.Nodes(hold=True))


@pytest.mark.masters("local")
def test_a_null_in_the_column_that_selects_validation_rows(spark):
    frame = spark.range(10).withColumn("flag", f.when(f.col("id") < 9, f.lit(True)))
    with pytest.raises(tfos.FeedError, match="'flag'.*is null"), tfos.Cluster(spark, read) as cluster:
        cluster.train(frame, validation="flag")


@pytest.mark.masters("local")
def test_every_type_of_spark_arrives(spark):
    def program(args, ctx):
        epoch = ctx.feed().batches(
            2,
            features=["d", "t", "de", "st", "aa", "v", "bi", "bo", "s", "h"],
            shapes={"aa": (None, None), "bi": (2, 1)},
            dtypes={"bi": "float32"},
            fill={"h": -1},
            shuffle=False,
        )
        (batch,) = epoch()
        return {
            name: (values.dtype.name, [np.asarray(each, object).tolist() for each in values])
            for name, values in batch.items()
        }

    frame = spark.sql(
        """select date'1970-01-03' d, timestamp_ntz'1970-01-01 00:00:01' t, cast(1.25 as decimal(10, 2)) de,
        named_struct('a', 1, 'b', array(1.0f, 2.0f)) st, array(array(1, 2), array(3)) aa, X'00ff' bi, true bo, 's' s,
        if(id = 1, 5, null) h, id from range(0, 2, 1, 1) order by id"""
    )
    from pyspark.ml.linalg import Vectors

    vectors = spark.createDataFrame(
        [(0, Vectors.dense([1.0, 0.0, 2.0])), (1, Vectors.sparse(3, {2: 7.0}))], ["id", "v"]
    )
    result = tfos.run(spark, program, data=frame.join(vectors, "id").drop("id").coalesce(1).sortWithinPartitions("h"))
    found = result["worker:0"]
    assert found["d"] == ("int32", [2, 2])
    assert found["t"] == ("int64", [1_000_000] * 2)
    assert found["de"] == ("float64", [1.25] * 2)
    assert found["st.a"] == ("int32", [1, 1])
    assert found["st.b"] == ("float32", [[1.0, 2.0]] * 2)
    assert found["v"] == ("float64", [[1.0, 0.0, 2.0], [0.0, 0.0, 7.0]])
    assert found["bi"] == ("float32", [[[0.0], [255.0]]] * 2)
    assert found["bo"] == ("bool", [True, True])
    assert found["s"][1] == ["s", "s"]
    assert found["h"] == ("int32", [-1, 5])
    assert [[list(inner) for inner in row] for row in found["aa"][1]] == [[[1, 2], [3]]] * 2


@pytest.mark.masters("local")
@pytest.mark.parametrize("cache", ["disk", None])
def test_a_row_that_does_not_fit_is_named_with_its_partition_and_value(spark, cache):
    frame = spark.range(0, 40, 1, 2).select(f.when(f.col("id") != 25, f.col("id")).alias("age"))
    with pytest.raises(tfos.NodeError, match="column 'age' holds .* row 5 of partition 1") as caught:
        with tfos.Cluster(spark, lambda args, ctx: list(ctx.batches(10)()), num_workers=2) as cluster:
            cluster.train(frame, cache=cache)
    assert "fill={'age'" in str(caught.value)


# ---- how a feed ends


@pytest.mark.masters("local", "standalone")
def test_a_program_that_has_enough_ends_the_spark_job_at_once(spark):
    def program(args, ctx):
        epoch = ctx.batches(10)()
        for _ in range(5):
            next(epoch)
        return time.time()

    endless = slowly(spark.range(0, 1_000_000, 1, 1000))
    with tfos.Cluster(spark, program) as cluster:
        cluster.train(endless, cache=None)
        had_enough = cluster.join()["worker:0"]
        # However long the machine took to bring the program up; the whole job takes minutes.
        assert time.time() - had_enough < 20
    tracker = spark.sparkContext.statusTracker()
    wait_for(lambda: not tracker.getActiveJobsIds(), 10)


def slowly(frame):
    """Return the same rows, which take a second for each thousand."""

    def wait(batches):
        for batch in batches:
            time.sleep(batch.num_rows / 1000)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


@pytest.mark.masters("standalone")
@pytest.mark.parametrize("cache", ["disk", None])
def test_a_task_that_spark_repeats_brings_no_row_twice(spark, tmp_path, cache):
    marker = str(tmp_path / "failed")

    def fails_once(batches):
        from pyspark import TaskContext

        partition = TaskContext.get().partitionId()
        for number, batch in enumerate(batches):
            yield batch
            if partition == 2 and number == 1 and not os.path.exists(marker):
                open(marker, "w").close()
                raise RuntimeError("on purpose")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    try:
        frame = spark.range(0, 1000, 1, 4).mapInArrow(fails_once, "id long")
        with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
            cluster.train(frame, cache=cache)
            results = cluster.join()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert os.path.exists(marker)
    assert all_ids(results) == list(range(1000))


@pytest.mark.masters("local")
def test_memory_is_bounded_while_much_more_passes(spark):
    def program(args, ctx):
        process = psutil.Process()
        before = process.memory_full_info().uss
        most = rows = 0
        for number, batch in enumerate(ctx.batches(1000)()):
            rows += len(batch["x"])
            if number % 20 == 0:
                most = max(most, process.memory_full_info().uss - before)
        return rows, most

    frame = spark.range(0, 200_000, 1, 40).select(f.array(*[f.col("id").cast("float")] * 200).alias("x"))  # 160 MB
    with tfos.Cluster(spark, program) as cluster:
        cluster.train(frame, cache=None, cache_limit="16m")
        rows, most = cluster.join()["worker:0"]
    assert rows == 200_000
    assert most < 80 << 20  # the bound, the pieces on their way, and the block that is handed out


@pytest.mark.masters("standalone")
def test_tasks_on_other_hosts_feed_over_tcp(spark, monkeypatch):
    # As on a host where the node's socket is not: all tasks of both executors must use TCP.
    original = announcer.node_endpoints

    def far(nodes, *driver):
        return tuple(replace(each, ready=replace(each.ready, place="far away")) for each in original(nodes, *driver))

    monkeypatch.setattr(sources, "node_endpoints", far)
    monkeypatch.setattr(announcer, "node_endpoints", far)
    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        assert {node.host for node in cluster.nodes} == {"127.0.0.1", "127.0.0.2"}
        for cache in ("disk", None):
            cluster.train(spark.range(0, 1000, 1, 4), cache=cache)
        results = cluster.join()
    assert all_ids(results, 0) == all_ids(results, 1) == list(range(1000))
    with tfos.Cluster(spark, read, {}) as cluster:  # one executor has no node at all
        cluster.train(spark.range(0, 1000, 1, 4))
        assert all_ids(cluster.join()) == list(range(1000))


@pytest.mark.masters("local")
def test_a_worker_that_never_reads_gives_its_rows_nevertheless(spark):
    def program(args, ctx):
        if ctx.index == 0:
            time.sleep(8)  # it is fed meanwhile, and has more than its share
            return 0
        return sum(int((~np.signbit(batch["sample_weight"])).sum()) for batch in ctx.batches(10, features=["id"])())

    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        cluster.train(small_frame(spark, [101, 0]))
        assert cluster.join() == {"worker:0": 0, "worker:1": 50}
