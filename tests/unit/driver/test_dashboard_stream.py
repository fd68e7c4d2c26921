"""What the dashboard's servers send: the state of a page, its changes, the metrics for Prometheus."""

import gzip
import json
import time
import zlib
from contextlib import closing
from urllib.parse import urlsplit

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.dashboard import service, stream
from tensorflowonspark.driver.nodes import NodeState
from tests.support.backend import cluster_on
from tests.support.pages import connection, events, free_port, get, with_token
from tests.support.played_training import PlayedTraining
from tests.support.scripted import ScriptedBackend, returns


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(stream, "_LEAST_SECONDS", 0.5)


# ---- what is sent


def test_a_page_gets_the_whole_state_and_then_the_changes(served):
    training, dashboard = served
    training.play(20)
    with events(dashboard.url) as seen:
        name, full = next(seen)
        assert name == "snapshot"
        assert full["summary"]["name"] == "digits.py"
        assert full["nodes_all"]["name"] == ["worker:0", "worker:1"]
        assert full["nodes_all"]["straggler"] == [0, 1]
        assert len(full["curves_all"]["time"]) == 20
        assert [each[1] for each in full["reports_all"]] == [0, 1]
        assert set(full["reports_all"][0][3]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert full["events_all"][0][1] == "started"
        training.play(10)
        training.note("failure", "it was killed", "worker:1")
        name, changes = next(seen)
        assert name == "update"
        assert not [each for each in changes if each.endswith("_all")]
        assert len(changes["curves"]["time"]) == 10
        assert len(changes["reports"]) == 1
        assert changes["events"] == [[changes["events"][0][0], "failure", "it was killed", "worker:1"]]
        assert changes["nodes"]["rows"][0] == 0  # all nodes
        assert "name" not in changes["nodes"]
        assert "name" not in changes["summary"]


def test_a_change_of_some_nodes_names_them(served):
    training, dashboard = served
    with events(dashboard.url) as seen:
        next(seen)
        training.nodes[1].state = NodeState.FAILED
        assert next(seen)[1]["nodes"] == {"state": [[1], ["failed"]]}


def test_nothing_is_sent_while_nothing_changes(served, monkeypatch):
    monkeypatch.setattr(stream, "_HEARTBEAT_SECONDS", 0.3)
    _, dashboard = served
    with closing(connection(dashboard.url)) as made:
        made.request("GET", with_token(dashboard.url, "/events"))
        answer = made.getresponse()
        while not answer.readline().startswith(b"data"):
            pass
        assert answer.readline() == b"\n"
        assert answer.readline() == b"event: heartbeat\n"


def test_all_pages_together_add_up_to_the_state(served):
    """A page that came later has what an earlier one has collected."""
    training, dashboard = served

    def apply(state, data):
        for name, values in data.get("curves", {}).items():
            state["curves_all"][name] += values
        for name, (numbers, values) in data.get("nodes", {}).items():
            for number, value in zip(numbers or range(2), values, strict=True):
                state["nodes_all"][name][number] = value
        state["reports_all"] += data.get("reports", [])
        state["events_all"] += data.get("events", [])
        state["summary"] |= data.get("summary", {})
        state |= {name: value for name, value in data.items() if name.endswith("_all")}

    with events(dashboard.url) as seen:
        state = next(seen)[1]
        for seconds in (3, 400, 200, 1):  # the third one halves the curves
            training.play(seconds)
            apply(state, next(seen)[1])
        with events(dashboard.url) as later:
            expected = next(later)[1]
    assert len(state["curves_all"]["time"]) < 512
    assert {**state, "summary": None} == {**expected, "summary": None}


def test_curves_and_reports_of_a_day_are_bounded(training):
    state = service.PageState(training.store)
    training.play(5000)
    state.refresh()
    full = state.full()
    assert len(full["curves_all"]["time"]) <= 512
    assert len(full["reports_all"]) <= 2000
    assert len(stream.to_json(full)) < 200_000


def test_events_are_compressed_for_those_who_ask(served):
    training, dashboard = served
    training.play(200)
    with closing(connection(dashboard.url)) as made:
        made.request("GET", with_token(dashboard.url, "/events"), headers={"Accept-Encoding": "gzip"})
        answer = made.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"retry" in zlib.decompressobj(31).decompress(answer.read1())
    status, headers, body = get(dashboard.url, **{"Accept-Encoding": "gzip"})
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert b"uPlot" in gzip.decompress(body)


def test_metrics_that_are_no_numbers_have_names(served):
    training, dashboard = served
    values = {"loss": float("nan"), "accuracy": float("inf"), "val_loss": float("-inf")}
    training.play(10, lambda epoch: values)
    with events(dashboard.url) as seen:
        assert next(seen)[1]["reports_all"][0][3] == {"loss": "NaN", "accuracy": "Infinity", "val_loss": "-Infinity"}
    node = json.loads(get(dashboard.url, with_token(dashboard.url, "/node?number=0"))[2])
    assert node["values"]["loss"] == "NaN"


def test_the_epoch_of_a_program_with_data_of_its_own_is_the_last_that_it_has_reported(monkeypatch):
    monkeypatch.setattr(PlayedTraining, "_play_node", lambda *_: None)
    training = PlayedTraining(2)
    state = service.PageState(training.store)
    state.refresh()
    assert state.full()["summary"]["epoch"] is None
    training.play(30)
    state.refresh()
    assert state.full()["summary"]["epoch"] == 2


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


def test_a_page_too_many_is_refused(served, monkeypatch):
    monkeypatch.setattr(stream, "_PAGES", 1)
    training, dashboard = served
    with events(dashboard.url) as seen:
        next(seen)
        status, _, body = get(dashboard.url, with_token(dashboard.url, "/events"))
        assert (status, body) == (503, b"Too many pages of this cluster are open: close one\n")
    end = time.monotonic() + 20
    while get(dashboard.url, with_token(dashboard.url, "/node?number=0"))[0] and dashboard._broadcast._pages:
        training.play(1)  # what is sent shows that the page is gone
        assert time.monotonic() < end


def test_a_page_that_no_header_reaches_takes_no_place(training, monkeypatch):
    monkeypatch.setattr(stream, "_PAGES", 1)
    broadcast = stream.Broadcast(service.PageState(training.store))
    broadcast.subscribe()  # and then the connection breaks
    page = broadcast.subscribe()
    assert next(page)
    assert broadcast.subscribe() is None


def test_a_page_that_does_not_read_loses_its_connection(training, monkeypatch):
    state = service.PageState(training.store)
    broadcast = stream.Broadcast(state)
    monkeypatch.setattr(stream, "_LEAST_SECONDS", 0.01)
    page = broadcast.subscribe()
    next(page)
    end = time.monotonic() + 20
    while broadcast._pages:
        training.play(1)
        assert time.monotonic() < end
    assert list(page) == []


def test_no_thread_stays_while_no_page_is_open(training, monkeypatch):
    monkeypatch.setattr(stream, "_LEAST_SECONDS", 0.01)
    broadcast = stream.Broadcast(service.PageState(training.store))
    for _ in range(2):
        page = broadcast.subscribe()
        next(page)
        thread = broadcast._thread
        assert thread.is_alive()
        page.close()
        thread.join(10)
        assert not thread.is_alive()


# ---- Prometheus


def test_prometheus_reads_the_metrics(served):
    from prometheus_client.parser import text_string_to_metric_families

    training, dashboard = served
    training.play(20)
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
    assert ("tensorflowonspark_node_gpu_memory_bytes", "worker:0") not in found
    assert all(family.documentation for family in text_string_to_metric_families(body.decode()))


def test_a_metric_that_is_nan_is_nan_for_prometheus(served):
    training, dashboard = served
    training.play(10, lambda epoch: {"loss": float("nan"), 'odd "name"\n': 1.0})
    body = get(dashboard.metrics_url)[2].decode()
    assert 'tensorflowonspark_metric{metric="loss"} NaN' in body
    assert 'tensorflowonspark_metric{metric="odd \\"name\\"\\n"} 1.0' in body


def test_the_metrics_alone_have_a_server_without_a_page(training):
    with closing(training.serve(dashboard=False, metrics_port=0)) as dashboard:
        assert dashboard.url is None
        assert get(dashboard.metrics_url)[0] == 200
        assert get(dashboard.metrics_url, with_token(dashboard.metrics_url, "/"))[0] == 404
        for path in ("/metrics", "/metrics?token=wrong"):
            assert get(dashboard.metrics_url, path)[0] == 403


def test_the_same_port_for_both_is_one_server(training):
    port = free_port()
    for same, settings in [(True, (port, port)), (True, (True, 0)), (False, (port, 0)), (False, (True, port))]:
        with closing(training.serve(dashboard=settings[0], metrics_port=settings[1])) as dashboard:
            assert (urlsplit(dashboard.url).port == urlsplit(dashboard.metrics_url).port) == same
            assert get(dashboard.url, with_token(dashboard.url, "/metrics"))[0] == 200


def test_without_the_package_prometheus_is_refused_before_anything_starts(monkeypatch, training):
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    backend = ScriptedBackend(returns(1))
    with pytest.raises(
        tfos.SpecError,
        match=r'metrics_port=9090 needs the package prometheus-client .*"tensorflowonspark\[prometheus\]"',
    ):
        cluster_on(backend, metrics_port=9090)
    with closing(training.serve()) as dashboard:
        status, _, body = get(dashboard.url, with_token(dashboard.url, "/metrics"))
        assert status == 404
        assert b"prometheus-client" in body
