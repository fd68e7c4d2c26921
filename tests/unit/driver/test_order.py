"""The order of what is logged and reported: that of its occurrence, whichever thread is slow."""

import pickle
import time

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver import cluster_run
from tensorflowonspark.driver.attempt_end import AttemptEnd
from tensorflowonspark.driver.metrics.event_log import EventLog, MetricsListener
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed, Lines, ReportedMetrics, Returned, TrainingTotals
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend

_SECONDS = 0.15


def dies_once(node):
    attempt = node.plan.config.attempt
    node.send(Lines((f"begins {attempt}",)))
    node.send(TrainingTotals(metrics=(ReportedMetrics(attempt, {"loss": 1.0}, ended=True),)))
    node.send(Lines(("the last line before its end",)))
    if attempt == 0:
        node.send(Failed(FailureKind.KILLED, "it was killed"))
    else:
        node.send(Returned(pickle.dumps(attempt)))


def slow(monkeypatch, where):
    """Have a thread of the driver be late each time."""

    class Listener(MetricsListener):
        def happened(self, event):
            time.sleep(_SECONDS)

        epoch_ended = happened

    if where == "listener":
        start = EventLog.subscribe

        def subscribe(store, listener):
            start(store, Listener())
            start(store, listener)

        monkeypatch.setattr(EventLog, "subscribe", subscribe)
        return
    owner, name = {"program": (Monitor, "wait"), "end": (AttemptEnd, "_end_all")}[where]
    act = getattr(owner, name)

    def late(monitor, *arguments):
        if where == "end":
            time.sleep(_SECONDS)
            return act(monitor, *arguments)
        try:
            return act(monitor, *arguments)
        finally:
            time.sleep(_SECONDS)

    monkeypatch.setattr(owner, name, late)


@pytest.mark.deep
@pytest.mark.parametrize("where", ["program", "end", "listener"])
@pytest.mark.parametrize("scope", ["cluster", "node"])
def test_what_is_logged_has_the_order_in_which_it_happened(tmp_path, monkeypatch, where, scope):
    slow(monkeypatch, where)
    policy = RestartPolicy(1, backoff=0.01, scope=scope)
    advice = "what bounded the training"
    given = [advice]
    monkeypatch.setattr(
        cluster_run.ClusterAttempt, "advise", lambda each: given and each.monitor.run.console.note(given.pop())
    )
    with cluster_on(
        ScriptedBackend(dies_once), restarts=policy, logs=tfos.Logs(log_dir=str(tmp_path), show="none")
    ) as cluster:
        assert cluster.join() == {"worker:0": 1}
    again = (
        ["all nodes are started again (restart 1)", "all nodes are up: 1 worker"]
        if scope == "cluster"
        else ["worker:0: it is up again on here (restart 1 of this node)"]
    )
    expected = [
        "all nodes are up: 1 worker",
        "epoch 1: loss 1",
        "worker:0 on here failed: it was killed",
        *again,
        "epoch 2: loss 1",
        advice,
        "the cluster has ended",
    ]
    lines = [line.split(" ", 3)[3] for line in (tmp_path / "driver.log").read_text().splitlines()]
    assert lines == expected
    events = cluster.metrics().events
    assert [each.time for each in events] == sorted(each.time for each in events)
    happened = [each for each in expected if each != advice and "epoch" not in each]
    assert [each.text for each in events] == [each.removeprefix("worker:0: ") for each in happened]
    node = [line.rpartition(": ")[2] for line in (tmp_path / "worker-0.log").read_text().splitlines()]
    assert node == [
        "begins 0",
        "the last line before its end",
        "it was killed",
        "a new start",
        "begins 1",
        "the last line before its end",
    ]
