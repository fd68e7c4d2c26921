"""Asynchronous training from DataFrames: a chief coordinates, and two workers train on the rows that they were fed."""

import ast
import logging
import re
import time
from collections import Counter
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import tensorflowonspark as tfos
from tests.support.coordinated import Loop, coordinated
from tests.support.processes import node_of
from tests.support.programs import small_frame, wait_for

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]  # four imports of TensorFlow for each test
SIZES = {"num_workers": 2, "num_ps": 1, "chief": True}
WORKERS = (2, 3)  # their numbers, after those of ps and chief


def kill(cluster, number):
    node_of(cluster, number).kill()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("tensorflowonspark.driver.")]


@pytest.mark.slow
def test_workers_read_files(spark, tmp_path):
    """The chief reads no rows: each worker its share, anew in each pass.

    First rows of Parquet files that pass a filter; then TFRecord files, whose rows no one has counted; and a Delta
    table, in the midst of which a worker is killed.
    """
    small_frame(spark, [300, 20, 40]).write.option("parquet.block.size", 1024).parquet(str(tmp_path / "rows"))
    tfos.write_tfrecord(small_frame(spark, [300, 20, 40]), str(tmp_path / "records"))
    rows = pq.read_table(tmp_path / "rows")
    for first in range(0, 360, 60):
        write_deltalake(str(tmp_path / "delta"), rows.slice(first, 60), mode="append")

    def chief(args, ctx, coordinator):
        with pytest.raises(tfos.FeedError, match="chief:0 keeps no rows, worker:0, worker:1 do: pass cache=None"):
            ctx.read_parquet(args["rows"])
        feed = ctx.read_parquet(args["rows"], cache=None, cache_limit="1m", filter=pc.field("id") >= 150)
        with pytest.raises(tfos.FeedError, match="there is no column 'colour'"):
            feed.per_worker(16, label="colour")
        loop = Loop(coordinator)
        ids = loop.to_the_end(feed, iter(loop.dataset(feed, epochs=2)))
        records = ctx.read_tfrecord(args["records"], cache=None, cache_limit="1m")
        assert records.total_rows is None
        assert records.steps(16) is None
        uncounted = loop.to_the_end(records, iter(loop.dataset(records, epochs=2)))
        again = ctx.read_delta(args["delta"], cache=None)
        rows = iter(loop.dataset(again))
        some = loop.steps(rows, 2)
        Path(args["begun"]).touch()
        while not Path(args["killed"]).exists():
            time.sleep(0.05)
        return feed.total_rows, feed.steps(16), ids, uncounted, some + loop.to_the_end(again, rows)

    args = {name: str(tmp_path / name) for name in ("rows", "records", "delta", "begun", "killed")}
    with tfos.Cluster(spark, coordinated(chief), args, **SIZES) as cluster:
        wait_for((tmp_path / "begun").exists, 120)
        kill(cluster, WORKERS[1])
        (tmp_path / "killed").touch()
        total, steps, ids, uncounted, rest = cluster.join()["chief:0"]
    assert total == 210
    assert steps >= 14
    assert Counter(ids) == dict.fromkeys(range(150, 360), 2)
    assert Counter(uncounted) == dict.fromkeys(range(360), 2)
    assert len(set(rest)) >= 60  # the share of the worker that was left


