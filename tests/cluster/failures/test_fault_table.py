"""Faults of processes, threads and signals that no other file tests."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.inprocess import partitions_of
from tests.support.local_cluster import local_cluster
from tests.support.processes import node_of
from tests.support.programs import wait_for

_ENDED_SECONDS = 45.0  # beyond the time-outs of connections to what does not answer


# ---- threads and signals


def threads_and_signals(args, ctx):
    def raises():
        raise LookupError("in a thread")

    for act in (raises, sys.exit):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    handled = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append("SIGUSR1"))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGTERM)
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 1; kill -CONT {os.getpid()}"], check=True)
    threading.Thread(target=time.sleep, args=(3600,)).start()
    if ctx.index == 1:
        time.sleep(3600)  # and is ended with the cluster
    return handled


def test_threads_and_signals_of_a_program():
    with local_cluster(threads_and_signals, nodes=tfos.Nodes(heartbeat_timeout=10)) as cluster:
        assert cluster.join() == {"worker:0": ["SIGUSR1"]}
    with pytest.raises(KeyboardInterrupt), local_cluster(threads_and_signals, num_workers=2) as cluster:
        wait_for(lambda: cluster._monitor.roster.nodes[0].program.returned)
        node = node_of(cluster, 1)
        raise KeyboardInterrupt
    assert not psutil.wait_procs([node], timeout=10)[1]


# ---- fork


def forks(_args, ctx):
    """Fork in every way that there is, and return how each child has ended."""
    ends = {}

    def child(name, act):
        pid = os.fork()
        if not pid:
            act()
            return True
        ends[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return False

    def raises():
        raise LookupError("in the child")

    kept = tempfile.TemporaryDirectory(dir=ctx.scratch)
    for name, act in [
        ("sys.exit(0)", lambda: sys.exit(0)),
        ("sys.exit(3)", lambda: sys.exit(3)),
        ("raises", raises),
        ("returns", lambda: None),
        ("serves", lambda: ctx.serve(lambda ids: ids)),
        ("waits for a feed", ctx.feed),
    ]:
        if child(name, act):
            return "what a child returns"
    forked = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
    forked.start()
    forked.join()
    ends["multiprocessing"] = forked.exitcode
    ends["preexec_fn"] = subprocess.run(["true"], preexec_fn=os.getpid, check=False).returncode
    return ends, Path(kept.name).exists(), ctx.feed().rows


@pytest.mark.smoke
@pytest.mark.usefixtures("unchecked_frames")
def test_a_forked_child_of_a_node_never_acts_for_the_node():
    with local_cluster(forks) as cluster:
        cluster.train(partitions_of([5, 5]), cache="memory")
        ends, kept, rows = cluster.join()["worker:0"]
    assert ends == {
        "sys.exit(0)": 0,
        "sys.exit(3)": 3,
        "raises": 1,
        "returns": 0,
        "serves": 1,
        "waits for a feed": 1,
        "multiprocessing": 4,
        "preexec_fn": 0,
    }
    assert kept
    assert rows == 10


_DRIVER = """
import os, sys, time
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
with tfos.Cluster(spark, lambda args, ctx: time.sleep(3600)) as cluster:
    if sys.argv[1] == "forks" and not os.fork():
        time.sleep(3600)
    print("up", cluster.nodes[0].pid, flush=True)
    cluster.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "with_signal"), [("forks", signal.SIGKILL), ("stops", signal.SIGSTOP)])
def test_the_driver_is_gone_or_stopped(tmp_path, how, with_signal):
    script = tmp_path / "driver.py"
    script.write_text(_DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    family = []
    try:
        words = driver.stdout.readline().split()
        assert words[:1] == ["up"], driver.stderr.read()
        supervisor = psutil.Process(int(words[1]))
        nodes = [supervisor, *supervisor.children()]
        family = psutil.Process(driver.pid).children()
        driver.send_signal(with_signal)
        if how == "stops":
            assert not psutil.wait_procs(nodes, timeout=_ENDED_SECONDS)[0]
            driver.send_signal(signal.SIGCONT)
            assert not psutil.wait_procs([*nodes, psutil.Process(driver.pid)], timeout=3)[0]
            driver.kill()
        assert not psutil.wait_procs(nodes, timeout=_ENDED_SECONDS)[1]
    finally:
        for process in [driver, *family]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.communicate()
