import json

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec, Job, Role, tf_config
from tensorflowonspark.errors import SpecError


def test_roles_come_in_the_order_of_node_numbers():
    spec = ClusterSpec(num_workers=2, num_ps=2, chief=True, evaluator=True)
    assert [str(role) for role in spec.roles] == ["ps:0", "ps:1", "chief:0", "evaluator:0", "worker:0", "worker:1"]
    assert [str(role) for role in spec.trainers] == ["chief:0", "worker:0", "worker:1"]
    assert str(spec) == "2 ps, chief, evaluator, 2 workers"


def test_worker_0_is_chief_where_there_is_no_chief():
    assert ClusterSpec(num_workers=3).chief_role == Role(Job.WORKER, 0)
    assert ClusterSpec(num_workers=3, chief=True).chief_role == Role(Job.CHIEF, 0)


def test_a_chief_that_coordinates_parameter_servers_is_not_fed():
    assert Role(Job.CHIEF, 0) in ClusterSpec(num_workers=1, chief=True).fed
    assert Role(Job.CHIEF, 0) not in ClusterSpec(num_workers=1, chief=True, num_ps=1).fed


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 1.5}, "num_workers=1.5: expected a whole number"),
        ({"num_workers": True}, "num_workers=True"),
        ({"num_workers": 0}, "no node would train"),
        ({"num_ps": "2"}, "num_ps='2'"),
        ({"evaluator": 2}, "evaluator=2: expected True or False"),
    ],
)
def test_wrong_counts_are_refused_with_their_value(counts, words):
    with pytest.raises(SpecError, match=words):
        ClusterSpec(**counts)


@pytest.mark.parametrize("gpus", [0, -1, 1.5, True, "2"])
def test_a_number_of_gpus_that_can_not_be(gpus):
    with pytest.raises(SpecError, match=f"gpus_per_node={gpus!r}: expected a whole number of GPUs"):
        ClusterConfig(ClusterSpec(), b"", gpus_per_node=gpus)


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        ("", "one interface"),
        ("ib0, ib1", "one interface"),
        (7, "one interface"),
        ("10.1.0.0/40", "does not appear to be an IPv4 or IPv6 network"),
        ("10.1.0", "does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_network_interface_that_can_not_be(interface, reason):
    with pytest.raises(SpecError, match=f"network_interface={interface!r}: expected a name as 'ib0'.*{reason}"):
        ClusterConfig(ClusterSpec(), b"", network_interface=interface)


@pytest.mark.parametrize("interface", ["ib0", "ib*", "en[op]*", "10.1.0.0/16", "10.1.2.3", "fd77::/64", None])
def test_network_interfaces_by_name_pattern_and_network(interface):
    assert ClusterConfig(ClusterSpec(), b"", network_interface=interface).network_interface == interface


def test_tf_config_of_each_node():
    spec = ClusterSpec(num_workers=2, num_ps=1, chief=True, evaluator=True)
    addresses = {role: f"host:{number}" for number, role in enumerate(spec.roles)}
    worker = json.loads(tf_config(addresses, Role(Job.WORKER, 1)))
    assert worker == {
        "cluster": {"chief": ["host:1"], "ps": ["host:0"], "worker": ["host:3", "host:4"]},
        "task": {"type": "worker", "index": 1},
    }
    evaluator = json.loads(tf_config(addresses, Role(Job.EVALUATOR, 0)))
    assert evaluator["cluster"]["evaluator"] == ["host:2"]
    assert evaluator["task"] == {"type": "evaluator", "index": 0}


@pytest.mark.parametrize("grace", [-1.0, float("nan"), float("inf"), "30s"])
def test_a_grace_that_is_no_time_is_refused(grace):
    with pytest.raises(SpecError, match=r"grace=.*: expected 0 or more seconds"):
        ClusterConfig(ClusterSpec(num_workers=1), program=b"", grace=grace)
