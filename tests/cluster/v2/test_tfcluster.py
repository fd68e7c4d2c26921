"""``TFCluster``: contexts, feeds, inference and shutdown."""

import datetime
import decimal
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import Row

import tensorflowonspark as tfos
from tensorflowonspark import TFCluster
from tests.support.programs import wait_for

SPARK = TFCluster.InputMode.SPARK


def written(directory):
    return {path.name: pickle.loads(path.read_bytes()) for path in sorted(directory.iterdir())}


def all_rows(args, ctx):
    feed = ctx.get_data_feed()
    rows = []
    while not feed.should_stop():
        rows += feed.next_batch(7)
    return rows


# ---- what is fed


@pytest.mark.smoke
@pytest.mark.masters("local", "standalone")
def test_each_row_comes_once_per_epoch_over_several_feeds(run, spark, tmp_path):
    cluster = run(spark, all_rows, tmp_path, 2, input_mode=SPARK)
    cluster.train(spark.sparkContext.parallelize(range(1000), 6), 3)
    cluster.train(spark.sparkContext.parallelize(range(1000, 1005), 9), 1)  # of which some are empty
    cluster.train(spark.sparkContext.emptyRDD(), 1)
    cluster.shutdown()
    rows = Counter(row for rows in written(tmp_path).values() for row in rows)
    assert rows == Counter({**dict.fromkeys(range(1000), 3), **dict.fromkeys(range(1000, 1005), 1)})


@pytest.mark.masters("local")
def test_any_row_comes_out_as_it_went_in(run, spark, tmp_path):
    rows = [
        ([0.5] * 784, 3),
        None,
        "ä",
        b"\x00\xff",
        {"a": [1, {"b": None}]},
        (1 << 100, decimal.Decimal("1.10"), datetime.datetime(2026, 1, 2, 3, 4, 5, 6)),
        Row(name="x", values=[1.0, None]),
        np.float32(0.1),
        {1, 2},
        [],
    ]
    context = spark.sparkContext
    cluster = run(spark, all_rows, tmp_path, input_mode=SPARK)
    cluster.train(context.parallelize(rows, 1), 1)
    (tmp_path / "lines").write_text("one\ntwo\n")
    cluster.train(context.textFile(str(tmp_path / "lines")), 1)
    cluster.train(context.parallelize([1, 2], 1).zip(context.parallelize(["a", "b"], 1)), 1)
    cluster.train(context.parallelize([("k", 1), ("k", 2)]).groupByKey().mapValues(sorted), 1)
    cluster.train(spark.createDataFrame([(1, "x")], "id int, name string"), 1)
    cluster.shutdown()
    (tmp_path / "lines").unlink()
    found = written(tmp_path)["worker-0"]
    assert found[: len(rows)] == rows
    more = ["one", "two", (1, "a"), (2, "b"), ("k", [1, 2]), Row(id=1, name="x")]
    assert Counter(map(str, found[len(rows) :])) == Counter(map(str, more))
    assert isinstance(found[-1], Row)


@pytest.mark.masters("local")
def test_no_epochs_are_ten_and_a_queue_has_a_name(run, spark, tmp_path):
    def program(args, ctx):
        feed = ctx.get_data_feed(qname_in="other")
        rows = []
        while not feed.should_stop():
            rows += feed.next_batch(100)
        return len(rows)

    cluster = run(spark, program, tmp_path, input_mode=SPARK, queues=["input", "other"])
    cluster.train(spark.sparkContext.parallelize(range(5)), qname="other")
    with pytest.raises(tfos.FeedError, match=r"no such queue; .*queues=\['input', 'other'\]"):
        cluster.train(spark.sparkContext.parallelize(range(5)), qname="third")
    with pytest.raises(tfos.SpecError, match="num_epochs=-1"):
        cluster.train(spark.sparkContext.parallelize(range(5)), -1, qname="other")
    with pytest.raises(tfos.FeedError, match="list: expected an RDD"):
        cluster.train([1, 2], qname="other")
    cluster.shutdown()
    assert written(tmp_path) == {"worker-0": 50}


# ---- how a feed ends


