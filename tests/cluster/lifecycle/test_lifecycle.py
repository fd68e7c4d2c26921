"""Clusters that come up, do nothing heavy, and go: on each kind of Spark."""

import json
import logging
import os
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.resources import count_slots
from tests.support.programs import wait_for


def where(args, ctx):
    """A program that tells all that a node knows of itself."""
    print(f"I am {ctx.role}")
    return {
        "role": str(ctx.role),
        "args": args,
        "config": json.loads(os.environ["TF_CONFIG"]),
        "chief": ctx.is_chief,
        "workers": ctx.num_workers,
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "variable": os.environ.get("A_VARIABLE"),
        "secrets": [name for name in os.environ if "SECRET" in name],
    }


@pytest.mark.parametrize("hold", [pytest.param(False, marks=pytest.mark.smoke), True], ids=["detached", "held"])
def test_nodes_know_each_other(spark, hold, caplog):
    caplog.set_level(logging.INFO, "tensorflowonspark")
    settings = {"nodes": tfos.Nodes(hold=hold), "logs": tfos.Logs(show="all")}
    with tfos.Cluster(spark, where, {"a": 1}, num_workers=2, env={"A_VARIABLE": "7"}, **settings) as cluster:
        results = cluster.join()
    assert list(results) == ["worker:0", "worker:1"]
    first, second = results.values()
    assert first["config"]["cluster"] == second["config"]["cluster"]
    assert len(set(first["config"]["cluster"]["worker"])) == 2
    assert second["config"]["task"] == {"type": "worker", "index": 1}
    assert (first["chief"], second["chief"], first["workers"]) == (True, False, 2)
    assert first["args"] == {"a": 1}
    assert first["variable"] == "7"
    assert first["secrets"] == []
    assert first["group"] == first["pid"] != second["pid"]
    assert "[worker:1] I am worker:1" in caplog.messages


def test_a_detached_cluster_leaves_the_slots_to_others(spark):
    def wait_for_file(path, ctx):
        while not os.path.exists(path):
            time.sleep(0.01)
        return True

    path = os.path.join(spark.conf.get("spark.local.dir"), f"go-{time.monotonic_ns()}")
    with tfos.Cluster(spark, wait_for_file, path, num_workers=2) as cluster:
        assert spark.range(0, 100, 1, 4).count() == 100
        open(path, "w").close()
        assert cluster.join() == {"worker:0": True, "worker:1": True}


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_ps_and_evaluator_end_when_chief_and_workers_have(spark, monkeypatch):
    monkeypatch.setattr("tensorflowonspark.driver.cluster._FIRST_SECONDS", 0.5)

    def program(args, ctx):
        if ctx.job in ("ps", "evaluator"):
            print("serving", flush=True)
            time.sleep(3600)
        return ctx.job

    results = tfos.run(spark, program, num_workers=1, chief=True, num_ps=1, evaluator=True)
    assert results == {"chief:0": "chief", "worker:0": "worker"}


@pytest.mark.masters("local", "standalone")
def test_too_few_slots_are_reported_within_seconds(spark):
    slots = count_slots(spark.sparkContext)
    assert slots == (4 if spark.sparkContext.master.startswith("local[") else 2)
    started = time.monotonic()
    words = f"needs {slots + 1} task slots at the same time, and the Spark application has {slots}"
    with pytest.raises(tfos.SlotsError, match=words):
        tfos.Cluster(spark, where, num_workers=slots + 1).start()
    assert time.monotonic() - started < 15


@pytest.mark.masters("local")
def test_slots_that_other_jobs_hold_are_waited_for_and_named(spark):
    def occupy(batches):
        time.sleep(12)
        yield from batches

    busy = spark.range(0, 4, 1, 4).mapInArrow(occupy, "id long")
    from tensorflowonspark.driver.spark.jobs import SparkJob

    job = SparkJob(spark, "occupies all slots", busy.collect, lambda: None)
    wait_for(lambda: job.tasks()[1] == 4)
    with pytest.raises(tfos.StartError, match=r"worker:0 \(not connected.*other jobs may hold the slots"):
        tfos.Cluster(spark, where, num_workers=2, nodes=tfos.Nodes(start_timeout=2.0)).start()
    job.cancel()
    job.wait(20)


