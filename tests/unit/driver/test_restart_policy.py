"""Restart policies: which failures cause a restart, and when; policies and ranges of workers that are refused."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.config import ClusterConfig, ClusterSpec, RestartPolicy
from tensorflowonspark.driver.restart import RestartBudget
from tensorflowonspark.errors import FailureKind, NodeError, SlotsError, StartError


def failed(kind):
    return NodeError("worker:0", "h1", "it did", cause=kind.name.lower())


KILLED, RAISED = failed(FailureKind.KILLED), failed(FailureKind.RAISED)
NO_START, NO_SLOTS = StartError("worker:1 is missing"), SlotsError(2, 1, "add executors")


@pytest.mark.parametrize(
    ("policy", "errors", "delays"),
    [
        (RestartPolicy(4, backoff=2, max_backoff=5), [KILLED] * 5, [0, 2, 4, 5, None]),
        (RestartPolicy(3), [RAISED], [None]),
        (RestartPolicy(3, causes=["raised"]), [RAISED, KILLED], [0, None]),
        (RestartPolicy(3), [NO_START], [None]),  # the first start was no restart
        (RestartPolicy(3, backoff=1), [KILLED, NO_START], [0, 1]),
        (RestartPolicy(3), [KILLED, NO_SLOTS], [0, None]),
        *((RestartPolicy(1), [failed(kind)], [0]) for kind in FailureKind if kind is not FailureKind.RAISED),
    ],
)
def test_failures_cause_as_many_restarts_as_the_policy_has_and_none_at_once_but_the_first(policy, errors, delays):
    budget = RestartBudget(ClusterConfig(ClusterSpec(num_workers=1), b"", restarts=policy))
    for error, delay in zip(errors, delays, strict=True):
        if delay is None:
            with pytest.raises(type(error)):
                budget.spend(error)
        else:
            assert budget.spend(error) == delay


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"max_restarts": "3"}, "max_restarts='3'"),
        ({"backoff": -1}, "backoff=-1"),
        ({"causes": ["tired"]}, "'tired' is unknown; expected some of out_of_memory, killed"),
        ({"causes": "killed"}, "'killed' is unknown"),
        ({"scope": "worker"}, "scope='worker': expected 'cluster' or 'node'"),
    ],
)
def test_a_policy_that_can_not_be_right_is_refused(settings, words):
    with pytest.raises(tfos.SpecError, match=words):
        RestartPolicy(**settings)


@pytest.mark.parametrize("workers", [(2,), (3, 2), (0, 2), ("1", "2"), (1, 2, 3)])
def test_a_range_that_can_not_be_right_is_refused(workers):
    with pytest.raises(tfos.SpecError, match=r"expected a number, or the fewest and the most, as in \(2, 8\)"):
        tfos.Cluster(object(), lambda args, ctx: None, num_workers=workers)