@pytest.mark.masters("local", "standalone")
def test_a_program_that_has_enough_ends_the_job_at_once(run, spark, tmp_path):
    def program(args, ctx):
        feed = ctx.get_data_feed()
        taken = feed.next_batch(10)
        feed.terminate()
        return len(taken), time.time()

    def slowly(number):
        time.sleep(0.01)
        return number

    cluster = run(spark, program, tmp_path, 2, input_mode=SPARK)
    cluster.train(spark.sparkContext.parallelize(range(100_000), 1000).map(slowly), 10)  # 3 hours of one core
    had_enough = max(when for _, when in written(tmp_path).values())
    assert time.time() - had_enough < 20
    cluster.train(spark.sparkContext.parallelize(range(10)), 1)  # dropped: nobody wants it
    cluster.shutdown()
    assert [taken for taken, _ in written(tmp_path).values()] == [10, 10]


@pytest.mark.masters("local")
def test_workers_with_unlike_appetites_do_not_wait_for_each_other(run, spark, tmp_path):
    """One stops after some steps, as with "90 % of the steps"; the other takes all that it gets."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        rows = []
        while not feed.should_stop():
            rows += feed.next_batch(5)
            if ctx.task_index == 0 and len(rows) >= 20:
                feed.terminate()
        return rows

    cluster = run(spark, program, tmp_path, 2, input_mode=SPARK)
    cluster.train(spark.sparkContext.parallelize(range(1000), 10), 1)
    cluster.shutdown()
    found = written(tmp_path)
    assert len(found["worker-0"]) == 20
    assert sorted(found["worker-1"]) == [row for row in range(1000) if (row // 100) % 2]


@pytest.mark.masters("local")
def test_a_program_that_does_not_read_is_named(run, spark, tmp_path):
    cluster = run(spark, lambda args, ctx: time.sleep(60), tmp_path, input_mode=SPARK)
    with pytest.raises(tfos.FeedError, match="worker:0 on .*has not begun to read them"):
        cluster.train(spark.sparkContext.parallelize(range(10)), 1, feed_timeout=2)
    with pytest.raises(tfos.ClusterError, match="after 0.5 s .*still runs on worker:0 on"):
        cluster.shutdown(timeout=0.5)


@pytest.mark.masters("local")
def test_a_slow_program_is_no_dead_one(run, spark, tmp_path):
    """The time counts from the last progress, within a partition as well."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        count = 0
        while not feed.should_stop():
            count += len(feed.next_batch(100_000))
            time.sleep(0.7)
        return count

    large = spark.sparkContext.parallelize(range(12), 1).flatMap(lambda each: [b"x" * 1000] * 100_000)
    cluster = run(spark, program, tmp_path, input_mode=SPARK)
    cluster.train(large, 1, feed_timeout=6)  # of 9 s in all, and more
    cluster.shutdown()
    assert written(tmp_path) == {"worker-0": 1_200_000}


@pytest.mark.masters("local", "standalone")
def test_an_error_in_the_program_reaches_the_driver(run, spark, tmp_path):
    def program(args, ctx):
        ctx.get_data_feed().next_batch(1)
        raise ValueError(f"bad row in {ctx.job_name}")

    cluster = run(spark, program, tmp_path, input_mode=SPARK)
    with pytest.raises(tfos.NodeError, match=r"(?s)worker:0 on .*ValueError: bad row in worker.*Traceback"):
        cluster.train(spark.sparkContext.parallelize(range(100), 4))
    with pytest.raises(tfos.NodeError, match="bad row"):
        cluster.shutdown()


@pytest.mark.masters("local")
def test_an_error_after_the_feed_is_reported_by_shutdown_in_any_thread(run, spark, tmp_path):
    """As of an export that fails: in 2.x the driver ended before it, or by sys.exit."""

    def program(args, ctx):
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(10)
        time.sleep(1)
        raise OSError("no room to export")

    cluster = run(spark, program, tmp_path, input_mode=SPARK)
    cluster.train(spark.sparkContext.parallelize(range(100), 2), 1)
    caught = []

    def shut_down():
        try:
            cluster.shutdown()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=shut_down)
    thread.start()
    thread.join()
    assert "no room to export" in str(caught[0])
    assert isinstance(caught[0], tfos.NodeError)


