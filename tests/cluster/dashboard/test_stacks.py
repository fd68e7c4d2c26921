"""The stacks of a running cluster's nodes: whatever they do, in a bounded time, and for nobody else."""

import ctypes
import os
import re
import signal
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.cli import main
from tests.support.local_cluster import local_cluster
from tests.support.pages import get, with_token
from tests.support.processes import node_of
from tests.support.programs import wait_for


class Enough(Exception):
    """Ends a cluster whose programs do not end."""


_SHORT = tfos.Nodes(grace=1)
_BOUND_SECONDS = 6.0 + 2.0  # as of `driver/stack_collection.py`, and some for a busy machine


def stacks(url, node=""):
    """Return what the page answers, within the time that it promises."""
    begin = time.monotonic()
    status, headers, body = get(url, with_token(url, f"/stacks?node={node}"))
    assert time.monotonic() - begin < _BOUND_SECONDS
    assert status == 200
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    return body.decode()


def of_node(text, name):
    """Return the part of a node."""
    return re.search(rf"^==== {name} on .*?(?=^====|\Z)", text, re.MULTILINE | re.DOTALL)[0]


def waits_for_ever(args, ctx):
    def helps(event):
        event.wait(password="hunter2") if args == "fails" else event.wait()

    threading.Thread(target=helps, args=(threading.Event(),), daemon=True, name="a-helper").start()
    print("waits", flush=True)
    if ctx.index == 1:
        native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(256)  # functions that keep Python's lock
        native.pthread_mutex_lock(mutex)
        native.pthread_mutex_lock(mutex)
    time.sleep(3600)


def waiting(cluster):
    """Wait until both programs do."""
    wait_for(lambda: all("waits" in cluster._run.metrics.lines(node) for node in (0, 1)), seconds=60)
    time.sleep(0.5)


@pytest.mark.timeout(120)
@pytest.mark.masters("local")
def test_the_stacks_of_nodes_that_wait_and_that_hold_pythons_lock(spark, capsys):
    with suppress(Enough), tfos.Cluster(spark, waits_for_ever, num_workers=2, dashboard=True, nodes=_SHORT) as cluster:
        waiting(cluster)
        url = cluster.dashboard_url
        text = stacks(url)
        assert text.startswith("Python stacks of 2 of 2 nodes, ")
        waits, holds = of_node(text, "worker:0"), of_node(text, "worker:1")
        assert waits.index("Thread MainThread") < waits.index("time.sleep(3600)") < waits.index("Thread a-helper")
        assert 'password="<redacted>"' in waits
        assert "hunter2" not in text
        assert "native code holds Python's lock" in holds
        assert re.search(r'File ".*test_stacks.py", line \d+ in waits_for_ever', holds)
        assert re.search(r'File ".*test_stacks.py", line \d+ in helps', holds)
        capsys.readouterr()
        assert main(["stacks", url, "worker:0"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("Python stacks of 1 of 1 nodes, ")
        assert "time.sleep(3600)" in printed
        raise Enough


@pytest.mark.timeout(120)
def test_nodes_that_send_none_are_named_with_the_reason():
    with suppress(Enough), local_cluster(waits_for_ever, num_workers=2, dashboard=True, nodes=_SHORT) as cluster:
        waiting(cluster)
        stopped = node_of(cluster, 0)
        stopped.send_signal(signal.SIGSTOP)
        text = stacks(cluster.dashboard_url)
        host = cluster.nodes[0].host
        assert f"worker:0 on {host} sent none: its process {stopped.pid} is stopped (SIGSTOP, or a debugger)" in text
        assert "in waits_for_ever" in of_node(text, "worker:1")
        stopped.send_signal(signal.SIGCONT)
        os.kill(cluster.nodes[1].pid, signal.SIGSTOP)  # a supervisor
        text = stacks(cluster.dashboard_url)
        assert f"worker:1 on {host} sent none: its supervisor has not answered within 5 s" in text
        assert "in waits_for_ever" in of_node(text, "worker:0")
        os.kill(cluster.nodes[1].pid, signal.SIGCONT)
        wait_for(lambda: stacks(cluster.dashboard_url).startswith("Python stacks of 2 of 2 nodes"), seconds=30)
        raise Enough


@pytest.mark.timeout(120)
def test_a_program_that_has_taken_the_signals_handler_away_goes_on():
    def program(args, ctx):
        import faulthandler

        faulthandler.unregister(args)
        print("waits", flush=True)
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            ctypes.PyDLL(None).usleep(1_000_000)
        return "done"

    from tensorflowonspark.node.stacks import STACKS_SIGNAL

    with local_cluster(program, int(STACKS_SIGNAL), dashboard=True, nodes=_SHORT) as cluster:
        wait_for(lambda: "waits" in cluster._run.metrics.lines(0), seconds=60)
        stacks(cluster.dashboard_url)  # of whichever kind
        assert cluster.join() == {"worker:0": "done"}


def test_the_page_alone_answers_and_only_for_its_token(capsys):
    with (
        suppress(Enough),
        local_cluster(waits_for_ever, dashboard=tfos.Dashboard(page_port=0, metrics_port=0), nodes=_SHORT) as cluster,
    ):
        url = cluster.dashboard_url
        assert get(url, "/stacks")[0] == 403
        assert get(url, "/stacks?token=another")[0] == 403
        metrics = cluster.metrics_url
        if urlsplit(metrics).port != urlsplit(url).port:
            assert get(metrics, with_token(metrics, "/stacks"))[0] == 404
        assert main(["stacks", url, "worker:7"]) == 2
        assert "There is no node worker:7 (did you mean 'worker:0'?)" in capsys.readouterr().err
        assert main(["stacks", url.partition("?")[0]]) == 1
        assert "refuses the request (403)" in capsys.readouterr().err
        raise Enough
    assert main(["stacks", url]) == 1
    assert "does not answer" in capsys.readouterr().err
