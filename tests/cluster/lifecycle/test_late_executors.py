"""Executors that come late, or are replaced late: as the pods of Kubernetes, whose images are pulled first."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.commands import run_python
from tests.support.paths import ROOT

_PROGRAM = """
import contextlib, logging, os, signal, sys, tempfile, time
from threading import Timer

import psutil
from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tests.support.standalone import standalone_cluster, start_worker

logging.basicConfig(format="%(message)s")


def where(args, ctx):
    assert ctx.host != "127.0.0.9"
    return ctx.attempt, ctx.host


def wait_once(args, ctx):
    if ctx.attempt == 0:
        time.sleep(600)
    return ctx.attempt


def end(worker):
    for process in [*worker.children(recursive=True), worker]:
        process.kill()


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.ExitStack() as stack:
    master = stack.enter_context(standalone_cluster(scratch, [1]))
    workers = []

    def later(number):
        workers.append(psutil.Process(start_worker(scratch, master, number, 1, host=f"127.0.0.{number}").pid))

    stack.callback(lambda: [end(each) for each in workers])
    spark = (
        SparkSession.builder.master(master).config("spark.cores.max", "2").config("spark.executor.cores", "1")
        .config("spark.executor.memory", "512m").config("spark.ui.enabled", "false").getOrCreate()
    )
    stack.callback(spark.stop)
    Timer(13, later, (2,)).start()
    print(tfos.run(spark, where, num_workers=2))

    with tfos.Cluster(spark, wait_once, num_workers=2, restarts=1) as cluster:
        Timer(1, end, (workers.pop(),)).start()
        Timer(15, later, (3,)).start()
        print(cluster.join())

    end(workers.pop())
    time.sleep(2)
    try:
        tfos.run(spark, where, num_workers=2, start_timeout=6)
    except tfos.SlotsError as error:
        print(error)
"""


_LOST_BEFORE = """
import contextlib, logging, os, tempfile, time
from threading import Timer

import psutil
from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.resources import count_slots
from tests.support.standalone import standalone_cluster, start_worker

logging.basicConfig(format="%(message)s")


def end(worker):
    for process in [*worker.children(recursive=True), worker]:
        process.kill()


def wait_for_slots(count):
    end = time.monotonic() + 60
    while count_slots(spark.sparkContext) != count:
        assert time.monotonic() < end
        time.sleep(0.1)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.ExitStack() as stack:
    master = stack.enter_context(standalone_cluster(scratch, [1]))
    workers = []

    def start(number):
        workers.append(psutil.Process(start_worker(scratch, master, number, 1).pid))

    start(1)
    stack.callback(lambda: [end(each) for each in workers])
    spark = (
        SparkSession.builder.master(master).config("spark.executor.cores", "1").config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false").getOrCreate()
    )
    stack.callback(spark.stop)
    wait_for_slots(2)
    end(workers.pop())
    wait_for_slots(1)
    Timer(10, start, (2,)).start()
    begin = time.monotonic()
    print(tfos.run(spark, lambda ctx: ctx.index, num_workers=2), time.monotonic() - begin > 9)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_executor_that_was_lost_before_the_start_is_waited_for():
    """A standalone application without spark.cores.max, whose settings do not show what may come."""
    assert run_python(_LOST_BEFORE, seconds=200).splitlines()[-1] == "{'worker:0': 0, 'worker:1': 1} True"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_slots_are_waited_for_as_long_as_they_can_come():
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    first, again, error = done.stdout.splitlines()[-3:]
    assert "127.0.0.1" in first
    assert "127.0.0.2" in first
    assert again == "{'worker:0': 1, 'worker:1': 1}"
    waited = "waiting for task slots: 1 of 2 are there, spark://.* was asked for 2 executors of 1 cores, and 1 have"
    assert len(re.findall(waited, done.stderr)) >= 2
    assert "needs 2 task slots at the same time, and the Spark application has 1: spark://" in error
    assert "was asked for 2 executors of 1 cores, and 1 have registered within 6 s: see in its UI" in error
