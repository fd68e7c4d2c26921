"""What users meet first when something goes wrong: each named, within seconds, with nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.processes import node_of
from tests.support.programs import wait_for

_ERROR_SECONDS = 5.0  # the promise: from a death to the driver's error


def sleep(args, ctx):
    print("asleep", flush=True)
    if args:
        Path(args, str(ctx.index)).touch()
    time.sleep(3600)


def killed_while_joining(cluster, kill, asleep=None):
    """Kill something while the driver waits, once a file is there; return the error and the seconds until it came."""
    moment = []

    def later():
        time.sleep(0.5)
        wait_for(lambda: asleep is None or asleep.exists(), 60)
        moment.append(time.monotonic())
        kill()

    Thread(target=later).start()
    with pytest.raises(tfos.NodeError) as caught:
        cluster.join()
    return caught.value, time.monotonic() - moment[0]


@pytest.mark.parametrize("hold", [pytest.param(False, marks=pytest.mark.smoke), True], ids=["detached", "held"])
def test_a_program_that_raises(spark, hold):
    def program(args, ctx):
        if ctx.index == 1:
            raise LookupError("nothing here")
        time.sleep(3600)

    with (
        pytest.raises(tfos.NodeError) as caught,
        tfos.Cluster(spark, program, num_workers=2, nodes=tfos.Nodes(hold=hold)) as cluster,
    ):
        cluster.join()
    error = caught.value
    assert error.node == "worker:1"
    assert error.host in ("localhost", "127.0.0.1", "127.0.0.2")
    assert error.reason == "its program raised LookupError: nothing here"
    assert 'raise LookupError("nothing here")' in error.traceback
    assert "tensorflowonspark" not in error.traceback  # the user's own frames, nobody else's


@pytest.mark.parametrize("hold", [False, pytest.param(True, marks=pytest.mark.smoke)], ids=["detached", "held"])
def test_a_node_that_is_killed(spark, hold, tmp_path):
    with (
        pytest.raises(tfos.NodeError),
        tfos.Cluster(spark, sleep, str(tmp_path), num_workers=2, nodes=tfos.Nodes(hold=hold)) as cluster,
    ):
        asleep = tmp_path / "1"
        error, seconds = killed_while_joining(cluster, lambda: node_of(cluster, 1).kill(), asleep)
        assert (error.node, error.reason) == ("worker:1", "its process was ended by SIGKILL")
        assert "asleep" in error.output
        assert seconds < _ERROR_SECONDS
        raise error


@pytest.mark.slow
@pytest.mark.masters("local-cluster", "standalone")  # in local mode it is the driver's JVM: test_the_driver_dies
def test_an_executor_that_dies(spark):
    with pytest.raises(tfos.NodeError), tfos.Cluster(spark, sleep, num_workers=2) as cluster:
        executor = psutil.Process(cluster.nodes[0].jvm_pid)
        error, seconds = killed_while_joining(cluster, executor.kill)
        reason = r"the executor that it ran on has ended \(executor \d: Command exited with code 137\)"
        assert re.fullmatch(reason, error.reason)
        assert seconds < _ERROR_SECONDS
        raise error


@pytest.mark.masters("local", "standalone")
def test_a_supervisor_that_is_killed(spark):
    def with_a_child(args, ctx):
        subprocess.Popen(["sleep", "3600"])
        sleep(args, ctx)

    with pytest.raises(tfos.NodeError), tfos.Cluster(spark, with_a_child, num_workers=2) as cluster:
        node = node_of(cluster, 0)
        wait_for(lambda: "sleep" in [process.name() for process in node.children(recursive=True)])
        family = [node, *node.children(recursive=True)]
        error, seconds = killed_while_joining(cluster, psutil.Process(cluster.nodes[0].pid).kill)
        assert not psutil.wait_procs(family, timeout=5)[1]
        assert error.node == "worker:0"
        assert "the connection to its supervisor broke" in error.reason
        assert seconds < _ERROR_SECONDS
        raise error


def start_daemons(args, ctx):
    """Start processes that leave the node's group: a session of its own, a daemon, and one that is only forked."""
    (Path(args) / str(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid)).touch()
    daemon = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
    daemon += "open(sys.argv[1] + '/' + str(os.getpid()), 'w').close(); time.sleep(3600)"
    subprocess.run([sys.executable, "-c", daemon, args], check=True)
    if not os.fork():
        os.setsid()
        (Path(args) / str(os.getpid())).touch()
        time.sleep(3600)
    wait_for(lambda: len(os.listdir(args)) == 3)
    (Path(args) / "up").touch()
    time.sleep(3600 if os.environ["STAY"] else 0)


