"""``breakpoint()`` in a node, and ``tfos attach`` in a process of its own: as a user has them, with real nodes."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.cli import main
from tensorflowonspark.user_cache import user_cache
from tests.support.commands import TFOS
from tests.support.local_cluster import local_cluster
from tests.support.programs import wait_for

_SETTINGS = {"heartbeat_timeout": 3.0, "grace": 1.0, "breakpoints": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    (tmp_path / "cache").mkdir(mode=0o700)


@contextmanager
def attached(*words):
    """Run ``tfos attach`` with pipes in place of a terminal."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([*TFOS, "attach", *words], **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def typed(process, text):
    """Type lines, and return all that the command shows until it ends, and its exit code."""
    output, _ = process.communicate(text, timeout=60)
    return output, process.returncode


def waits(cluster, *nodes):
    wait_for(lambda: set(cluster._monitor.breakpoints.places()) == set(nodes), seconds=60)


def stops(args, ctx):
    value = 20 + ctx.index
    if ctx.index in args:
        breakpoint()
        value += 1
    return value


@pytest.mark.timeout(120)
@pytest.mark.masters("local")
def test_pdb_in_a_terminal_of_its_own_changes_the_program(spark):
    with tfos.Cluster(spark, stops, [1], num_workers=2, nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        waits(cluster, "worker:1")
        with attached("worker:1") as terminal:
            output, code = typed(terminal, "p value\n!value = value * 2\nprint('value is', value)\nn\nc\n")
        assert code == 0, output
        assert f"at {__file__}:" in output
        assert "value += 1" in output
        assert "(Pdb) 21\n" in output
        assert "value is 42" in output  # printed in the terminal, and not in the node's output
        assert "the program goes on" in output
        assert cluster.join() == {"worker:0": 20, "worker:1": 43}


@pytest.mark.timeout(120)
def test_a_node_that_waits_for_a_terminal_does_not_hang_and_its_feed_goes_on():
    def trains(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        if ctx.index == 1:
            breakpoint()
        return float(add())

    with local_cluster(trains, num_workers=2, nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        waits(cluster, "worker:1")
        time.sleep(4 * _SETTINGS["heartbeat_timeout"])
        cluster._check()
        with attached() as terminal:  # the one that waits
            output, code = typed(terminal, "c\n")
        assert code == 0, output
        assert cluster.join() == {"worker:0": 2.0, "worker:1": 2.0}


@pytest.mark.timeout(120)
@pytest.mark.masters("local")
def test_a_feed_waits_as_long_as_a_program_is_looked_at(spark):
    def reads(args, ctx):
        breakpoint()
        return sum(len(each["id"]) for each in ctx.batches(10))

    with tfos.Cluster(spark, reads, nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        streamed = {"cache": None, "feed_timeout": 2.0}
        feeding = threading.Thread(target=cluster.train, args=(spark.range(30),), kwargs=streamed)
        feeding.start()
        waits(cluster, "worker:0")
        time.sleep(3 * 2.0)
        assert feeding.is_alive()
        with attached("worker:0") as terminal:
            assert typed(terminal, "c\n")[1] == 0
        assert cluster.join() == {"worker:0": 30}
        feeding.join()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["its input ends", "SIGINT", "SIGKILL"])
def test_the_program_goes_on_when_the_terminal_goes_away(end):
    with local_cluster(stops, [0], nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        waits(cluster, "worker:0")
        with attached("worker:0") as terminal:
            assert terminal.stdout.readline().startswith("worker:0 of ")
            wait_for(lambda: next(iter(cluster._monitor.breakpoints._waits.values())).show)
            if end == "its input ends":
                terminal.stdin.close()
                terminal.stdin = None
                assert terminal.wait(20) == 0
            else:
                terminal.send_signal(getattr(signal, end))
            assert cluster.join() == {"worker:0": 21}


@pytest.mark.timeout(120)
def test_q_ends_the_program_with_an_error_that_says_so():
    with pytest.raises(tfos.NodeError, match="BdbQuit: q in tfos attach has ended it") as caught:
        with local_cluster(stops, [0], nodes=tfos.Nodes(**_SETTINGS)) as cluster:
            waits(cluster, "worker:0")
            with attached("worker:0") as terminal:
                output, code = typed(terminal, "q\n")
            assert code == 0, output
            assert "the program ends" in output
            cluster.join()
    assert "c in place of q has the program go on" in str(caught.value)
    assert not list((user_cache("attach")).iterdir())


@pytest.mark.timeout(120)
def test_nodes_of_one_cluster_wait_each_for_its_terminal_and_again_at_the_next_line(capsys):
    def program(args, ctx):
        for number in range(3):
            if number != 1:
                breakpoint()
        thread = threading.Thread(target=stops, args=([ctx.index], ctx))
        thread.start()
        thread.join()
        return number

    with local_cluster(program, num_workers=2, nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        waits(cluster, "worker:0", "worker:1")
        assert main(["attach"]) == 2
        assert "several nodes wait: worker:0 of" in capsys.readouterr().err
        with attached("worker:0") as first:
            wait_for(lambda: cluster._monitor.breakpoints._waits[0].show)
            with attached("worker:0") as second:
                output, code = typed(second, "p 1\n")
                assert code == 1
                assert "worker:0 has a terminal already" in output
            output, code = typed(first, "p ctx.index\nc\n")
            assert code == 0, output
            assert "(Pdb) 0\n" in output
        for node in ("worker:0", "worker:1", "worker:1", "worker:0", "worker:1"):
            wait_for(lambda node=node: node in cluster._monitor.breakpoints.places())
            with attached(node) as terminal:
                assert typed(terminal, "c\n")[1] == 0
        assert cluster.join() == {"worker:0": 2, "worker:1": 2}


@pytest.mark.timeout(120)
def test_nothing_opens_unless_it_is_asked_for(capsys):
    with pytest.raises(tfos.NodeError, match="BdbQuit") as caught:
        with local_cluster(stops, [0]) as cluster:
            assert not list(user_cache("attach").iterdir())
            cluster.join()
    assert "nodes=Nodes(breakpoints=True)" in str(caught.value)
    assert main(["attach", "worker:0"]) == 2
    assert "worker:0 does not wait: this user runs no cluster with breakpoints=True" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_only_this_user_reaches_the_socket_and_a_killed_driver_leaves_nothing_in_the_way(capsys, tmp_path):
    with local_cluster(stops, [], nodes=tfos.Nodes(**_SETTINGS)) as cluster:
        folder = user_cache("attach")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (about,) = folder.glob("*.json")
        assert stat.S_IMODE(about.stat().st_mode) == 0o600
        stranger = Path(folder, "1-dead.json")
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        stranger.write_text(about.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {gone.pid}'))
        elsewhere = Path(folder, "2-elsewhere.json")
        elsewhere.write_text(about.read_text().replace('"place": "', '"place": "another '))
        text = about.read_text()
        about.write_text(text.replace('\\"token\\": \\"', '\\"token\\": \\"x'))  # of another cluster
        assert main(["attach"]) == 2
        assert "this user runs no cluster" in capsys.readouterr().err
        about.write_text(text)
        assert main(["attach"]) == 2
        assert "of 1 clusters that take terminals no node waits" in capsys.readouterr().err
        assert not stranger.exists()
        assert elsewhere.exists()
        elsewhere.unlink()
        assert cluster.join() == {"worker:0": 20}
    assert not list(folder.iterdir())
