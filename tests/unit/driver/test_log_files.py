"""The files of a cluster's output: series of each node, on the local file system and on others."""

import io
import json
import pickle
from pathlib import Path
from threading import Event

import fsspec
import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tensorflowonspark.driver import log_files
from tensorflowonspark.driver.log_files import LogFiles, check_log_dir
from tensorflowonspark.driver.metrics.records import ClusterEvent
from tensorflowonspark.errors import FailureKind, NodeError, SpecError
from tensorflowonspark.messages import Failed, Lines, Returned
from tensorflowonspark.storage import transfer
from tensorflowonspark.terminal import CONSOLE
from tests.support.backend import cluster_on
from tests.support.monitors import console_of
from tests.support.programs import wait_for
from tests.support.scripted import ScriptedBackend

URL = "memory://cluster-logs"


@pytest.fixture
def memory():
    """The file system of URLs that begin with ``memory://``."""
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/cluster-logs"):
        files.rm("/cluster-logs", recursive=True)


def show(directory, *lines, node="worker:0", **settings):
    reporter = console_of(stream=io.StringIO(), show="none", log_dir=str(directory), **settings)
    reporter.show(node, lines)
    reporter.end()


def names(files):
    return sorted(Path(path).name for path in files.ls("/cluster-logs", detail=False))


def test_each_node_has_a_file_to_which_later_runs_add(tmp_path):
    for run in ("one", "two"):
        show(tmp_path / "logs", f"w\xf6rker {run}", "ends", node="worker:1")
        show(tmp_path / "logs", "chief", node="chief:0")
    first, second, start, *later = (tmp_path / "logs/worker-1.log").read_text("utf-8").splitlines()
    assert (first, second, later) == ("w\xf6rker one", "ends", ["w\xf6rker two", "ends"])
    assert start.startswith("---- ")
    assert (tmp_path / "logs/chief-0.log").exists()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_colours_of_a_bar_are_not_in_files(tmp_path, log_format):
    show(tmp_path, "\x1b[1m64/64\x1b[0m \x1b]8;;x\x07loss: 1.3", log_format=log_format)
    text = (tmp_path / "worker-0.log").read_text()
    assert (json.loads(text)["message"] if log_format == "json" else text.rstrip()) == "64/64 loss: 1.3"


def test_a_large_file_is_followed_by_the_next_and_the_newest_five_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "_FILE_BYTES", 100)
    for number in range(1, 8):
        show(tmp_path, f"{number} {'x' * 95}")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(found) == [f"worker-0.{number}.log" for number in range(3, 8)]
    assert all(text.splitlines()[-1].startswith(name.split(".")[1]) for name, text in found.items())


def test_a_file_that_can_not_be_written_is_reported_once(tmp_path, caplog):
    (tmp_path / "worker-0.log").mkdir()
    show(tmp_path, "one")
    reporter = console_of(stream=io.StringIO(), show="none", log_dir=str(tmp_path))
    reporter.show("worker:0", ("one",))
    reporter.show("worker:0", ("two",))
    reporter.show("worker:1", ("three",))
    reporter.end()
    CONSOLE.drain()
    assert caplog.text.count("worker-0.log (") == 2  # once for each cluster
    assert (tmp_path / "worker-1.log").read_text() == "three\n"


def test_the_drivers_file_has_no_secret(tmp_path, caplog):
    """The terminal is the user's; a log directory has other readers."""
    caplog.set_level("INFO")
    for form in ("text", "json"):
        reporter = console_of(log_dir=str(tmp_path), log_format=form)
        reporter.note("dashboard: http://h1:8080/?token=sesame")
        reporter.happened(ClusterEvent(0.0, "failure", "ValueError: postgresql://ann:sesame@db/x"))
        reporter.end()
    CONSOLE.drain()
    assert caplog.text.count("?token=sesame") == 2
    text = (tmp_path / "driver.log").read_text()
    assert "sesame" not in text
    assert text.count("http://h1:8080/?token=<redacted>") == text.count("postgresql://<redacted>@db/x") == 2


