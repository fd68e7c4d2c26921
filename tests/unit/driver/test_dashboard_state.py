"""What the dashboard's servers send: the state of a page, the metrics for Prometheus."""

import gzip
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.dashboard import service, snapshots
from tensorflowonspark.driver.dashboard.page_state import page_state
from tensorflowonspark.driver.dashboard.snapshots import Snapshots, to_json
from tensorflowonspark.driver.metrics.goodput import CAUSES
from tensorflowonspark.terminal import CONSOLE
from tests.support.backend import cluster_on
from tests.support.pages import connection, free_port, get, state, states, with_token
from tests.support.played_training import PlayedTraining
from tests.support.programs import wait_for
from tests.support.scripted import ScriptedBackend, returns

# ---- what is sent


@pytest.mark.deep
def test_a_page_gets_the_whole_state_and_then_the_parts_that_have_changed(served):
    training, dashboard = served
    training.play(20)
    seen = states(dashboard.url)
    whole = next(seen)
    assert list(whole) == ["summary", "roster", "nodes", "curves", "reports", "events", "time"]
    assert whole["summary"]["name"] == "digits.py"
    assert whole["roster"] == {"name": ["worker:0", "worker:1"], "host": ["10.0.0.11", "10.0.0.12"]}
    assert whole["nodes"]["straggler"] == [0, 1]
    assert len(whole["curves"]["time"]) == 20
    assert [each[1] for each in whole["reports"]] == [0, 1]
    assert set(whole["reports"][0][3]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert [each[1] for each in whole["events"]] == ["started"]
    training.note("failure", "it was killed", "worker:1")
    changed = next(seen)
    assert list(changed) == ["events", "time"]
    assert [each[1] for each in changed["events"]] == ["started", "failure"]
    training.play(10)
    changed = next(seen)
    assert list(changed) == ["summary", "nodes", "curves", "reports", "time"]
    assert (len(changed["curves"]["time"]), len(changed["reports"])) == (30, 3)


@pytest.mark.deep
def test_what_all_answers_leave_is_the_state(served):
    training, dashboard = served
    seen = states(dashboard.url)
    shown = next(seen)
    for seconds in (3, 400, 200, 1):  # the third one halves the curves
        training.play(seconds)
        shown |= next(seen)
    assert len(shown["curves"]["time"]) < 512
    assert shown == state(dashboard.url)[1]


def test_a_state_that_has_not_changed_is_sent_once(served):
    _, dashboard = served
    first, whole = state(dashboard.url)
    begin = time.monotonic()
    again, nothing = state(dashboard.url, first["ETag"])
    assert 0.5 < time.monotonic() - begin < 5  # until the next snapshot
    assert (again["ETag"], nothing) == (first["ETag"], {})
    assert "Content-Length" not in again
    assert state(dashboard.url)[1] == whole


@pytest.mark.deep
def test_the_state_of_a_day_is_bounded(training):
    training.play(5000)
    for _ in range(1100):
        training.note("failure", "again")
    shown = page_state(training.store)
    assert len(shown["curves"]["time"]) <= 512
    assert len(shown["reports"]) <= 2000
    assert len(shown["events"]) == 1000
    assert len(to_json({**shown, "events": []})) < 200_000


def test_answers_are_compressed_for_those_who_ask(served):
    training, dashboard = served
    training.play(200)
    for path, part in [(None, b"uPlot"), (with_token(dashboard.url, "/state"), b"worker:1")]:
        status, headers, body = get(dashboard.url, path, **{"Accept-Encoding": "gzip"})
        assert (status, headers["Content-Encoding"]) == (200, "gzip")
        assert part in gzip.decompress(body)


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 1), (1000, 5), (5000, 10)])
def test_a_snapshot_of_many_nodes_is_made_more_seldom(nodes, seconds):
    shown = Snapshots(lambda: {"time": 0, "nodes": {"state": ["running"] * nodes}})
    shown.answer("")
    assert shown._due - time.monotonic() == pytest.approx(seconds, abs=0.5)