@pytest.mark.masters("local")
@pytest.mark.parametrize("end", ["returns", "node", "supervisor"])
def test_processes_that_left_the_nodes_group_go_with_it(spark, tmp_path, end):
    environment = {"STAY": "" if end == "returns" else "1"}
    cluster = tfos.Cluster(spark, start_daemons, str(tmp_path), env=environment).start()
    wait_for(lambda: (tmp_path / "up").exists())
    started = [psutil.Process(int(name)) for name in os.listdir(tmp_path) if name != "up"]
    assert len(started) == 3
    if end == "returns":
        assert cluster.shutdown() == {"worker:0": None}
    else:
        with pytest.raises(tfos.NodeError):
            (node_of(cluster, 0) if end == "node" else psutil.Process(cluster.nodes[0].pid)).kill()
            cluster.shutdown()
    assert not psutil.wait_procs(started, timeout=5)[1]


@pytest.mark.masters("local")
@pytest.mark.parametrize("victim", ["node", "supervisor"])
def test_temporary_files_go_with_their_node(spark, tmp_path, victim):
    def program(args, ctx):
        from tensorflowonspark.supervisor.host import local_directory

        assert local_directory() == ctx.scratch
        Path(tempfile.mkdtemp(dir=ctx.scratch), "half").write_text("a checkpoint")
        Path(args).write_text(ctx.scratch)
        time.sleep(3600)

    told = tmp_path / "scratch"
    with pytest.raises(tfos.NodeError), tfos.Cluster(spark, program, str(told)) as cluster:
        wait_for(lambda: told.exists() and told.read_text())
        scratch = Path(told.read_text())
        assert list(scratch.glob("*/half"))
        (node_of(cluster, 0) if victim == "node" else psutil.Process(cluster.nodes[0].pid)).kill()
        cluster.join()
    wait_for(lambda: not scratch.exists())


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "its process ended with exit code 3 before its program did"),
        (lambda: sys.exit("enough"), "its program called sys.exit('enough')"),
        (lambda: os.abort(), "its process was ended by SIGABRT"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "its process was ended by SIGTERM"),
        (
            lambda: (os.closerange(3, 1000), time.sleep(60)),
            "its program closed the connection to its supervisor, as os.closerange does, or a second close of a file",
        ),
    ],
    ids=["exit", "sys.exit", "abort", "SIGTERM", "closerange"],
)
def test_ends_are_distinguished(spark, end, words):
    with pytest.raises(tfos.NodeError) as caught:
        tfos.run(spark, lambda args, ctx: end())
    assert caught.value.reason == words


@pytest.mark.masters("local")
def test_a_program_that_exits_is_shown_with_its_last_words(spark):
    """As of argparse, which prints what is wrong, and exits with 2."""

    def program(args, ctx):
        import argparse

        argparse.ArgumentParser(prog="train.py").parse_args(["--nosuch"])

    with pytest.raises(tfos.NodeError) as caught:
        tfos.run(spark, program)
    assert caught.value.exit_code == 2
    assert "\ntrain.py: error: unrecognized arguments: --nosuch" in str(caught.value)


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text for you")


class Odd(SyntaxError):
    lineno = property(lambda self: 1 / 0)


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Unspeakable, r"Unspeakable: \(without a text: its __str__ raised ValueError\)"),
        (lambda: ValueError("x" * 50_000_000), "ValueError: x{2000}"),
        (lambda: Odd("syntax \ud800"), "Odd: syntax"),
        (lambda: SystemExit(Unspeakable()), r"sys.exit\('\(without a text: its __str__ raised ValueError\)'\)"),
    ],
    ids=["without a text", "50 MB", "that can't be shown", "exit code without a text"],
)
def test_an_exception_of_any_kind_reaches_the_driver(spark, make, words):
    def program(args, ctx):
        raise make()

    with pytest.raises(tfos.NodeError, match=words) as caught:
        tfos.run(spark, program)
    assert caught.value.cause in ("raised", "exited")
    assert "raise make()" in caught.value.traceback
    assert len(str(caught.value)) < 50_000


