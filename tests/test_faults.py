"""What is done to each process, and what comes of it: the table in docs/failures.md, and the tests of what it says."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import tensorflowonspark as tfos

TESTS = Path(__file__).parent


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


@pytest.mark.masters("local")
def test_a_forked_child_of_a_node_speaks_for_nobody(spark, capfd):
    with tfos.Cluster(spark, forks) as cluster:
        cluster.train(spark.range(10))
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


_FORKING_DRIVER = """
import multiprocessing, os, sys
sys.path.insert(0, {path!r})
from test_cluster import FakeBackend, cluster_of, returns
import tensorflowonspark as tfos

backend = FakeBackend(lambda node: node.feeding.wait() and returns(7)(node))

def child(act):
    pid = os.fork()
    if not pid:
        act()
        return True
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return False

def refused(act):
    try:
        act()
    except tfos.ClusterError as error:
        sys.exit(5 if "is a forked child of the driver" in str(error) else 6)

with cluster_of(backend) as cluster:
    calls = [cluster.check, cluster.join, cluster.shutdown, lambda: cluster.inference(None, "")]
    left = child(lambda: sys.exit(0)) or child(lambda: None)
    if not left:
        for call in calls:
            child(lambda: refused(call))
        forked = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
        forked.start()
        forked.join()
        print(forked.exitcode)
        backend.nodes[0].feeding.set()
        assert not backend.nodes[0].stopped.is_set()
if not left:
    print(cluster.join(), flush=True)
"""


def test_a_forked_child_of_the_driver_does_not_end_the_cluster(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(_FORKING_DRIVER.format(path=str(TESTS / "driver"))))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["0", "0", "5", "5", "5", "5", "4", "{'worker:0': 7}"]
