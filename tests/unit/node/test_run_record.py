"""What a node's manifests have of its feeds, and what is said when a training goes on."""

import json
import logging
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.node.run_record import RunRecord
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.run_manifest import FORMAT, parse_manifest

FACTS = {
    "format": FORMAT,
    "program": {"name": "train", "file": "/train.py", "sha256": "1"},
    "versions": {"spark": "4.1.0"},
}


def record(number=0, sent=None, facts=FACTS, **config):
    config = ClusterConfig(ClusterSpec(num_workers=2), b"", manifest=facts, **config)
    setup = NodeSetup(config, number, "localhost", credentials=None)
    return RunRecord(setup, lambda message: None if sent is None else sent.append(message.manifest))


class PlayedFeed:
    def __init__(self, rows, validation=None):
        self.rows = rows
        self.validation = validation

    def _describe(self, workers):
        return {"rows": self.rows, "checksum": None, "columns": {"x": "float"}, "seed": workers}


def test_rows_are_those_of_the_moment_and_of_feeds_that_are_over():
    sent = []
    found = record(sent=sent)
    first, second = PlayedFeed(None), PlayedFeed(20, PlayedFeed(5))
    found.note_feed(first, "spark", {"settings": {"cache": None}}, 0)
    assert sent[-1]["data"]["0"]["rows"] is None
    first.rows = 10  # which only the end of the stream shows
    found.note_feed(PlayedFeed(7), "ctx.read_delta", {"table": "t", "version": 3})
    found.note_feed(PlayedFeed(8), "ctx.read_delta", {"table": "u", "version": 4})
    found.note_feed(second, "spark", {}, 1)
    first.rows = 11  # it is over
    data = found.manifest()["data"]
    assert {name: each["rows"] for name, each in data.items()} == {
        "0": 10, "ctx.read_delta": 7, "ctx.read_delta 2": 8, "1": 20,
    }  # fmt: skip
    assert data["1"]["validation"]["rows"] == 5
    assert data["ctx.read_delta 2"]["version"] == 4


def test_of_many_feeds_it_has_the_last_ones():
    found = record()
    for number in range(250):
        found.note_feed(PlayedFeed(number), "spark", {}, number)
    assert list(found.manifest()["data"]) == [str(number) for number in range(149, 250)]


def test_only_the_chief_describes_the_run():
    sent = []
    other = record(number=1, sent=sent)
    other.note_feed(PlayedFeed(1), "spark", {}, 0)
    other.manifest()
    assert sent == []


def warnings(caplog, before, now, step=500):
    caplog.clear()
    directory, found = before
    if now is not None:
        (directory / "manifest.json").write_text(now if isinstance(now, str) else json.dumps(now))
    with caplog.at_level(logging.WARNING, "tensorflowonspark.node.run_record"):
        found.compare(str(directory), step)
    return [each.getMessage() for each in caplog.records]


@pytest.fixture
def caplog(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tensorflowonspark"), "propagate", True)
    return caplog


def test_the_same_run_says_nothing_and_another_one_names_what_differs(tmp_path, caplog):
    found = record(attempt=1)
    found.note_feed(PlayedFeed(1), "spark", {}, 0)
    same = found.manifest()
    assert warnings(caplog, (tmp_path, found), same) == []
    assert warnings(caplog, (tmp_path, record(number=1)), {**same, "backend": "torch"}) == []  # no chief
    other = {**same, "versions": {**same["versions"], "numpy": "1.0"}, "program": {"sha256": "2"}}
    (said,) = warnings(caplog, (tmp_path, found), other)
    text = "resumed from step 500, and since it was written: the program's file /train.py has changed; numpy is "
    assert said.startswith(text)
    assert said.endswith(", was 1.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, None),  # of an earlier version
        ("{", "resumed from step 500, whose manifest can't be read: it is neither JSON nor a report"),
        ("[]", "resumed from step 500, whose manifest can't be read: there is none in this JSON"),
        ('{"format": 99, "data": [], "versions": 3}', "the manifest is of a later version (format 99"),
        ('{"format": 99, "data": {"0": 1, "1": null}, "program": {"sha256": {}}}', "later version (format 99"),
        ('{"format": 1, "program": "x"}', None),
    ],
)
def test_what_can_not_be_read_stops_no_training(tmp_path, caplog, text, said):
    found = record(attempt=1, first_feed=1)
    messages = warnings(caplog, (tmp_path, found), text)
    assert len(messages) == (said is not None)
    assert said is None or said in messages[0]
    found.manifest()


def test_a_restart_keeps_the_feeds_that_are_not_fed_again(tmp_path, caplog):
    before = record()
    for number in range(3):
        before.note_feed(PlayedFeed(number), "spark", {}, number)
    before.write(f"{tmp_path}/manifest.json", checkpoint={"step": 9})
    assert parse_manifest((tmp_path / "manifest.json").read_bytes())["checkpoint"] == {"step": 9}
    again = record(attempt=1, first_feed=2)
    again.note_feed(PlayedFeed(2), "spark", {}, 2)
    for _ in range(2):
        assert warnings(caplog, (tmp_path, again), None) == []
    assert {name: each["rows"] for name, each in again.manifest()["data"].items()} == {"0": 0, "1": 1, "2": 2}
    later_run = record()
    later_run.note_feed(PlayedFeed(4), "spark", {}, 0)
    assert warnings(caplog, (tmp_path, later_run), None) == []
    assert list(later_run.manifest()["data"]) == ["0"]


def test_versions_are_those_that_the_program_has_imported(monkeypatch):
    import sys

    for name in ("tensorflow", "keras", "tf_keras", "jax"):
        monkeypatch.setitem(sys.modules, name, None)
    found = record().manifest()
    assert found["backend"] is None
    assert {"numpy", "pyarrow", "python", "spark"} <= set(found["versions"])
    assert "tensorflow" not in found["versions"]
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(__version__="2.99"))
    found = record().manifest()
    assert (found["backend"], found["versions"]["tensorflow"]) == ("tensorflow", "2.99")
