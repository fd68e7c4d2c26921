"""Restart policies and ranges of workers that are refused."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.restart_policy import RestartPolicy


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"max_restarts": "3"}, "max_restarts='3'"),
        ({"max_preemptions": -1}, "max_preemptions=-1"),
        ({"max_preemptions": True}, "max_preemptions=True"),
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