def test_all_pages_share_a_snapshot():
    made = []

    def make():
        made.append(1)
        return {"time": 0, "nodes": {"state": []}, "made": len(made)}

    shown = Snapshots(make)
    etag = shown.answer("").headers["ETag"]
    with ThreadPoolExecutor() as pages:
        answers = list(pages.map(shown.answer, [etag] * 10))
    assert {each.body for each in answers} == {'{"made":2,"time":0}'}


def test_a_state_that_can_not_be_made_is_reported_once_and_has_an_end(caplog):
    def fail():
        raise KeyError("node")

    shown = Snapshots(fail)
    for _ in range(2):
        shown._due = 0.0
        assert shown.answer("").body == "{}"
    shown.close()
    assert shown.answer("").headers["Ended"]
    assert CONSOLE.drain()
    assert [each.getMessage() for each in caplog.records] == ["the dashboard could not be refreshed: KeyError: 'node'"]


def test_metrics_that_are_no_numbers_have_names(served):
    training, dashboard = served
    values = {"loss": float("nan"), "accuracy": float("inf"), "val_loss": float("-inf")}
    training.play(10, lambda epoch: values)
    names = {"loss": "NaN", "accuracy": "Infinity", "val_loss": "-Infinity"}
    assert state(dashboard.url)[1]["reports"][0][3] == names
    node = json.loads(get(dashboard.url, with_token(dashboard.url, "/node?number=0"))[2])
    assert node["values"]["loss"] == "NaN"


def test_the_epoch_of_a_program_with_data_of_its_own_is_the_last_that_it_has_reported(monkeypatch):
    monkeypatch.setattr(PlayedTraining, "_play_node", lambda *_: None)
    training = PlayedTraining(2)
    assert page_state(training.store)["summary"]["epoch"] is None
    training.play(30)
    assert page_state(training.store)["summary"]["epoch"] == 2


def test_the_summary_has_the_goodput_as_a_share_and_as_text():
    training = PlayedTraining(2)
    training.play(10)
    training.store.sources = {"web": 70, "books": 30}
    summary = page_state(training.store)["summary"]
    assert summary["sources"] == "web 70, books 30"
    assert summary["goodput"] == 0.68
    assert summary["goodput_text"].startswith("goodput 68 %: waiting for workers 29 %, waiting for rows 4 %")


def test_a_node_has_curves_lines_values_and_gpus():
    training = PlayedTraining(2, gpus=1)
    training.play(10)
    training.store.take_lines(training.nodes[1], ("x" * 5000, "\x1b[31mred</script>"))
    with closing(training.serve()) as dashboard:
        status, headers, body = get(dashboard.url, with_token(dashboard.url, "/node?number=1"))
        node = json.loads(body)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert len(node["curves"]["time"]) == len(node["curves"]["waiting_for_workers"]) == 10
        assert len(node["lines"][-2]) == 1000
        assert node["lines"][-1] == "\x1b[31mred</script>"
        training.store.take_lines(training.nodes[1], tuple(map(str, range(70))))
        node = json.loads(get(dashboard.url, with_token(dashboard.url, "/node?number=1"))[2])
        assert node["lines"] == [str(each) for each in range(20, 70)]
        assert node["gpus"][0][0] == "0"
        for wrong in ("", "?number=", "?number=2", "?number=-1", "?number=x", "?number=1e9", f"?number={'9' * 99}"):
            assert get(dashboard.url, with_token(dashboard.url, f"/node{wrong}"))[0] == 404


