"""What the driver sees of workers together: the backends of their Keras."""

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.joint_work import JointWork
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.messages import KerasImported, Member


def test_two_backends_in_one_cluster_are_the_failure_of_the_worker_that_has_the_second():
    roster = Roster(ClusterSpec(num_workers=2))
    joint = JointWork(roster, lambda *_: None, keeps=False)
    first, second = roster.nodes
    first.member = Member(0, first.role, "h0", 1)
    assert joint.receive(first, KerasImported("jax")) is None
    assert joint.receive(first, KerasImported("jax")) is None  # a new process of it
    failure = joint.receive(second, KerasImported("tensorflow"))
    assert failure.reason == "its Keras has the backend tensorflow, and that of worker:0 on h0 has jax"
    assert 'env={"KERAS_BACKEND": "tensorflow"}' in failure.advice
    assert joint.receive(second, KerasImported("jax")) is None
