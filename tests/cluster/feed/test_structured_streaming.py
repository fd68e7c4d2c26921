"""Streaming DataFrames: micro-batches into programs, each row once, none lost that was acknowledged."""

import time
from pathlib import Path

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import all_ids, put, read, stream_of

pytestmark = pytest.mark.masters("local")


def wait_for_rows(feed, rows):
    """Wait until so many rows were acknowledged."""
    end = time.monotonic() + 60
    while sum(progress["numInputRows"] for progress in feed.query.recentProgress) < rows:
        assert time.monotonic() < end
        assert feed.query.isActive, feed.query.exception()
        time.sleep(0.1)


def test_a_streaming_frame_is_one_endless_feed_with_a_clean_stop(spark, tmp_path):
    source, checkpoint = tmp_path / "source", str(tmp_path / "checkpoint")
    put(spark, source, 0, 55)
    put(spark, source, 55, 60)
    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        feed = cluster.train_stream(stream_of(spark, source), checkpoint=checkpoint)
        wait_for_rows(feed, 60)
        put(spark, source, 60, 100)
        wait_for_rows(feed, 100)
        assert not feed.wait(timeout=0.1)
        feed.stop()
        feed.stop()  # does nothing
        put(spark, source, 100, 130)
        # A second one goes on where the first was stopped, and reads what there is.
        again = cluster.train_stream(stream_of(spark, source), checkpoint=checkpoint, trigger={"availableNow": True})
        assert again.wait(timeout=60)
        cluster.train(spark.range(7))
        results = cluster.join()
    assert all_ids(results, 0) == list(range(100))
    assert all_ids(results, 1) == list(range(100, 130))
    assert all_ids(results, 2) == list(range(7))


@pytest.mark.timeout(60)
def test_a_stream_that_does_not_run_dry_is_stopped(spark):
    """Spark begins the next micro-batch while the last one is committed."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    with tfos.Cluster(spark, lambda ctx: sum(len(batch["value"]) for batch in ctx.batches(10))) as cluster:
        feed = cluster.train_stream(rows)
        wait_for_rows(feed, 1000)
        feed.stop()
        processed = sum(progress["numInputRows"] for progress in feed.query.recentProgress)
        assert cluster.join()["worker:0"] == processed


@pytest.mark.smoke
def test_each_micro_batch_is_a_feed_of_its_own_by_foreach_batch(spark, tmp_path):
    put(spark, tmp_path / "source", 0, 20)
    put(spark, tmp_path / "source", 20, 30)
    with tfos.Cluster(spark, read, {}, num_workers=2) as cluster:
        writer = stream_of(spark, tmp_path / "source").writeStream.trigger(availableNow=True)
        query = writer.foreachBatch(lambda frame, number: cluster.train(frame)).start()
        assert query.awaitTermination(60)
        results = cluster.join()
    assert sorted([all_ids(results, 0), all_ids(results, 1)]) == [list(range(20)), list(range(20, 30))]


def test_a_program_that_has_enough_ends_the_query(spark, tmp_path):
    def program(args, ctx):
        return next(ctx.batches(10)())["id"].tolist()

    put(spark, tmp_path / "source", 0, 100)
    with tfos.Cluster(spark, program) as cluster:
        feed = cluster.train_stream(stream_of(spark, tmp_path / "source"))
        assert feed.wait(timeout=60)
        assert not feed.query.isActive
        assert len(cluster.join()["worker:0"]) == 10


def test_a_query_that_fails_is_reported(spark, tmp_path):
    put(spark, tmp_path / "source", 0, 100)
    bad = stream_of(spark, tmp_path / "source").select(f.expr("id / assert_true(id < 50)").alias("id"))
    with pytest.raises(tfos.ClusterError, match="not true"), tfos.Cluster(spark, read, {}) as cluster:
        feed = cluster.train_stream(bad.select(f.col("id").cast("long")))
        feed.wait(timeout=60)


def test_frames_with_and_without_an_end_are_distinguished(spark, tmp_path):
    Path(tmp_path / "source").mkdir()
    with tfos.Cluster(spark, read, {}) as cluster:
        with pytest.raises(tfos.FeedError, match="train_stream"):
            cluster.train(stream_of(spark, tmp_path / "source"))
        with pytest.raises(tfos.FeedError, match=r"cluster\.train$"):
            cluster.train_stream(spark.range(3))
