"""What the console shows of many nodes: the chief's lines, new warnings, epochs; and the same as JSON."""

import io
import json
import logging
import math
import pickle
import subprocess
import sys

import pytest

from tensorflowonspark.driver import console
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.log_entries import entry_of_epoch
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.messages import Lines, Progress, ReportedMetrics, Returned, TrainingTotals
from tensorflowonspark.terminal import CONSOLE
from tests.support.backend import cluster_on
from tests.support.monitors import console_of
from tests.support.paths import ROOT
from tests.support.scripted import ScriptedBackend


@pytest.fixture(autouse=True)
def no_logging(monkeypatch):
    """Have the program not set up logging, as pytest does."""
    monkeypatch.setattr(console, "_is_set_up", lambda logger: False)
    monkeypatch.setattr(console, "_hinted", [])


def reporter(stream, **settings):
    return console_of(stream=stream, **{"show": "worker:0", **settings})


def shown(stream):
    CONSOLE.drain()
    return stream.getvalue().splitlines()


def test_of_other_nodes_only_new_warnings_are_shown():
    found = reporter(stream := io.StringIO())
    found.show("worker:0", ("chief's", "WARNING:root:seen before: 1"))
    found.show("worker:1", ("plain", "WARNING:root:seen before: 2", "WARNING:root:slow: 7 ms at 0x7f3a"))
    found.show("worker:2", ("ERROR:root:bad", "WARNING:root:slow: 9 ms at 0xb2c"))
    found.show("worker:0", ("WARNING:root:slow: 1 ms at 0x0",))  # the chief's lines are shown whatever they are
    hint, lines = [], []
    for line in shown(stream):
        (hint if line.startswith("[training]") else lines).append(line)
    assert lines == [
        "[worker:0] chief's",
        "[worker:0] WARNING:root:seen before: 1",
        "[worker:1] WARNING:root:slow: 7 ms at 0x7f3a",
        "[worker:2] ERROR:root:bad",
        "[worker:0] WARNING:root:slow: 1 ms at 0x0",
    ]
    assert len(hint) == 1
    assert 'show="all"' in hint[0]


@pytest.mark.parametrize(
    ("show", "words"), [(None, ["one", "two"]), ("none", []), ("worker:1", ["two"]), ("worker:0", ["one"])]
)
def test_whose_lines_are_all_shown(show, words, monkeypatch):
    monkeypatch.setattr(console, "_hinted", [True])  # which is shown once in a process
    found = reporter(stream := io.StringIO(), show=show)
    found.show("worker:0", ("one",))
    found.show("worker:1", ("two",))
    assert [line.split()[1] for line in shown(stream)] == words


@pytest.mark.parametrize(
    ("settings", "printed_by_keras", "lines"),
    [
        ({}, False, 1),
        ({}, True, 0),
        ({"show": None}, True, 0),
        ({"show": "none"}, True, 1),
        ({"show": "worker:1"}, True, 1),
        ({"log_level": logging.WARNING}, False, 0),
        ({"log_format": "json"}, True, 1),
    ],
)
def test_an_epoch_is_one_line_unless_keras_prints_it(settings, printed_by_keras, lines):
    found = reporter(stream := io.StringIO(), **settings)
    found.epoch_ended(EpochMetrics(0, 0.0, None, {"loss": 0.5}, shown=printed_by_keras))
    assert len(shown(stream)) == lines
    assert all("epoch 1: loss 0.5" in line for line in shown(stream))


def test_a_loss_that_is_no_number_is_valid_json():
    values = {"loss": math.nan, "val_loss": math.inf, "accuracy": 0.5}
    found = json.loads(entry_of_epoch(EpochMetrics(6, 0.0, 2.0, values)).json, parse_constant=pytest.fail)
    assert found["metrics"] == {"loss": None, "val_loss": None, "accuracy": 0.5}
    assert found["message"] == "epoch 7: loss nan, val_loss inf, accuracy 0.5 (2.0 s)"
    assert (found["event"], found["epoch"], found["seconds"]) == ("epoch", 7, 2.0)


def test_each_line_is_an_object_of_json():
    found = reporter(stream := io.StringIO(), log_format="json", show=None)
    lines = ("WARNING:root:\ud800 \x1b[0m \u2028 \xfc", "x" * 100_000, '{"a": NaN}')
    found.show("worker:1", lines, "h7")
    CONSOLE.drain()
    objects = [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]
    assert [each["message"] for each in objects] == [line.replace("\x1b[0m", "") for line in lines]
    assert {(each["node"], each["host"]) for each in objects} == {("worker:1", "h7")}
    assert [each["level"] for each in objects] == ["WARNING", "INFO", "INFO"]
    assert all(each["time"][-6] in "+-" for each in objects)  # the zone
    assert stream.getvalue().isascii()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_of_a_trial_have_its_number(log_format):
    found = reporter(stream := io.StringIO(), log_format=log_format, about={"trial": 3})
    found.show("worker:0", ("hello",), "h7")
    found.epoch_ended(EpochMetrics(0, 0.0, None, {"loss": 0.5}))
    if log_format == "text":
        assert shown(stream) == ["[trial 3, worker:0] hello", "[trial 3] epoch 1: loss 0.5"]
    else:
        assert [json.loads(line)["trial"] for line in shown(stream)] == [3, 3]


