"""What the driver passes on between an evaluator and the nodes that train, and how long it waits for one."""

import time

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.messages import (
    CheckpointSaved,
    Evaluation,
    ProgramBegun,
    ReportedMetrics,
    Stop,
    TrainingEnded,
    TrainingTotals,
)
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, returns

SAVED = CheckpointSaved(0, "/saved", 0, "step-1", 1)
HISTORY = {"epoch": [0], "val_loss": [0.25]}
FOUND = Evaluation("/saved", "step-1", True, ReportedMetrics(0, {"val_loss": 0.25}, ended=True), HISTORY)


def chief(node):
    """Train an epoch, and hear of its evaluation."""
    assert node.wait_for(Evaluation) == Evaluation("/saved")
    node.send(SAVED)
    node.send(TrainingTotals(metrics=(ReportedMetrics(0, {"loss": 0.5}, ended=True),)))
    while (found := node.wait_for(Evaluation)) == Evaluation("/saved"):  # again, if it came before this node was ready
        pass
    assert found == Evaluation("/saved", "step-1", True)  # no worker needs the values
    returns("trained")(node)


def evaluator(seconds=0.0, *, twice=False):
    def script(node):
        node.send(Evaluation("/saved"))
        assert node.wait_for(CheckpointSaved) == SAVED
        for _ in range(1 + twice):
            node.send(FOUND)
        node.wait_for(TrainingEnded)
        time.sleep(seconds)
        returns(None)(node) if seconds < 3.0 else node.wait_for(Stop)

    return script


def run(*scripts, timeout=None):
    with cluster_on(ScriptedBackend(*scripts), num_workers=len(scripts) - 1, evaluator=True) as cluster:
        return cluster.join(timeout)


@pytest.mark.parametrize("twice", [False, True])
def test_the_values_are_those_of_their_epoch_and_count_once(twice):
    results = run(evaluator(twice=twice), chief)
    assert results == {"worker:0": "trained"}
    assert results.validation == HISTORY
    (epoch,) = results.metrics.epochs
    assert epoch.values == {"loss": 0.5, "val_loss": 0.25}
    assert results.history == {"loss": [0.5], "val_loss": [0.25]}


@pytest.mark.deep
def test_the_end_waits_for_the_evaluator_and_says_so(caplog):
    caplog.set_level("INFO")
    begun = time.monotonic()
    assert run(evaluator(2.0), chief).validation == HISTORY
    assert time.monotonic() - begun > 2.0
    assert "the training has ended, and evaluator:0 on here evaluates its last checkpoints" in caplog.text


@pytest.mark.deep
def test_the_user_limits_the_wait():
    with pytest.raises(tfos.ClusterError, match=r"after 1 s \(timeout\) the program still runs on evaluator:0 on here"):
        run(evaluator(3.0), chief, timeout=1)


def test_a_program_that_has_returned_evaluates_no_more():
    def trains(node):
        assert node.wait_for(Evaluation) == Evaluation()
        returns("alone")(node)

    assert run(returns(None), trains) == {"worker:0": "alone"}


@pytest.mark.deep
@pytest.mark.parametrize("saves", [True, False])
def test_an_evaluator_that_does_not_begin_is_ended_with_a_warning(monkeypatch, caplog, saves):
    monkeypatch.setattr("tensorflowonspark.driver.cluster.EVALUATOR_START_SECONDS", 1.0)
    monkeypatch.setattr("tensorflowonspark.driver.cluster._FIRST_SECONDS", 0.1)

    def prepares(node):
        node.send(ProgramBegun())
        node.wait_for(Stop)

    def trains(node):
        if saves:
            node.send(SAVED)
        returns("alone")(node)

    assert run(prepares, trains) == {"worker:0": "alone"}
    ended = "evaluator:0 on here is ended: its program has not called ctx.evaluate_checkpoints within 1 s"
    assert (ended in caplog.text) == saves


def test_nobody_waits_for_an_evaluator_with_a_loop_of_its_own(monkeypatch):
    monkeypatch.setattr("tensorflowonspark.driver.cluster._FIRST_SECONDS", 0.1)

    def loops(node):
        node.send(ProgramBegun())
        node.send(Evaluation())
        node.wait_for(Stop)

    assert run(loops, returns("alone")) == {"worker:0": "alone"}
