"""What is done to each process, and what comes of it: the table in docs/failures.md, and the tests of what it says."""

import ast
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import tensorflowonspark as tfos
from here import cluster_here
from inprocess import partitions_of
from processes import node_of
from programs import wait_for

TESTS = Path(__file__).parent
_ENDED_SECONDS = 45.0  # for gRPC to find out that a peer is silent, twice over

# Process, what happens to it, what follows, the test that shows it.
FAULTS = [
    (
        "driver",
        "forks (`os.fork`, `multiprocessing`)",
        "the child has no part in the cluster: its end ends nothing, and its calls raise `ClusterError`",
        "test_fault_table.py::test_a_forked_child_of_the_driver_does_not_end_the_cluster",
    ),
    (
        "driver",
        "is killed while a forked child lives on, with copies of its connections",
        "the nodes end within 20 s, not at once",
        "test_fault_table.py::test_the_driver_is_gone_or_stopped",
    ),
    (
        "driver",
        "SIGINT, SIGTERM, SIGKILL",
        "the nodes end within milliseconds",
        "test_failures.py::test_the_driver_dies",
    ),
    (
        "driver",
        "is stopped (Ctrl-Z, SIGSTOP)",
        "the nodes end after 20 s; the driver that goes on raises `NodeError` (`lost`), or restarts",
        "test_fault_table.py::test_the_driver_is_gone_or_stopped",
    ),
    (
        "driver",
        "its terminal is not read (Ctrl-S, `| less`, a full pipe)",
        "training goes on; lines are dropped, and counted where the output goes on",
        "driver/test_watcher.py::test_a_terminal_that_nobody_reads_stops_nothing",
    ),
    (
        "driver",
        "its terminal is gone (`| head`)",
        "training goes on without output",
        "driver/test_cluster.py::test_output_that_can_not_be_shown_does_no_harm",
    ),
    (
        "any",
        "the wall clock jumps",
        "nothing: all times are of the monotonic clock; certificates allow a day's difference between hosts",
        "test_fault_table.py::test_nobody_waits_by_the_wall_clock",
    ),
    (
        "Spark task",
        "fails or is killed while it feeds",
        "Spark repeats it; rows of attempts that do not count are dropped",
        "test_exactly_once.py",
    ),
    (
        "Spark task",
        "its job is cancelled while it feeds",
        "`FeedError`",
        "test_causes.py::test_a_job_that_is_cancelled",
    ),
    (
        "Spark task",
        "loses its node",
        "it asks the driver; the call raises the node's own error, with its traceback",
        "test_causes.py::test_a_node_fails_while_it_is_fed",
    ),
    (
        "supervisor",
        "SIGKILL",
        "its node ends with it: `NodeError` (`lost`)",
        "test_failures.py::test_a_supervisor_that_is_killed",
    ),
    (
        "supervisor",
        "is stopped (SIGSTOP)",
        "it is killed after `heartbeat_timeout`, and its node with it",
        "supervisor/test_leash.py",
    ),
    (
        "supervisor",
        "the executor's log is not read",
        "training goes on; lines are dropped there, and counted",
        "supervisor/test_output.py::test_a_log_that_nobody_reads_stops_nothing",
    ),
    (
        "node",
        "forks (`os.fork`, `multiprocessing`, `preexec_fn`)",
        "the child ends where a script would end; it sends nothing in the node's name",
        "test_fault_table.py::test_a_forked_child_of_a_node_speaks_for_nobody",
    ),
    (
        "node",
        "a thread raises, or calls `sys.exit`",
        "nothing but its traceback in the output",
        "test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a thread still runs when the program returns",
        "the result counts, and the thread ends with the cluster",
        "test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a signal that the program handles",
        "its handler is called",
        "test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "a signal that the program does not handle",
        "`NodeError` (`killed`) names it",
        "test_failures.py::test_ends_are_told_apart",
    ),
    (
        "node",
        "ignores SIGTERM",
        "it is killed at the cluster's end nevertheless",
        "test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped for less than `heartbeat_timeout`",
        "it goes on",
        "test_fault_table.py::test_threads_and_signals_of_a_program",
    ),
    (
        "node",
        "is stopped (SIGSTOP, a debugger) for longer",
        "`NodeError` (`stopped`) then; sooner if a Spark task or a peer's TensorFlow loses it (20 to 30 s)",
        "test_hangs.py::test_a_node_that_is_stopped",
    ),
    (
        "node",
        "is killed after its program has returned",
        "`NodeError`: its peers and inference still need it",
        "test_causes.py::test_a_node_fails_while_it_answers",
    ),
    (
        "fork server",
        "SIGKILL",
        "its nodes go on; how they end is not known then",
        "test_warm_nodes.py::test_a_node_whose_fork_server_died_first_is_still_missed",
    ),
    (
        "fork server",
        "is stopped (SIGSTOP)",
        "its nodes go on, and others start without it, a second later",
        "test_warm_nodes.py::test_a_fork_server_that_is_stopped",
    ),
    (
        "driver",
        "may open few files (`ulimit -n`)",
        "it raises its own limit; if the hard limit is too low, an error names it",
        "test_handover.py::test_files_are_allowed_as_far_as_the_system_lets_them",
    ),
    (
        "driver",
        "strangers hold connections, with TLS or without",
        "at most 64 at a time, 10 s each; members get through",
        "transport/test_hostile.py::test_more_strangers_than_the_gate_lets_wait_keep_nobody_out",
    ),
    (
        "driver",
        "its host vanishes, or its network drops everything",
        "the nodes end within 20 s",
        "transport/test_transport.py::test_a_peer_that_vanishes_is_noticed",
    ),
    (
        "driver",
        "executors come late, or are replaced late",
        "it waits up to `start_timeout`, and reports its progress",
        "test_late_executors.py::test_slots_are_waited_for_as_long_as_they_can_come",
    ),
    (
        "Spark task",
        "a full disk, a read-only or removed spark.local.dir, `ulimit -f`, `ulimit -n`",
        "`FeedError` names the directory, the host and the limit",
        "test_handover.py::test_a_limit_of_the_host_is_named",
    ),
    (
        "supervisor",
        "can't start its node: a full disk, `ulimit -u`, `ulimit -n`",
        "`StartError` names it; nothing stays",
        "supervisor/test_starting.py::test_what_keeps_a_node_from_starting_is_reported",
    ),
    (
        "node",
        "a full disk while it keeps rows",
        "`FeedError` names the directory",
        "node/test_cache.py::test_a_disk_that_is_full_is_named",
    ),
    (
        "node",
        "is fed more partitions than it may open files (`ulimit -n`)",
        "nothing: mapped files hold none open",
        "test_handover.py::test_more_files_are_mapped_than_may_be_open",
    ),
    (
        "node",
        "may map no more memory (`ulimit -v`, vm.max_map_count)",
        "`FeedError` names the limit",
        "test_handover.py::test_a_process_that_may_map_no_more_says_so",
    ),
    (
        "node",
        "closes its standard output",
        "nothing",
        "test_failures.py::test_a_program_may_close_its_output",
    ),
    (
        "node",
        "closes the connection to its supervisor (`os.closerange`)",
        "`NodeError` (`exited`) names it",
        "test_failures.py::test_ends_are_told_apart",
    ),
    (
        "node",
        "starts processes in a session of their own (`setsid`, daemons)",
        "they end with it",
        "test_failures.py::test_processes_that_left_the_nodes_group_go_with_it",
    ),
    (
        "node",
        "raises an exception without a text, or of 50 MB",
        "`NodeError` with the beginning of the text, and the traceback",
        "test_failures.py::test_an_exception_of_any_kind_reaches_the_driver",
    ),
    (
        "node",
        "a bit of its newest checkpoint has flipped",
        "all workers go on from the one before, with a warning",
        "node/test_checkpoints.py::test_a_checkpoint_with_a_flipped_bit_gives_way_to_the_one_before",
    ),
    (
        "any",
        "a slow network",
        "nothing: it is waited for",
        "transport/test_transport.py::test_a_slow_network_is_waited_for",
    ),
    (
        "any",
        "a small /dev/shm",
        "nothing: no file is kept there",
        "test_handover.py::test_a_nameless_file_is_opened",
    ),
]


