"""`Cluster` over Spark Connect: its driver's part runs in a Spark task, which the client calls by jobs."""

import os
import signal
import time

import numpy as np
import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.processes import our_processes
from tests.support.programs import all_ids, count_rows, put, read, small_frame, stream_of, wait_for

pytestmark = [pytest.mark.masters("connect"), pytest.mark.timeout(300)]


def test_feeds_inference_and_what_is_seen_of_a_cluster(spark, tmp_path, caplog):
    def program(args, ctx):
        rows = []
        for feed in ctx.feeds():
            rows.append(sum(len(batch["id"]) for batch in feed.batches(16)))
            print("has read", rows, flush=True)
            if len(rows) == args:
                break
        ctx.report(loss=0.5)
        ctx.serve(lambda ids: ids * 10)

    caplog.set_level("INFO", "tensorflowonspark.nodes")
    cluster = tfos.Cluster(spark, program, 2, num_workers=2)
    assert cluster.nodes[0].host is None
    assert "not started" in repr(cluster)
    with cluster:
        cluster.train(small_frame(spark, [40, 0, 30, 5]).select("id"))
        cluster.train(spark.range(50), cache=None)
        assert cluster.nodes[1].host is not None
        assert cluster.metrics().state == "running"
        assert "running" in cluster._repr_html_()
        answers = cluster.inference(spark.range(0, 100, 1, 3), "tenfold long").collect()
        assert [row.tenfold for row in answers] == [10 * row.id for row in answers]
        cluster.save_report(tmp_path / "now.html")
    assert "ended" in repr(cluster)
    assert cluster.metrics().epochs[0].values == {"loss": 0.5}
    cluster.save_report(tmp_path / "end.html")
    assert (tmp_path / "end.html").stat().st_size > 50_000
    shown = [record.getMessage() for record in caplog.records if record.name == "tensorflowonspark.nodes"]
    assert len([line for line in shown if line.startswith("[worker:0] has read [")]) == 2


def test_a_node_that_is_killed_in_an_epoch_is_started_again_and_fed_its_rows(spark, tmp_path):
    with tfos.Cluster(spark, count_rows, str(tmp_path), restarts=1) as cluster:
        cluster.train(spark.range(100))
        results = cluster.join()
    counts = results.chief
    assert sum(counts) == 250
    assert set(counts) == {2, 3}  # two epochs and a half: each row twice, and half of them once more
    assert results.restarts == 1


def test_a_failure_is_named_and_leaves_nothing(spark):
    def program(args, ctx):
        if ctx.index:
            raise ValueError("on purpose")
        time.sleep(100)

    with (
        pytest.raises(tfos.NodeError, match=r"worker:1 on .*ValueError: on purpose"),
        tfos.Cluster(spark, program, num_workers=2) as cluster,
    ):
        cluster.join()
    wait_for(lambda: not our_processes(), 20)


@pytest.mark.slow
def test_the_end_of_the_drivers_task_is_named_and_ends_all(spark):
    def program(args, ctx):
        time.sleep(100)

    with (
        pytest.raises(tfos.ClusterError, match="the Spark task of the cluster's driver has ended"),
        tfos.Cluster(spark, program, num_workers=2) as cluster,
    ):
        port = cluster._driver.remote._address[1]
        (driver,) = {
            each.pid for each in psutil.net_connections("tcp") if each.laddr.port == port and each.status == "LISTEN"
        }
        os.kill(driver, signal.SIGKILL)
        cluster.join()
    wait_for(lambda: not our_processes(), 60)


@pytest.mark.slow
def test_a_stream_is_one_feed_and_goes_on_where_it_was_stopped(spark, tmp_path):
    source, checkpoint = tmp_path / "source", str(tmp_path / "checkpoint")
    put(spark, source, 0, 55)
    put(spark, source, 55, 60)

    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        feed = cluster.train_stream(stream_of(spark, source), checkpoint=checkpoint)
        wait_for(lambda: (feed.query.lastProgress or {"batchId": 0})["batchId"] >= 1, 90)
        feed.stop()
        feed.stop()  # does nothing
        put(spark, source, 60, 100)
        again = cluster.train_stream(stream_of(spark, source), checkpoint=checkpoint, trigger={"availableNow": True})
        assert again.wait(timeout=90)
        cluster.train(spark.range(7))
        results = cluster.join()
    assert all_ids(results, 0) == list(range(60))
    assert all_ids(results, 1) == list(range(60, 100))
    assert all_ids(results, 2) == list(range(7))


@pytest.mark.slow
def test_more_nodes_than_slots_are_named(spark):
    with pytest.raises(tfos.StartError, match="did not come up within 5 s"):
        tfos.Cluster(spark, lambda: None, num_workers=4, start_timeout=5).start()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"nodes": tfos.Nodes(hold=True)}, "hold=True: over Spark Connect"),
        ({"num_workers": (1, 2)}, "slots can't be counted"),
        ({"logs": "logs"}, "log_dir='logs': over Spark Connect .* another machine"),
        ({"restarts": tfos.RestartPolicy(scope="node")}, "over Spark Connect the client starts the nodes"),
        ({"dashboard": True}, "over Spark Connect .* serves no pages"),
    ],
)
def test_what_can_not_be(spark, settings, reason):
    with pytest.raises(tfos.SpecError, match=reason):
        tfos.Cluster(spark, lambda: None, **settings).start()


@pytest.mark.slow
def test_three_workers_take_each_row_once(spark):
    def program(args, ctx):
        batches = list(ctx.batches(4, features=["id"])())
        real = [batch["id"][~np.signbit(batch["sample_weight"])] for batch in batches]
        return np.concatenate(real).tolist(), len(batches)

    with tfos.Cluster(spark, program, num_workers=3) as cluster:
        cluster.train(small_frame(spark, [7, 0, 3]).select("id"))
        ids, steps = zip(*cluster.join().by_worker, strict=True)
    assert sorted(each for own in ids for each in own) == list(range(10))
    assert len(set(steps)) == 1
