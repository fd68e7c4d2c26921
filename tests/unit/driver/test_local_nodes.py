"""Nodes on the driver's machine that can't be launched."""

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.spark import local_nodes
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.transport import Credentials
from tests.support.backend import PlayedStage


@pytest.mark.parametrize("error", [BrokenPipeError("it has ended"), RuntimeError("can't start new thread")])
def test_a_supervisor_that_can_not_be_started_is_a_problem_beside_those_of_the_stage(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(local_nodes, "start_supervisor", fail)
    config = ClusterConfig(ClusterSpec(num_workers=1, num_ps=1), b"")
    plan = LaunchPlan(config, "c", Credentials(""), ("here", 1), {}, True, None, (3, 11))
    nodes = local_nodes.LocalNodes(plan, [0], PlayedStage([], ["worker:0 was not launched"]))
    assert nodes.problems() == [
        f"ps:0 on the driver's machine: its supervisor can't be started ({error}): see ulimit -u and -n, and memory",
        "worker:0 was not launched",
    ]