# ---- inference


@pytest.mark.masters("local", "standalone")
def test_results_come_in_the_order_of_the_rows(run, spark, tmp_path):
    def program(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([(row, row * 2) for row in feed.next_batch(9)])

    cluster = run(spark, program, tmp_path, 2, input_mode=SPARK)
    results = cluster.inference(spark.sparkContext.parallelize(range(500), 5))
    assert all(node.program.answering for node in cluster._cluster._fed), (
        "a job may begin now, before the programs have"
    )
    assert results.collect() == [(row, row * 2) for row in range(500)]
    assert results.map(lambda each: each[1]).sum() == 249_500  # computed again, by Spark's own rules
    assert cluster.inference(spark.range(3)).map(lambda each: each[0].id).collect() == [0, 1, 2]
    assert cluster.inference(spark.sparkContext.parallelize([], 2)).collect() == []
    cluster.shutdown()
    with pytest.raises(Exception, match="only until cluster.shutdown"):
        results.collect()


@pytest.mark.masters("local")
def test_a_program_that_does_not_answer_is_named(run, spark, tmp_path):
    def program(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        Path(args, "reads").touch()
        while not feed.should_stop():
            feed.next_batch(9)

    cluster = run(spark, program, tmp_path, input_mode=SPARK)
    wait_for((tmp_path / "reads").exists)
    results = cluster.inference(spark.sparkContext.parallelize(range(10), 1), feed_timeout=3)
    with pytest.raises(Exception, match="partition 0: worker:0 on .*given 10 rows .*has answered 0"):
        results.collect()
    cluster.shutdown()


# ---- who is there


@pytest.mark.masters("local")
def test_nodes_come_in_the_order_of_2x(run, spark, tmp_path):
    def program(args, ctx):
        return (
            ctx.executor_id,
            ctx.worker_num,
            ctx.num_workers,
            ctx.cluster_spec,
            json.loads(os.environ["TF_CONFIG"]),
            ctx.defaultFS,
            ctx.absolute_path("/x"),
            ctx.absolute_path("x"),
        )

    cluster = run(spark, program, tmp_path, 4, 1, master_node="master", eval_node=True)
    cluster.shutdown()
    found = written(tmp_path)
    # A program of a ps or an evaluator may go on for ever; these ended by themselves, or were ended.
    assert {name: seen[0] for name, seen in found.items() if name[0] in "mw"} == {"master-0": 1, "worker-0": 3}
    master = found["master-0"]
    assert master[:3] == (1, 1, 2)
    assert {job: len(nodes) for job, nodes in master[3].items()} == {"ps": 1, "master": 1, "evaluator": 1, "worker": 1}
    # TensorFlow takes no master any more.
    assert master[4]["task"] == {"type": "chief", "index": 0}
    assert master[4]["environment"] == "cloud"
    assert sorted(master[4]["cluster"]) == ["chief", "ps", "worker"]
    assert master[5:] == ("file://", "file:///x", f"file://{os.getcwd()}/x")
    assert [info["executor_id"] for info in cluster.cluster_info] == [0, 1, 2, 3]
    assert [info["job_name"] for info in cluster.cluster_info] == ["ps", "master", "evaluator", "worker"]
    assert all(info["port"] and info["host"] and info["authkey"] is None for info in cluster.cluster_info)
    assert cluster.num_executors == cluster.nodeRDD.count() == 4
    assert cluster.cluster_id == cluster.meta["id"]
    assert cluster.tensorboard_url() is None


@pytest.mark.masters("local")
def test_the_default_file_system_is_that_of_the_session(run, spark, tmp_path):
    spark.conf.set("fs.defaultFS", "hdfs://name:8020")
    try:
        cluster = run(spark, lambda args, ctx: ctx.defaultFS, tmp_path)
    finally:
        spark.conf.unset("fs.defaultFS")
    cluster.shutdown()
    assert written(tmp_path) == {"worker-0": "hdfs://name:8020"}
    assert cluster.defaultFS == cluster.meta["default_fs"] == "hdfs://name:8020"


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("nodes", "ps", "settings", "words"),
    [
        (1, 1, {}, r"num_executors=1 must be num_ps=1 and .*at least one worker or master: it is \+0 workers"),
        (2, 1, {"master_node": "chief", "eval_node": True}, "it is -1 workers"),
        (2, 0, {"master_node": "boss"}, "expected 'chief', 'master' or None"),
        (2, 1, {"driver_ps_nodes": True, "input_mode": SPARK}, "driver_ps_nodes=True works with .*TENSORFLOW only"),
        (2, 0, {"eval_node": True, "input_mode": SPARK}, "eval_node=True works with"),
        (2, 0, {"input_mode": "spark"}, "input_mode='spark'"),
    ],
)
def test_numbers_that_do_not_add_up_are_refused(run, spark, tmp_path, nodes, ps, settings, words):
    with pytest.raises(tfos.SpecError, match=words):
        run(spark, lambda args, ctx: None, tmp_path, nodes, ps, **settings)


@pytest.mark.masters("standalone")
def test_parameter_servers_on_the_driver_take_no_slots(run, spark, tmp_path, monkeypatch):
    monkeypatch.setattr("tensorflowonspark.driver.cluster._FIRST_SECONDS", 0.5)

    def program(args, ctx):
        if ctx.job_name == "ps":
            time.sleep(600)
        return ctx.cluster_spec, os.getppid()

    cluster = run(spark, program, tmp_path, 4, 2, driver_ps_nodes=True)  # of which the executors carry two
    assert [info["job_name"] for info in cluster.cluster_info] == ["ps", "ps", "worker", "worker"]
    assert cluster._cluster.nodes[0].jvm_pid == os.getpid()
    cluster.shutdown()
    (spec, _), (same, _) = written(tmp_path).values()
    assert len(set(spec["ps"] + spec["worker"])) == 4
    assert spec == same


@pytest.mark.masters("local")
def test_a_list_becomes_the_programs_own_arguments(spark, tmp_path):
    def program(args, ctx):
        Path(args[1]).write_text(" ".join(sys.argv))

    target = tmp_path / "argv"
    cluster = TFCluster.run(spark.sparkContext, program, ["prog", str(target), "--steps"], 1, 0)
    cluster.shutdown()
    assert target.read_text() == f"prog {target} --steps"


@pytest.mark.masters("local")
@pytest.mark.parametrize("released", [True, False])
def test_a_port_that_the_program_releases(run, spark, tmp_path, released):
    def program(args, ctx):
        port = int(ctx.cluster_spec["worker"][0].rsplit(":", 1)[1])
        held = ctx.tmp_socket is None or ctx.tmp_socket.getsockname()[1] == port
        with socket.socket() as server:  # as TensorFlow's does
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("", port))
        with socket.socket() as server, pytest.raises(OSError, match="in use"):
            server.bind(("", port))
        ctx.release_port()
        ctx.release_port()
        with socket.socket() as server:  # without SO_REUSEPORT, as most servers do
            server.bind(("", port))
            server.listen()
        child = f"import socket; socket.socket().bind(('', {port}))"
        subprocess.run([sys.executable, "-c", child], check=True)
        pickle.loads(pickle.dumps(ctx)).release_port()  # a copy of it elsewhere releases nothing
        return held, ctx.tmp_socket

    cluster = run(spark, program, tmp_path, release_port=released)
    cluster.shutdown()
    assert written(tmp_path) == {"worker-0": (True, None)}


@pytest.mark.masters("local")
def test_reading_and_feeding_are_not_mixed_up(run, spark, tmp_path):
    def program(args, ctx):
        with pytest.raises(tfos.FeedError, match="input_mode=InputMode.SPARK"):
            ctx.get_data_feed()

    cluster = run(spark, program, tmp_path)
    with pytest.raises(tfos.FeedError, match="cluster.train needs input_mode=InputMode.SPARK"):
        cluster.train(spark.sparkContext.parallelize([1]))
    with pytest.raises(tfos.FeedError, match="cluster.inference needs"):
        cluster.inference(spark.sparkContext.parallelize([1]))
    cluster.shutdown()
