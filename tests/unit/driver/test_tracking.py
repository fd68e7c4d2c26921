"""Tracking with MLflow: servers that are down, slow or refuse; and what is not logged."""

import logging
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver import run_log, tracking
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import EpochMetrics
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.supervisor.node_process import node_environment
from tensorflowonspark.terminal import CONSOLE
from tests.support.commands import run_python

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def store():
    made = MetricsStore("train")
    made.begin_attempt("ab12cd34", Roster(ClusterSpec(num_workers=2)).nodes, 0, 0, lambda: None)
    yield made
    made.end(failed=False, text="the cluster has ended")


class Client:
    """A client of a server that the tests play."""

    def __init__(self, act=lambda: None, params=()):
        self.act, self.batches, self.files = act, [], []
        self._params = dict(params)

    def get_run(self, run_id):
        self.act()
        return SimpleNamespace(data=SimpleNamespace(params=self._params))

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        self.act()
        self.batches.append((list(metrics), list(params), list(tags)))

    def log_artifact(self, run_id, path, folder):
        self.act()
        self.files.append((folder, Path(path).name, Path(path).read_text()))

    def all(self, place):
        return [entry for batch in self.batches for entry in batch[place]]


def play(monkeypatch, client, uri="sqlite:///store.db"):
    """Have a run be active whose server is played."""
    active = SimpleNamespace(info=SimpleNamespace(run_id=f"run-{time.monotonic()}"))
    module = SimpleNamespace(active_run=lambda: active, get_tracking_uri=lambda: uri, MlflowClient=lambda uri: client)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    entity = lambda *names: lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True)))  # noqa: E731
    entities = SimpleNamespace(
        Metric=entity("key", "value", "timestamp", "step"), Param=entity("key", "value"), RunTag=entity("key", "value")
    )
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)


def begin(store, args=None, report=lambda path: Path(path).write_text("<html>")):
    tracking.track(store, args, "local[2]", lambda: ClusterSpec(num_workers=2), report)


def end_epoch(store, number, **values):
    store.events._call(lambda each: each.epoch_ended(EpochMetrics(number, time.time(), 1.5, values)))


def end(store):
    """End the cluster; return the seconds that this takes."""
    began = time.monotonic()
    store.end(failed=False, text="the cluster has ended")
    return time.monotonic() - began


def warnings(caplog):
    CONSOLE.drain()
    assert all(each.levelno == logging.WARNING for each in caplog.records if each.name == run_log.__name__)
    return [each.getMessage() for each in caplog.records if each.name == run_log.__name__]


def test_epochs_parameters_and_the_report_are_logged(monkeypatch, store):
    play(monkeypatch, client := Client(params={"rate": "0.1"}))

    def save_report(path):
        with open(path, "w") as file:
            file.write("<html>")

    begin(
        store,
        {"epochs": 2, "rate": 0.5, "long": "x" * 600, "password": "y", "db": "postgresql://ann:pw@db/x?sig=z"},
        save_report,
    )
    store.events.note("started", "all nodes are up")
    end_epoch(store, 0, loss=1.0, **{"top@5": float("nan")})
    store.events.note("failure", "s3://key:pw@bucket is gone")
    store.events.note("restart", "all nodes are started again (restart 1)")
    assert end(store) < 3
    params = {each.key: each.value for each in client.all(1)}
    assert params.pop("long") == "x" * 499 + "…"
    assert params.pop("db") == "postgresql://<redacted>@db/x?sig=<redacted>"
    expected = {"epochs": "2", "cluster.program": "train", "cluster.spark_master": "local[2]"}
    assert params == {**expected, "cluster.num_workers": "2"}  # the run has another rate already
    metrics = {each.key: (each.value, each.step) for each in client.all(0)}
    assert metrics["loss"] == (1.0, 0)
    assert metrics["system/seconds_per_epoch"] == (1.5, 0)
    shares = [value for name, (value, _) in metrics.items() if name.startswith(("system/goodput", "system/lost/"))]
    assert sum(shares) == pytest.approx(1.0)
    assert metrics["top_5"][0] != metrics["top_5"][0]
    tags = {each.key: each.value for each in client.all(2)}
    assert tags == {
        "tensorflowonspark.cluster": "ab12cd34",
        "tensorflowonspark.restarts": "1",
        "tensorflowonspark.state": "ended",
        "tensorflowonspark.failure": "s3://<redacted>@bucket is gone",
    }
    assert client.files == [("tensorflowonspark", "report.html", "<html>")]