@pytest.mark.masters("local")
def test_a_program_may_close_its_output(spark):
    def program(args, ctx):
        if args == "closed":
            sys.stdout.close()
        elif args == "gone":
            sys.stdout = sys.stderr = None
        else:
            os.close(1)
            os.close(2)
        return args

    for how in ("closed", "gone", "descriptors"):
        assert tfos.run(spark, program, how) == {"worker:0": how}


@pytest.mark.masters("local")
def test_a_module_that_the_executors_do_not_have(spark):
    def program(args, ctx):
        import no_such_module

        return no_such_module

    with pytest.raises(tfos.NodeError, match="install no_such_module in the executors' Python") as caught:
        tfos.run(spark, program)
    assert caught.value.reason == "its program raised ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.masters("local")
def test_a_program_that_can_not_be_unpickled_in_the_node(spark, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def program(args, ctx): pass")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    with pytest.raises(tfos.NodeError, match="install only_here in the executors' Python"):
        tfos.run(spark, only_here.program)


@pytest.mark.masters("local")
def test_a_result_that_can_not_be_sent(spark):
    with pytest.raises(tfos.NodeError, match="the program returned a generator, which can't be sent"):
        tfos.run(spark, lambda args, ctx: (each for each in range(3)))


@pytest.mark.masters("local")
def test_out_of_memory_is_called_by_its_name(spark, tmp_path):
    group = Path("/sys/fs/cgroup/memory") / f"tfos-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError:
        pytest.skip("this host lets no one make a memory control group (cgroup 1) to run out of memory in")

    def program(args, ctx):
        supervisor = os.getppid()
        for pid in (supervisor, os.getpid()):
            (Path(args) / "cgroup.procs").write_text(str(pid))
        time.sleep(0.2)
        return len(bytearray(os.urandom(1)) * (1 << 30))

    try:
        with pytest.raises(tfos.NodeError) as caught:
            tfos.run(
                spark, program, str(group), nodes=tfos.Nodes(warm_nodes=False)
            )  # so that its parent is the supervisor, which counts
        assert caught.value.reason == "it ran out of memory: the kernel killed its process"
        assert "spark.executor.memoryOverhead" in caught.value.advice
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), 5)
        group.rmdir()


_DRIVER = """
import os, sys, time
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

def sleep(args, ctx):
    print("asleep", flush=True)
    time.sleep(3600)

spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
with tfos.Cluster(spark, sleep, num_workers=2, hold=sys.argv[2] == "held") as cluster:
    print("up", *[node.pid for node in cluster.nodes], flush=True)
    cluster.join()
"""


@pytest.mark.parametrize(
    ("master", "how"),
    [
        ("local[2]", signal.SIGINT),
        ("local[2]", signal.SIGTERM),
        ("local-cluster[2,1,1024]", signal.SIGTERM),
        ("local-cluster[2,1,1024]", signal.SIGKILL),
    ],
    ids=str,
)
@pytest.mark.slow
def test_the_driver_dies(master, how, tmp_path):
    """Ctrl-C, kill and kill -9 of the driver: no node outlives it by more than a moment."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(_DRIVER))
    mode = "held" if how is signal.SIGTERM else "detached"
    driver = subprocess.Popen(
        [sys.executable, str(script), master, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    words = driver.stdout.readline().split()
    assert words[:1] == ["up"], driver.stderr.read()
    supervisors = [psutil.Process(int(pid)) for pid in words[1:]]
    nodes = [child for each in supervisors for child in each.children()]
    assert len([node for node in nodes if "tensorflowonspark.node" in node.cmdline()]) == 2  # each with its leash
    driver.send_signal(how)
    _, alive = psutil.wait_procs([*supervisors, *nodes], timeout=_ERROR_SECONDS)
    assert not alive
    assert driver.wait(30) != 0
    if how is signal.SIGINT:
        assert "KeyboardInterrupt" in driver.stderr.read()