def test_there_is_no_bar_beside_json():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    found = reporter(stream := Terminal(), log_format="json")
    found.progress("worker:0", Progress(0, 3, 3, 3))
    found.close()
    assert stream.getvalue() == ""


def test_the_bar_stands_below_lines_and_has_the_last_loss(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", stream := Terminal())

    def trains(node):
        metrics = (ReportedMetrics(0, {"loss": 0.25}, ended=False),)
        node.send(TrainingTotals(progress=Progress(0, 1, 2, 8), metrics=metrics))
        CONSOLE.drain()
        node.send(Lines(("a line",)))
        node.send(Returned(pickle.dumps(1)))

    with cluster_on(ScriptedBackend(trains)) as cluster:
        cluster.join()
    text = stream.getvalue()
    assert "loss=0.25" in text
    before, after = text.split("[worker:0] a line\n")
    assert before.endswith("\r")  # the bar is removed
    assert "epoch 1" in after  # and drawn again


def test_a_message_without_progress_draws_no_bar_again(monkeypatch):
    drawn = []
    monkeypatch.setattr(ConsoleReporter, "progress", lambda _self, node, now: drawn.append((node, now.step)))

    def trains(node):
        for totals in (TrainingTotals(), *[TrainingTotals(progress=Progress(0, step, 2, 8)) for step in (1, 2, 2)]):
            node.send(totals)
        node.send(Returned(pickle.dumps(1)))

    with cluster_on(ScriptedBackend(trains)) as cluster:
        cluster.join()
    assert drawn == [("worker:0", 1), ("worker:0", 2)]


_RESTARTS = """
import logging, sys
sys.path.insert(0, {root!r})
from tensorflowonspark.errors import FailureKind, NodeError
from tensorflowonspark.messages import Failed, Lines
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend

def fails(node):
    attempt = node.plan.config.attempt
    node.send(Lines(("a line",)))
    node.send(Failed(FailureKind.RAISED if attempt else FailureKind.KILLED, "in attempt %d" % attempt))

try:
    with cluster_on(ScriptedBackend(fails), restarts=1, log_format="json") as cluster:
        cluster.join()
except NodeError:
    print(logging.getLogger("tensorflowonspark").handlers)  # none after the cluster
"""


@pytest.mark.slow
def test_all_of_standard_error_is_json():
    """The driver's own records too, which Python shows as text if a program has not set up logging."""
    done = subprocess.run(
        [sys.executable, "-c", _RESTARTS.format(root=str(ROOT))], capture_output=True, text=True, timeout=60, check=True
    )
    objects = [json.loads(line) for line in done.stderr.splitlines()]
    events = [each["event"] for each in objects if "event" in each]
    assert events == ["started", "failure", "restart", "started", "failure", "ended"]
    assert {each["node"] for each in objects if each.get("event") == "failure"} == {"worker:0"}
    (record,) = [each for each in objects if "logger" in each]
    assert record["level"] == "WARNING"
    assert "All nodes are started again" in record["message"]
    assert [each["message"] for each in objects if "host" in each and "event" not in each] == ["a line"] * 2
    assert done.stdout == "[]\n"


def test_with_logging_the_programs_formatter_gets_the_fields(monkeypatch):
    monkeypatch.undo()

    class Collect(logging.Handler):
        def emit(self, record):
            records.append(record)

    records = []
    logger = logging.getLogger("tensorflowonspark")
    logger.addHandler(handler := Collect())
    logger.setLevel(logging.INFO)
    try:
        found = reporter(stream := io.StringIO())
        found.show("worker:0", ("a line",), "h1")
        found.epoch_ended(EpochMetrics(1, 0.0, None, {"loss": 0.5}))
        CONSOLE.drain()
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    line, epoch = records
    assert (line.getMessage(), line.node, line.host) == ("[worker:0] a line", "worker:0", "h1")
    assert (epoch.event, epoch.epoch, epoch.metrics) == ("epoch", 2, {"loss": 0.5})
    assert not stream.getvalue()


def test_an_event_names_its_node():
    found = reporter(stream := io.StringIO(), log_format="json")
    found.happened(ClusterEvent(0.0, "node_restart", "it is up again", "worker:1"))
    (event,) = map(json.loads, shown(stream))
    assert (event["level"], event["node"], event["message"]) == ("WARNING", "worker:1", "worker:1: it is up again")