def test_a_server_that_refuses_is_one_warning_without_its_password(monkeypatch, store, caplog):
    def refuse():
        raise RuntimeError("403: no permission\nfor run")

    play(monkeypatch, Client(refuse), "https://ann:secret@localhost:1")
    begin(store)
    for number in range(5):
        end_epoch(store, number, loss=1.0)
    assert end(store) < 3
    (warning,) = warnings(caplog)
    assert "MLflow at https://localhost:1 does not take" in warning
    assert "403: no permission. The training goes on" in warning


def test_a_report_that_can_not_be_written_is_a_warning(monkeypatch, store, caplog):
    def save_report(path):
        raise OSError("no space left on device")

    play(monkeypatch, client := Client())
    begin(store, report=save_report)
    assert end(store) < 3
    assert "no space left on device" in warnings(caplog)[0]
    assert client.all(2)[-1].value == "ended"


@pytest.mark.deep
def test_a_slow_server_holds_up_neither_epochs_nor_for_long_the_end(monkeypatch, store, caplog):
    monkeypatch.setattr(run_log.RunLog.close, "__defaults__", (1.0,))
    play(monkeypatch, client := Client(lambda: time.sleep(0.6)))
    begin(store)
    began = time.monotonic()
    for number in range(20):
        end_epoch(store, number, loss=1.0)
    assert time.monotonic() - began < 0.5
    assert 0.9 < end(store) < 4
    assert "it has not answered within 1 s, and what is left is dropped" in warnings(caplog)[0]
    sent = len(client.batches)
    time.sleep(1.5)
    assert len(client.batches) <= sent + 1  # the one that was on its way


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True], ids=["down", "silent"])
def test_with_the_real_client_a_server_that_is_down_or_silent_is_left_alone(monkeypatch, store, caplog, listens):
    for name, value in {"MAX_RETRIES": "2", "BACKOFF_FACTOR": "1", "TIMEOUT": "4"}.items():
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    with socket.socket() as server:  # of its port no other process takes hold
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        active = SimpleNamespace(info=SimpleNamespace(run_id="run"))
        monkeypatch.setattr(mlflow, "active_run", lambda: active)
        monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: uri)
        begin(store)
        end_epoch(store, 0, loss=1.0)
        assert end(store) < 8
    (warning,) = warnings(caplog)
    assert f"MLflow at {uri} does not take what is logged to run run: " in warning


def test_a_large_model_is_left_to_a_thread_after_its_time(monkeypatch, caplog):
    play(monkeypatch, Client())
    log = run_log.open_log()
    assert not log.call("the model", 0.2, lambda: time.sleep(1))
    assert "the model is not sent after 0 s, and is left to a thread" in warnings(caplog)[0]
    assert log.call("the model", 5.0, lambda: None)
    log.close()


def test_the_second_cluster_of_a_run_has_names_of_its_own(monkeypatch):
    play(monkeypatch, Client())
    logs = [run_log.open_log() for _ in range(3)]
    assert [log.prefix for log in logs] == ["", "cluster_2/", "cluster_3/"]
    for log in logs:
        log.close()


def test_without_mlflow_or_a_run_nothing_is_opened(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    assert run_log.open_log() is None
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: None))
    assert run_log.open_log() is None
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())  # half imported
    assert run_log.open_log() is None


@pytest.mark.deep
def test_a_program_without_mlflow_does_not_import_it():
    text = "import sys, tensorflowonspark.ml.estimator, tensorflowonspark.driver.run; print('mlflow' in sys.modules)"
    assert run_python(text).split() == ["False"]


def test_nodes_do_not_inherit_the_drivers_access_to_mlflow():
    own = {"MLFLOW_TRACKING_PASSWORD": "a", "MLFLOW_TRACKING_TOKEN": "b", "MLFLOW_RUN_ID": "c"}
    found = node_environment({**own, "MLFLOW_TRACKING_URI": "http://h", "PATH": "/bin"}, {})
    assert not own.keys() & found.keys()
    assert (found["MLFLOW_TRACKING_URI"], found["PATH"]) == ("http://h", "/bin")
    assert node_environment(own, {"MLFLOW_TRACKING_TOKEN": "d"})["MLFLOW_TRACKING_TOKEN"] == "d"


def test_what_goes_to_an_address_at_which_nothing_listens_is_a_warning_at_once(caplog):
    """Also if there was a warning before: it is another address."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        closed = f"http://127.0.0.1:{found.getsockname()[1]}"
    log = run_log.RunLog(Client(), "7", "http://localhost:1")
    log.warn("it is full")
    assert not log.call("the registration", 30.0, pytest.fail, closed)
    first, second = warnings(caplog)
    assert "it is full. The training goes on" in first
    assert f"the registration: nothing listens at {closed.removeprefix('http://')}. The training goes on" in second