@pytest.mark.slow
def test_each_row_is_trained_once_per_epoch(spark):
    """One feed after the other: one that is kept, for three epochs; one that streams; and one for Keras's fit."""

    def fitted(feed, coordinator):
        import tf_keras

        with coordinator.strategy.scope():
            model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
            model.compile("sgd", "mse", weighted_metrics=["mae"])
        make = feed.per_worker(16, features="features", label="label", epochs=None)
        history = model.fit(
            tf_keras.utils.experimental.DatasetCreator(make), epochs=2, steps_per_epoch=feed.steps(16), verbose=0
        )
        return history.history, int(model.optimizer.iterations.numpy()), feed.steps(16)

    def chief(args, ctx, coordinator):
        feeds = ctx.feeds()
        kept = next(feeds)
        with pytest.raises(tfos.FeedError, match="there is no column 'colour'"):
            kept.per_worker(16, label="colour")
        loop = Loop(coordinator)
        told = [(kept.total_rows, kept.steps(16), loop.to_the_end(kept, iter(loop.dataset(kept, epochs=3))))]
        validation = loop.dataset(kept.validation, 4)
        one, other = [loop.to_the_end(kept.validation, iter(validation), passes=passes) for passes in (1, 2)]
        streamed = next(feeds)
        told.append((streamed.total_rows, streamed.steps(16), loop.to_the_end(streamed, iter(loop.dataset(streamed)))))
        return told, one, other, int(loop.trained.numpy()), fitted(next(feeds), coordinator), list(feeds)

    environment = {"TF_USE_LEGACY_KERAS": "1"}  # so that `fit` is tf_keras's; the loop imports Keras 3
    with tfos.Cluster(spark, coordinated(chief), **SIZES, env=environment) as cluster:
        cluster.train(small_frame(spark, [300, 20, 40]), validation=small_frame(spark, [9]))
        rows = [cluster._monitor.roster.nodes[number].program.progress.rows for number in WORKERS]
        # Worker 1 gets the partitions with odd numbers, and has long nothing to do while the other one is full.
        cluster.train(small_frame(spark, [200, 0, 33, 0, 70, 0, 8, 0, 1, 40]), cache=None, cache_limit=1000)
        cluster.train(small_frame(spark, [100, 60]))
        (kept, streamed), *validated, trained, (history, *iterations), rest = cluster.join()["chief:0"]

    assert set(rows) in ({300, 60}, {320, 40}, {340, 20})  # asynchronous workers keep what they were fed
    assert kept[:2] == (360, sum(-(-each // 16) for each in rows))
    occurrences, orders = Counter(), ([], [], [])
    for each in kept[2]:
        orders[occurrences[each]].append(each)
        occurrences[each] += 1
    assert all(sorted(order) == list(range(360)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [sorted(ids) for ids in validated] == [list(range(9))] * 2
    assert streamed[:2] == (None, None)
    assert sorted(streamed[2]) == list(range(352))
    assert trained == 3 * 360 + 2 * 9 + 352
    assert np.isfinite(history["loss"]).all()
    assert len(history["mae"]) == 2
    assert iterations in ([2 * (7 + 4), 7 + 4], [2 * 10, 10])  # two workers had rows, or one had all
    assert rest == []


def pauses(args, ctx, coordinator):
    """Return the rows of each feed; in the midst of the first one, wait until a worker is killed."""
    loop = Loop(coordinator)
    told = []
    for feed in ctx.feeds():
        rows = iter(loop.dataset(feed))
        begun = loop.steps(rows, 10)
        Path(args, "begun").touch()
        while not Path(args, "killed").exists():
            time.sleep(0.02)
        told.append(begun + loop.to_the_end(feed, rows))
    return told


def kill_in_pause(cluster, directory):
    wait_for((directory / "begun").exists, 180)
    kill(cluster, WORKERS[0])
    (directory / "killed").touch()


def test_a_worker_that_is_killed_costs_the_rows_that_it_held(spark, tmp_path, caplog):
    with caplog.at_level(logging.WARNING), tfos.Cluster(spark, coordinated(pauses), str(tmp_path), **SIZES) as cluster:
        Thread(target=kill_in_pause, args=(cluster, tmp_path), daemon=True).start()
        cluster.train(small_frame(spark, [300, 200]), rebalance=False)
        cluster.train(small_frame(spark, [20, 30]))
        first, second = cluster.join()["chief:0"]
    assert len(set(first)) == len(first)
    assert set(range(300, 500)) <= set(first)
    assert len(first) < 500
    assert sorted(second) == list(range(50))
    (warning,) = warnings_in(caplog)
    assert warning == (
        "worker:0 on 127.0.0.1 failed: its process was ended by SIGKILL. The others train on; with it went "
        "partition 0 of feed 0 (300 rows)"
    )


@pytest.mark.slow
def test_a_worker_that_is_started_again_trains_on_its_rows(spark, tmp_path):
    """It comes back at its address, where TensorFlow finds it, and passes over its rows anew."""
    alone = tfos.RestartPolicy(scope="node")
    program = coordinated(pauses)
    with tfos.Cluster(
        spark, program, str(tmp_path), restarts=alone, nodes=tfos.Nodes(warm_nodes=False), **SIZES
    ) as cluster:
        before = cluster.nodes
        Thread(target=kill_in_pause, args=(cluster, tmp_path), daemon=True).start()
        cluster.train(small_frame(spark, [300, 200]))
        cluster.train(small_frame(spark, [20, 30]))
        first, second = cluster.join()["chief:0"]
        after = cluster.nodes
    assert [node.restarts for node in after] == [0, 0, 1, 0]
    assert [node.port for node in after] == [node.port for node in before]
    counts = Counter(first)
    assert set(counts) == set(range(500))
    assert max(counts[number] for number in range(300, 500)) == 1  # those of the worker that was not killed
    assert max(counts.values()) <= 2
    assert sorted(second) == list(range(50))


@pytest.mark.slow
@pytest.mark.timeout(300)  # 35 s on a quiet machine, 80 s beside other tests
def test_workers_are_killed_while_rows_stream(spark, tmp_path, caplog):
    """The first one costs only what it had; when no worker is left, the error names the first."""

    def chief(args, ctx, coordinator):
        loop = Loop(coordinator)
        for feed in ctx.feeds():
            ids = loop.to_the_end(feed, iter(loop.dataset(feed, 10)))
            Path(args, "ids").write_text(" ".join(map(str, ids)))

    killed = str(tmp_path / "killed")

    def half_of_it_late(batches):
        for batch in batches:
            while batch.column("id")[0].as_py() >= 200 and not Path(killed).exists():
                time.sleep(0.02)
            yield batch

    def kill_one():
        wait_for(lambda: cluster._monitor.roster.nodes[WORKERS[0]].program.progress)
        kill(cluster, WORKERS[0])
        Path(killed).touch()

    frame = small_frame(spark, [50] * 10)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(tfos.NodeError) as caught,
        tfos.Cluster(spark, coordinated(chief), str(tmp_path), **SIZES) as cluster,
    ):
        Thread(target=kill_one, daemon=True).start()
        cluster.train(frame.mapInArrow(half_of_it_late, frame.schema), cache=None)
        ids = [int(each) for each in (tmp_path / "ids").read_text().split()]
        kill(cluster, WORKERS[1])
        cluster.train(frame)
    assert (caught.value.node, caught.value.reason) == ("worker:0", "its process was ended by SIGKILL")
    (warning,) = warnings_in(caplog)
    which, rows = re.fullmatch(r".*; with it went partitions? (.*) of feed 0 \((\d+) rows\)", warning).groups()
    lost = set(range(500)) - set(ids)
    assert len(ids) == 500 - len(lost)
    assert len(lost) <= int(rows)
    assert {each // 50 for each in lost} <= {int(number) for number in re.findall(r"\d+", which)}


@pytest.mark.slow
def test_columns_of_all_kinds_and_one_that_can_not_be_read(spark, tmp_path):
    def chief(args, ctx, coordinator):
        import tensorflow as tf

        @tf.function
        def step(rows):
            batch = rows.get_next_as_optional()
            return tf.cond(
                batch.has_value(),
                lambda: (batch.get_value()["text"], batch.get_value()["many"].to_tensor(), batch.get_value()["x"]),
                lambda: (tf.zeros((0,), tf.string), tf.zeros((0, 0), tf.int32), tf.zeros((0,))),
            )

        for feed in ctx.feeds():
            make = feed.per_worker(4, shapes={"many": (None,)}, dtypes={"x": np.float32})
            rows = iter(coordinator.create_per_worker_dataset(make))
            while not feed.passes_ended:
                result = coordinator.schedule(step, args=(rows,))
                coordinator.join()
                text, many, x = result.fetch()
                if len(text):
                    Path(args).write_text(repr((*text.tolist(), many.tolist(), x.tolist(), x.dtype.name)))

    sql = "select string(id) as text, array(1, int(id)) as many, if(id < 90, id, null) as x from range({}, 100, 1, 5)"
    read = tmp_path / "read"
    with (
        pytest.raises(tfos.NodeError) as caught,
        tfos.Cluster(spark, coordinated(chief), str(read), **SIZES) as cluster,
    ):
        cluster.train(spark.sql(sql.format(99)).fillna(5))  # for one worker there is nothing
        assert ast.literal_eval(read.read_text()) == (b"99", [[1, 99]], [5.0], "float32")
        cluster.train(spark.sql(sql.format(0)), cache=None)
    assert caught.value.node == "chief:0"
    assert caught.value.reason.startswith("its program raised FeedError: column 'x' holds 10 nulls, the first in row")


def test_workers_that_read_their_own_rows_need_no_coordinator(spark):
    def program(args, ctx):
        if ctx.job == "ps":
            time.sleep(3600)
        if ctx.is_chief:
            return "the chief reads nothing"
        return [sorted(int(each) for batch in feed.batches(8)() for each in batch["id"]) for feed in ctx.feeds()]

    with tfos.Cluster(spark, program, **SIZES) as cluster:
        cluster.train(spark.range(0, 40, 1, 2))
        cluster.train(spark.range(0, 40, 1, 2), cache=None)
        results = cluster.join()
    for number in range(2):
        assert sorted(results["worker:0"][number] + results["worker:1"][number]) == list(range(40))