@pytest.mark.parametrize("directory", ["logs", "", "none://logs", "memory:/logs/x/file://", "s3a:///"])
def test_a_directory_that_can_not_be_written_to_is_refused(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").write_text("")
    (tmp_path / "memory:").write_text("")
    with pytest.raises(SpecError, match="log_dir='"):
        console_of(log_dir=directory)


def test_on_another_file_system_nothing_is_left_but_the_files(memory):
    show(URL, "one", "two")
    assert names(memory) == ["worker-0.log"]
    assert memory.cat("/cluster-logs/worker-0.log") == b"one\ntwo\n"


def test_on_another_file_system_a_later_cluster_begins_new_files(memory):
    for run in ("one", "two", "three"):
        show(URL, run)
    assert names(memory) == ["worker-0.2.log", "worker-0.3.log", "worker-0.log"]
    assert memory.cat("/cluster-logs/worker-0.3.log") == b"three\n"


def test_on_another_file_system_the_newest_files_are_kept(memory, monkeypatch):
    monkeypatch.setattr(log_files, "_FILE_BYTES", 100)
    monkeypatch.setattr(transfer, "_SYNC_SECONDS", 0.0)
    show(URL, "of an earlier cluster")
    files = LogFiles(URL)
    reporter = console_of(stream=io.StringIO(), show="none")
    reporter._files = files
    for number in range(1, 8):
        reporter.show("worker:0", (f"{number} {'x' * 95}",))
        newest = f"/cluster-logs/worker-0.{number + 1}.log"
        wait_for(lambda: memory.exists(newest))  # noqa: B023 - it is called at once
    reporter.end()
    assert names(memory) == [*(f"worker-0.{number}.log" for number in range(4, 9)), "worker-0.log"]
    assert memory.cat("/cluster-logs/worker-0.8.log").startswith(b"7 x")
    assert memory.cat("/cluster-logs/worker-0.log") == b"of an earlier cluster\n"


def test_lines_are_copied_while_the_cluster_runs(memory, monkeypatch):
    monkeypatch.setattr(transfer, "_SYNC_SECONDS", 0.0)
    reporter = console_of(stream=io.StringIO(), show="none", log_dir=URL)
    for line, text in (("one", b"one\n"), ("two", b"one\ntwo\n")):
        reporter.show("worker:0", (line,))
        path = "/cluster-logs/worker-0.log"
        wait_for(lambda: memory.exists(path) and memory.cat(path) == text)  # noqa: B023 - it is called at once
    reporter.end()


def test_a_file_system_that_goes_away_is_reported_and_the_files_are_kept(memory, monkeypatch, caplog):
    def refused(*_):
        tries.append(1)
        raise OSError("no space left on the store")

    tries = []

    monkeypatch.setattr(transfer, "_SYNC_SECONDS", 0.0)
    reporter = console_of(stream=io.StringIO(), show="none", log_dir=URL)
    monkeypatch.setattr(transfer, "publish", refused)
    reporter.show("worker:0", ("one",))
    reporter._files.drain()
    wait_for(lambda: len(tries) > 2)
    folder = reporter._files._folder
    reporter.end()
    CONSOLE.drain()
    texts = [record.getMessage() for record in caplog.records]
    assert [text.count("no space left on the store") for text in texts] == [1, 1]
    assert "this is tried again" in texts[0]
    assert texts[1].endswith(str(folder))
    assert (folder / "worker-0.log").read_text() == "one\n"
    (folder / "worker-0.log").unlink()
    folder.rmdir()


def test_a_file_system_that_does_not_answer_holds_up_nothing(memory, monkeypatch, caplog):
    monkeypatch.setattr(log_files, "_END_SECONDS", 0.1)
    reporter = console_of(stream=io.StringIO(), show="none", log_dir=URL)
    blocked = Event()
    monkeypatch.setattr(transfer, "publish", lambda *_: blocked.wait(30))
    reporter.show("worker:0", ("one",))
    reporter._files.drain()
    folder, thread = reporter._files._folder, reporter._files._sync._thread
    reporter.end()
    CONSOLE.drain()
    assert "no answer" in caplog.text
    blocked.set()
    thread.join(30)
    (folder / "worker-0.log").unlink()
    folder.rmdir()


@pytest.mark.deep
def test_s3(bucket, monkeypatch):
    storage.use(bucket)
    try:
        assert check_log_dir("s3a://bucket/logs/") == "s3a://bucket/logs"
        for run in ("one", "two"):
            show("s3a://bucket/logs", run)
        files, within = storage.file_system("s3a://bucket/logs")
        assert sorted(Path(path).name for path in files.find(within)) == ["worker-0.2.log", "worker-0.log"]
        with pytest.raises(SpecError, match=r"log_dir='s3a://missing/logs' can't be written to \("):
            check_log_dir("s3a://missing/logs")
    finally:
        storage.use({})


def _dies_once(node):
    attempt = node.plan.config.attempt
    node.send(Lines((f"begins {attempt}", "the last line before its end")))
    if attempt == 0:
        node.send(Failed(FailureKind.KILLED, "it was killed by SIGKILL"))
        return
    node.send(Lines(("ends well",)))
    node.send(Returned(pickle.dumps(attempt)))


def test_a_nodes_file_has_its_end_and_its_new_start(tmp_path):
    logs = tfos.Logs(log_dir=str(tmp_path), show="none")
    with cluster_on(ScriptedBackend(_dies_once), restarts=1, logs=logs) as cluster:
        assert cluster.join() == {"worker:0": 1}
    lines = (tmp_path / "worker-0.log").read_text().splitlines()
    assert lines[:2] == ["begins 0", "the last line before its end"]
    assert lines[2].endswith(": failed: it was killed by SIGKILL")
    assert lines[3].endswith(": a new start")
    assert lines[4:] == ["begins 1", "the last line before its end", "ends well"]
    events = [line.split(" ", 2)[2] for line in (tmp_path / "driver.log").read_text().splitlines()]
    assert events == [
        "INFO all nodes are up: 1 worker",
        "ERROR worker:0 on here failed: it was killed by SIGKILL",
        "WARNING all nodes are started again (restart 1)",
        "INFO all nodes are up: 1 worker",
        "INFO the cluster has ended",
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_traceback_of_a_failure_is_in_the_nodes_file(tmp_path, log_format):
    def fails(node):
        node.send(Lines(("a line",)))
        node.send(Failed(FailureKind.RAISED, "it raised", traceback="Traceback:\n  here\nValueError: no\n"))

    logs = tfos.Logs(log_dir=str(tmp_path), log_format=log_format)
    with pytest.raises(NodeError), cluster_on(ScriptedBackend(fails), logs=logs) as cluster:
        cluster.join()
    text = (tmp_path / "worker-0.log").read_text()
    if log_format == "text":
        assert text.endswith(": failed: it raised\nTraceback:\n  here\nValueError: no\n")
        return
    first, second = map(json.loads, text.splitlines())
    assert (first["message"], first["host"]) == ("a line", "here")
    assert (second["event"], second["level"], second["message"]) == ("failure", "ERROR", "failed: it raised")
    assert second["traceback"] == "Traceback:\n  here\nValueError: no\n"
