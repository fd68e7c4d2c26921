"""What a notebook shows: a cluster as HTML, the progress bar, and the lines of nodes."""

import io
import os
import re
import sys
import types
from threading import Event

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Progress, TrainingTotals
from tensorflowonspark.terminal import CONSOLE, Unblocked, in_notebook
from tests.support.backend import cluster_on
from tests.support.monitors import console_of
from tests.support.scripted import ScriptedBackend, fails, returns


@pytest.fixture
def notebook(monkeypatch):
    """Have this process look like the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch):
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=object))
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()


@pytest.mark.usefixtures("notebook")
def test_the_bar_is_drawn_in_a_notebook():
    assert in_notebook()
    stream = io.StringIO()  # as the kernel's: no terminal
    reporter = console_of(stream=stream)
    reporter.progress("worker:0", Progress(0, 3, 3, 3))
    reporter.close()
    assert "epoch 1: 100%" in stream.getvalue()


def test_a_kernels_stream_is_written_to_itself():
    """It has the descriptor of the terminal in which the kernel was started."""
    terminal, ours = os.openpty()

    class Stream(io.StringIO):
        def fileno(self):
            return ours

    stream = Stream()
    Unblocked(stream, CONSOLE).write("a line")
    os.close(ours)
    os.close(terminal)
    assert stream.getvalue() == "a line"


def test_a_cluster_shows_its_nodes_state_and_progress():
    def trains(node):
        node.send(TrainingTotals(progress=Progress(2, 6, 8, 48)))
        node.send(TrainingTotals(progress=Progress(2, 6, 0 if node.number else 8, 48)))
        returns(1)(node)

    with cluster_on(ScriptedBackend(trains, trains), num_workers=2) as cluster:
        cluster.join()
        html = cluster._repr_html_()
        assert repr(cluster) == "<Cluster of 2 workers, running>"
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html.split("<tr>")[2:]]
    assert [row[:3] for row in rows] == [[f"worker:{number}", "here", "returned"] for number in (0, 1)]
    assert rows[0][3].startswith("epoch 3 ")
    assert "width:75%" in rows[0][3]
    assert rows[0][3].endswith("step 6 of 8")
    assert rows[1][3] == "step 6"
    assert ", running<" in html
    assert repr(cluster) == "<Cluster of 2 workers, ended>"
    assert not re.search(r"(?<!-)color:(?!inherit)|#[0-9a-f]{3}", html.replace("background:currentColor", ""))


def test_what_a_cluster_shows_is_no_markup(monkeypatch):
    with cluster_on(ScriptedBackend(returns(1))) as cluster:
        cluster.join()
        monkeypatch.setattr(cluster._monitor.roster, "tensorboard_url", 'http://h/"><script>')
        assert "<script>" not in cluster._repr_html_()


def test_a_cluster_links_its_dashboard_while_it_runs():
    with cluster_on(ScriptedBackend(returns(1)), dashboard=True) as cluster:
        cluster.join()
        link = f'<a href="{cluster.dashboard_url}">dashboard</a>'
        assert link in cluster._repr_html_()
    assert link not in cluster._repr_html_()


def test_a_cluster_whose_nodes_are_being_ended_has_not_failed():
    cluster = cluster_on(ScriptedBackend(lambda node: None), num_workers=1).start()
    cluster._monitor.end.stop(grace_seconds=1.0)
    assert repr(cluster) == "<Cluster of 1 worker, running>"
    with pytest.raises(tfos.ClusterError, match="the cluster has been shut down"):
        cluster.shutdown()


def test_a_cluster_that_has_failed_is_shown_as_failed_before_it_is_shut_down():
    up = Event()

    def node(played):
        up.wait(10)
        fails(FailureKind.RAISED)(played)

    cluster = cluster_on(ScriptedBackend(node)).start()
    up.set()
    with pytest.raises(tfos.NodeError):
        cluster.join()
    assert repr(cluster) == "<Cluster of 1 worker, failed>"
    assert ", failed<" in cluster._repr_html_()
    assert cluster.metrics().state == "failed"
    with pytest.raises(tfos.NodeError):
        cluster.shutdown()
