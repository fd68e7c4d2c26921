"""The report: the page with the metrics inside, in one file."""

import json
import os
import re
from functools import partial

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.dashboard.page import report_html, save_report
from tensorflowonspark.terminal import CONSOLE
from tests.support.backend import cluster_on
from tests.support.played_training import PlayedTraining, with_failure
from tests.support.scripted import ScriptedBackend, returns

_HOSTILE = "</script><script>alert(1)</script><!-- {{script}} &amp; \u2028"


def data_of(page):
    """Return what a browser finds in the page's data element."""
    return json.loads(re.search(r'<script [^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def test_a_report_has_the_last_state_the_curves_and_the_lines():
    training = with_failure(PlayedTraining(2), 30)
    data = data_of(report_html(training.store))
    assert data["nodes"]["straggler"] == [0, 1]
    assert len(data["curves"]["time"]) == 60
    assert [each[1] for each in data["events"]] == ["started", "failure", "restart", "started"]
    assert len(data["details"]["1"]["lines"]) == 50
    assert len(data["details"]["1"]["curves"]["memory"]) == 60


def test_a_report_loads_nothing_and_asks_nobody():
    page = report_html(PlayedTraining(2).store)
    assert not re.findall(r'\b(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert "connect-src" not in page


def test_what_nodes_send_is_no_markup():
    training = PlayedTraining(2)
    training.store.name = _HOSTILE
    training.note("failure", _HOSTILE, _HOSTILE)
    training.store.take_lines(training.nodes[0], (_HOSTILE,))
    training.play(10, lambda epoch: {_HOSTILE: 1.0, "__proto__": 2.0})
    page = report_html(training.store)
    assert page.count("</script>") == 2
    assert "alert(1)</script>" not in page
    data = data_of(page)
    assert data["summary"]["name"] == data["details"]["0"]["lines"][0] == _HOSTILE
    assert set(data["reports"][0][3]) == {_HOSTILE, "__proto__"}


@pytest.mark.slow
def test_a_large_report_is_bounded():
    training = PlayedTraining(300, slow=299)
    training.play(140)
    for node in training.nodes:
        training.store.take_lines(node, ["x" * 10_000] * 60)
    page = report_html(training.store)
    data = data_of(page)
    assert len(data["roster"]["name"]) == 300
    assert len(data["details"]) == 64
    assert "299" in data["details"]  # the straggler
    assert len(data["details"]["299"]["curves"]["time"]) <= 128
    assert len(page) < 5_000_000


def test_a_report_of_a_cluster_that_has_not_started(tmp_path):
    cluster = cluster_on(ScriptedBackend(returns(1)))
    cluster.save_report(str(tmp_path / "run.html"))
    assert data_of((tmp_path / "run.html").read_text())["summary"]["state"] == "new"


def test_a_report_after_the_end_without_a_page(tmp_path):
    with cluster_on(ScriptedBackend(returns(1))) as cluster:
        pass
    for path in (str(tmp_path / "new" / "run.html"), f"file://{tmp_path}/other.html", "memory://bucket/run.html"):
        cluster.save_report(path)
        cluster.save_report(path)  # which replaces it
    data = data_of((tmp_path / "new" / "run.html").read_text())
    assert data["summary"]["state"] == "ended"
    assert sorted(os.listdir(tmp_path)) == ["new", "other.html"]


def test_a_path_may_be_an_object(tmp_path):
    save_report(tmp_path / "run.html", partial(report_html, PlayedTraining(1).store))
    assert data_of((tmp_path / "run.html").read_text())["summary"]["state"] == "running"


@pytest.mark.parametrize("path", [None, b"run.html", 5])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(tfos.SpecError, match="path=.*: expected a file or a URL"):
        save_report(path, partial(report_html, PlayedTraining(1).store))


@pytest.mark.parametrize("path", ["", "{tmp_path}", "{tmp_path}/", "{tmp_path}/none/"])
def test_a_path_that_is_no_file_is_refused(tmp_path, path):
    (tmp_path / "kept").touch()
    with pytest.raises(tfos.SpecError, match="path='.*'.*(is a directory: name a file in it|expected a file)"):
        save_report(path.format(tmp_path=tmp_path), partial(report_html, PlayedTraining(1).store))
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("error", [tfos.FeedError("no rows"), KeyboardInterrupt()])
def test_a_cluster_that_fails_leaves_its_report_and_raises_its_own_error(tmp_path, caplog, error):
    (tmp_path / "file").touch()
    for path in (tmp_path / "run.html", tmp_path / "file/run.html"):
        settings = tfos.Dashboard(report=str(path))
        with pytest.raises(type(error)), cluster_on(ScriptedBackend(returns(1)), dashboard=settings):
            raise error
    assert data_of((tmp_path / "run.html").read_text())["summary"]["state"] == "ended"
    CONSOLE.drain()
    assert f"the report {tmp_path}/file/run.html was not written" in caplog.text