@pytest.mark.smoke
@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"function": "train"}, "there is no script train"),
        ({"args": (each for each in "abc")}, "can't be shipped to the nodes"),
        ({"num_workers": 0}, "no node would train"),
        ({"logs": tfos.Logs(log_level="LOUD")}, "log_level='LOUD'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(spark, arguments, words):
    arguments = {"function": where, **arguments}
    with pytest.raises(ValueError, match=words):
        tfos.Cluster(spark, **arguments)


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_a_cluster_is_used_inside_its_block(spark):
    cluster = tfos.Cluster(spark, where, num_workers=1)
    with pytest.raises(tfos.ClusterError, match="not running"):
        cluster.train(spark.range(3))
    with cluster:
        pass
    with pytest.raises(tfos.ClusterError, match="not running"):
        cluster.train(spark.range(3))
    with pytest.raises(tfos.ClusterError, match="started before"):
        cluster.start()


@pytest.mark.masters("local")
def test_the_block_raises_what_the_users_code_raised_and_ends_all_nodes(spark):
    started = time.monotonic()
    with pytest.raises(ZeroDivisionError), tfos.Cluster(spark, lambda args, ctx: time.sleep(3600), num_workers=2):
        _ = 1 / 0
    assert time.monotonic() - started < 15


@pytest.mark.masters("local")
def test_exit_functions_of_a_program_run(spark, tmp_path):
    def program(path, ctx):
        import atexit

        atexit.register(lambda: Path(path).write_text("ran"))

    tfos.run(spark, program, str(tmp_path / "exit"))
    assert (tmp_path / "exit").read_text() == "ran"


@pytest.mark.masters("local")
def test_output_below_the_level_stays_on_the_executor(spark, caplog):
    caplog.set_level(logging.DEBUG, "tensorflowonspark")

    def talk(args, ctx):
        print("quiet")
        print("WARNING:root:loud")

    tfos.run(spark, talk, logs=tfos.Logs(log_level="WARNING"))
    assert "[worker:0] WARNING:root:loud" in caplog.messages
    assert "[worker:0] quiet" not in caplog.messages


@pytest.mark.masters("local-cluster", "standalone")
def test_output_is_in_the_executors_log_too(spark):
    word = f"word-{time.monotonic_ns()}"
    tfos.run(spark, lambda args, ctx: print(args), word)

    def executor_log(batches):
        for _ in batches:
            with open("stderr") as log:
                yield pa.record_batch({"text": [log.read()]})

    logs = spark.range(0, 2, 1, 2).mapInArrow(executor_log, "text string").collect()
    assert any(f"[worker:0] {word}" in row.text for row in logs)


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_gpus_that_spark_gives_the_task(spark, monkeypatch):
    """What Spark's resource API gives is set in the node (a session of its own: tests/task/test_gpus.py)."""
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert tfos.run(spark, lambda args, ctx: os.environ.get("CUDA_VISIBLE_DEVICES"))["worker:0"] is None


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_tensorboard_is_up_with_the_cluster_and_gone_with_it(spark, tmp_path):
    from urllib.request import urlopen

    with tfos.Cluster(spark, lambda args, ctx: list(ctx.feeds()), tensorboard=str(tmp_path)) as cluster:
        wait_for(lambda: cluster.tensorboard_url)
        with urlopen(cluster.tensorboard_url, timeout=30) as page:
            assert page.status == 200
        boards = [p for p in psutil.process_iter(["cmdline"]) if "supervisor.tensorboard" in str(p.info["cmdline"])]
        assert boards
    assert not psutil.wait_procs(boards, timeout=5)[1]