@pytest.mark.deep
def test_a_page_too_many_is_refused_until_another_is_closed(monkeypatch, training):
    monkeypatch.setattr(snapshots, "_PAGES", 1)
    with closing(training.serve()) as dashboard:
        etag = state(dashboard.url)[0]["ETag"]
        with closing(connection(dashboard.url)) as made:
            made.request("GET", with_token(dashboard.url, "/state"), headers={"If-None-Match": etag})
            path = with_token(dashboard.url, "/state")
            wait_for(lambda: get(dashboard.url, path)[0] == 503, 10)
            assert get(dashboard.url, path)[2] == b"Too many pages of this cluster are open: close one\n"
        wait_for(lambda: get(dashboard.url, path)[0] == 200, 20)


# ---- Prometheus


def test_prometheus_reads_the_metrics(served):
    from prometheus_client.parser import text_string_to_metric_families

    training, dashboard = served
    training.play(20)
    training.store.sources = {"web": 70}
    status, headers, body = get(dashboard.metrics_url)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    found = {
        (sample.name, sample.labels.get("node")): sample
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    rows = found["tensorflowonspark_node_rows_total", "worker:1"]
    assert rows.value == 20 * 4 * 64
    assert rows.labels == {"node": "worker:1", "host": "10.0.0.12"}
    assert found["tensorflowonspark_node_straggler", "worker:1"].value == 1
    assert found["tensorflowonspark_node_waiting_for_workers_ratio", "worker:0"].value > 0.5
    assert found["tensorflowonspark_cluster_running", None].value == 1
    share = found["tensorflowonspark_cluster_goodput_ratio", None].value
    lost = {each[0]: each[1] for each in re.findall(r'cluster_lost_ratio{cause="(\w+)"} (\S+)', body.decode())}
    assert tuple(lost) == CAUSES
    assert 'cluster_epoch_rows{source="web"} 70.0' in body.decode()
    assert share + sum(map(float, lost.values())) == pytest.approx(1.0)
    assert ("tensorflowonspark_node_gpu_memory_bytes", "worker:0") not in found
    assert all(family.documentation for family in text_string_to_metric_families(body.decode()))


def test_a_metric_that_is_nan_is_nan_for_prometheus(served):
    training, dashboard = served
    training.play(10, lambda epoch: {"loss": float("nan"), 'odd "name"\n': 1.0})
    body = get(dashboard.metrics_url)[2].decode()
    assert 'tensorflowonspark_metric{metric="loss"} NaN' in body
    assert 'tensorflowonspark_metric{metric="odd \\"name\\"\\n"} 1.0' in body


def test_the_metrics_alone_have_a_server_without_a_page(training):
    with closing(training.serve(page_port=None, metrics_port=0)) as dashboard:
        assert dashboard.url is None
        assert get(dashboard.metrics_url)[0] == 200
        assert get(dashboard.metrics_url, with_token(dashboard.metrics_url, "/"))[0] == 404
        for path in ("/metrics", "/metrics?token=wrong"):
            assert get(dashboard.metrics_url, path)[0] == 403


def test_the_same_port_for_both_is_one_server(training):
    port = free_port()
    for same, settings in [(True, (port, port)), (True, (0, 0)), (False, (port, 0)), (False, (0, port))]:
        with closing(training.serve(page_port=settings[0], metrics_port=settings[1])) as dashboard:
            assert (urlsplit(dashboard.url).port == urlsplit(dashboard.metrics_url).port) == same
            assert get(dashboard.url, with_token(dashboard.url, "/metrics"))[0] == 200


def test_without_the_package_prometheus_is_refused_before_anything_starts(monkeypatch, training):
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    backend = ScriptedBackend(returns(1))
    with pytest.raises(
        tfos.SpecError,
        match=r'metrics_port=9090 needs the package prometheus-client .*"tensorflowonspark\[prometheus\]"',
    ):
        cluster_on(backend, dashboard=tfos.Dashboard(metrics_port=9090))
    with closing(training.serve()) as dashboard:
        status, _, body = get(dashboard.url, with_token(dashboard.url, "/metrics"))
        assert status == 404
        assert b"prometheus-client" in body
