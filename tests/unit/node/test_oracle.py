"""Whether KerasTuner's variables are set, and to what; the search itself runs in `cluster/search`."""

import os
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.messages import Member
from tensorflowonspark.node import oracle

NAMES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


@pytest.fixture
def imported(monkeypatch):
    """Return a function that shares the oracle, imports KerasTuner, and returns the variables that are set then."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that they are as before in the end
        monkeypatch.delenv(name)
    hooks = {}
    registered = SimpleNamespace(register_post_import_hook=lambda hook, name: hooks.update({name: hook}))
    monkeypatch.setattr(oracle, "wrapt", registered)
    # The real one finds the name in the modules of these tests, too.
    monkeypatch.setattr(oracle, "names_strategy", lambda program: b"MultiWorkerMirroredStrategy" in program)

    def run(spec, role, program=b""):
        members = [Member(number, each, f"h{number}", 4000 + number) for number, each in enumerate(spec.roles)]
        oracle.share_oracle(role, spec, members, program)
        if hooks:
            hooks["keras_tuner"](None)
        return [os.environ.get(name) for name in NAMES]

    return run


@pytest.mark.parametrize(
    ("spec", "role", "expected"),
    [
        (ClusterSpec(3), Role(Job.WORKER, 0), ["chief", "h0", "4000"]),
        (ClusterSpec(3), Role(Job.WORKER, 2), ["tuner1", "h0", "4000"]),
        (ClusterSpec(2, chief=True, evaluator=True), Role(Job.CHIEF, 0), ["chief", "h0", "4000"]),
        (ClusterSpec(2, chief=True, evaluator=True), Role(Job.WORKER, 0), ["tuner0", "h0", "4000"]),
        (ClusterSpec(2, chief=True, evaluator=True), Role(Job.EVALUATOR, 0), [None] * 3),
        (ClusterSpec(1), Role(Job.WORKER, 0), [None] * 3),
        (ClusterSpec(2, num_ps=1, chief=True), Role(Job.WORKER, 0), [None] * 3),
    ],
)
def test_the_first_worker_is_the_oracle_of_the_others(imported, spec, role, expected):
    assert imported(spec, role) == expected


def test_a_variable_that_is_set_is_left_alone(imported, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "mine")
    assert imported(ClusterSpec(2), Role(Job.WORKER, 1)) == ["mine", None, None]


def test_workers_that_train_one_model_have_no_oracle(imported):
    program = b"strategy = tf.distribute.MultiWorkerMirroredStrategy()"
    assert imported(ClusterSpec(2), Role(Job.WORKER, 1), program) == [None] * 3


@pytest.mark.parametrize(
    ("given", "tuner", "expected"),
    [({}, None, 7), ({"seed": 3}, None, 3), ({"seed": None}, None, 7), ({}, "tuner0", None)],
)
def test_workers_that_train_one_model_draw_the_same_trials(monkeypatch, given, tuner, expected):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if tuner:
        monkeypatch.setenv(NAMES[0], tuner)

    class Oracle:
        def __init__(self, objective=None, seed=None):
            self.seed = seed

    oracle._seed_alike(7, SimpleNamespace(Oracle=Oracle))
    assert Oracle("loss", **given).seed == expected