def table():
    """Return the table as it is in the documentation."""
    rows = [f"| {process} | {fault} | {follows} |" for process, fault, follows, _ in FAULTS]
    return "\n".join(["| process | what happens to it | what follows |", "|---|---|---|", *rows])


def test_the_documentation_has_the_table():
    assert table() in (TESTS.parent / "docs" / "failures.md").read_text()


@pytest.mark.parametrize("test", sorted({test for *_, test in FAULTS}))
def test_each_row_has_its_test(test):
    path, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text() if name else (TESTS / path).exists()


# ---- clocks

_WALL_CLOCK = re.compile(r"\b(?:time\.time|time\.time_ns|datetime\.now|datetime\.utcnow|datetime\.today)$")


def test_nobody_waits_by_the_wall_clock():
    package = Path(tfos.__file__).parent
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _WALL_CLOCK.search(ast.unparse(node.func))
    }
    assert callers == {"transport/credentials.py"}  # since when a certificate is valid


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
    with cluster_here(threads_and_signals, heartbeat_timeout=10) as cluster:
        assert cluster.join() == {"worker:0": ["SIGUSR1"]}
    with pytest.raises(KeyboardInterrupt), cluster_here(threads_and_signals, num_workers=2) as cluster:
        wait_for(lambda: cluster.nodes[0].returned)
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


def test_a_forked_child_of_a_node_speaks_for_nobody(monkeypatch):
    monkeypatch.setattr("tensorflowonspark.driver.cluster.check_frame", lambda *_: None)
    with cluster_here(forks) as cluster:
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
        assert not psutil.wait_procs(nodes, timeout=_ENDED_SECONDS)[1]
        if how == "stops":
            driver.send_signal(signal.SIGCONT)
            assert driver.wait(30)
            assert "failed: the connection to its supervisor broke" in driver.stderr.read()
    finally:
        for process in [driver, *family]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.communicate()
