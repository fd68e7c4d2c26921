"""Whether KerasTuner's variables are set, and to what; the search itself runs in `cluster/search`."""

import os
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import Member
from tensorflowonspark.node import oracle

NAMES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


@pytest.fixture
def tuner(monkeypatch):
    """Return a function that shares the oracle, makes one, and returns its seed and the variables that are set then."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that they are as before in the end
        monkeypatch.delenv(name)
    hooks = {}
    registered = SimpleNamespace(
        register_post_import_hook=lambda hook, name: hooks.update({name: hook}),
        wrap_function_wrapper=oracle.wrapt.wrap_function_wrapper,
    )
    monkeypatch.setattr(oracle, "wrapt", registered)
    monkeypatch.setattr(oracle, "_train_together", lambda: False)

    def make(spec, role, **options):
        class Oracle:
            def __init__(self, objective=None, seed=None):
                self.seed = seed

        members = [Member(number, each, f"h{number}", 4000 + number) for number, each in enumerate(spec.roles)]
        oracle.share_oracle(role, spec, members)
        if hooks:
            hooks["keras_tuner.src.engine.oracle"](SimpleNamespace(Oracle=Oracle))
        return Oracle("loss", **options).seed, [os.environ.get(name) for name in NAMES]

    return make


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
def test_the_first_worker_is_the_oracle_of_the_others(tuner, spec, role, expected):
    assert tuner(spec, role) == (None, expected)


def test_a_variable_that_is_set_is_left_alone(tuner, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "mine")
    assert tuner(ClusterSpec(2), Role(Job.WORKER, 1)) == (None, ["mine", None, None])


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": None}])
def test_workers_that_train_one_model_have_no_oracle_and_draw_the_same_trials(tuner, monkeypatch, options):
    monkeypatch.setattr(oracle, "_train_together", lambda: True)
    (one, variables), (other, _) = (tuner(ClusterSpec(2), Role(Job.WORKER, each), **options) for each in (0, 1))
    assert variables == [None] * 3
    assert one == other == (options.get("seed") or one)
    assert 0 < one <= 10_000


def test_a_strategy_that_is_made_by_a_search_is_refused(monkeypatch):
    class BaseTuner:
        def __init__(self, overwrite=False):
            self.overwrite = overwrite

    module = SimpleNamespace(BaseTuner=BaseTuner)
    oracle._make_tuners(module)
    monkeypatch.setenv(NAMES[0], "tuner0")
    monkeypatch.setenv(NAMES[1], "h0")
    monkeypatch.setattr(oracle, "_train_together", lambda: False)
    assert not module.BaseTuner(overwrite=True).overwrite
    monkeypatch.setattr(oracle, "_train_together", lambda: True)
    with pytest.raises(SpecError, match="make the strategy before the tuner"):
        module.BaseTuner()
