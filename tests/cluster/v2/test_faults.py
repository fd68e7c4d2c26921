"""Faults that users of 2.x reported and no other test of this folder covers."""

import os
import pickle
import time
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import TFCluster
from tests.support.programs import wait_for

SPARK = TFCluster.InputMode.SPARK


@pytest.mark.masters("local")
def test_workers_in_step_with_uneven_partitions_are_reported_why_they_wait(start, spark):
    """One of two has no rows left, and the other is in a step that waits for it."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        feed.next_batch(1)
        if ctx.task_index == 0:
            time.sleep(60)
        while not feed.should_stop():
            feed.next_batch(100)

    cluster = start(spark, program, None, 2, 0, input_mode=SPARK)
    uneven = spark.sparkContext.parallelize(range(8), 8).flatMap(lambda part: range(100_000 if part == 0 else 10))
    with pytest.raises(tfos.FeedError, match=r"worker:0 on .*has taken .*worker:1 has no rows left.*terminate\(\)"):
        cluster.train(uneven, 1, feed_timeout=10)
    with pytest.raises(tfos.ClusterError):
        cluster.shutdown(timeout=0)


@pytest.mark.masters("standalone")
def test_feeding_needs_no_node_on_the_tasks_executor(start, spark, tmp_path):
    """In 2.x a task on an executor without a node failed: "No executor_id file", "No TFManager"."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        count = 0
        while not feed.should_stop():
            count += len(feed.next_batch(100))
        Path(args, "count").write_text(str(count))

    def where(rows):
        yield os.environ["SPARK_LOCAL_IP"]

    cluster = start(spark, program, str(tmp_path), 1, 0, input_mode=SPARK)
    rows = spark.sparkContext.parallelize(range(100), 8)
    assert len(set(rows.mapPartitions(lambda part: [time.sleep(0.3), *where(part)][1:]).collect())) == 2
    cluster.train(rows, 1)
    cluster.shutdown()
    assert (tmp_path / "count").read_text() == "100"


@pytest.mark.masters("local")
def test_an_error_in_a_parameter_server_or_evaluator_reaches_the_driver(start, spark):
    def program(args, ctx):
        if ctx.job_name == args:
            raise ValueError(f"no {args} today")
        time.sleep(20)

    for job in ("ps", "evaluator"):
        with pytest.raises(tfos.NodeError, match=f"{job}:0 on .*no {job} today"):
            start(spark, program, job, 3, 1, eval_node=True).shutdown()


@pytest.mark.masters("local")
def test_rows_that_are_there_and_not_taken_are_reported_too(start, spark):
    """The last rows fit into the node's queue; the time runs until the program has been handed them."""

    def program(args, ctx):
        ctx.get_data_feed().next_batch(1)
        time.sleep(60)

    cluster = start(spark, program, None, 1, 0, input_mode=SPARK)
    with pytest.raises(tfos.FeedError, match="worker:0 on .* of which its program has taken 0"):
        cluster.train(spark.sparkContext.parallelize(range(10), 1), 1, feed_timeout=5)
    with pytest.raises(tfos.ClusterError):
        cluster.shutdown(timeout=0)


@pytest.mark.masters("local")
def test_rows_go_to_those_who_still_read(run, spark, tmp_path):
    """One worker has had enough and has returned; the rows of a later feed are not for it."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        rows = list(feed.next_batch(5))
        if ctx.task_index == 0:
            feed.terminate()
        while not feed.should_stop():
            rows += feed.next_batch(10)
        return rows

    cluster = run(spark, program, tmp_path, 2, input_mode=SPARK)
    cluster.train(spark.sparkContext.parallelize(range(40), 4), 1)
    wait_for(lambda: cluster._cluster._fed[0].program.returned, 20)
    cluster.train(spark.sparkContext.parallelize(range(100, 140), 4), 1)
    cluster.shutdown()
    rows = {path.name: pickle.loads(path.read_bytes()) for path in tmp_path.iterdir()}
    assert len(rows["worker-0"]) == 5
    assert set(range(100, 140)) < set(rows["worker-1"])
