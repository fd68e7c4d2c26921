"""What the driver sees of workers together: the backends of their Keras, and who waits for whom."""

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.joint_work import JointWork
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FileFeed, FilesRead
from tensorflowonspark.messages import Contribution, Failed, KerasImported, Member


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


def test_a_hang_names_the_call_in_which_others_wait_of_either_kind():
    roster = Roster(ClusterSpec(num_workers=2))
    hung = Failed(FailureKind.HUNG, "its program stands still")
    for message in (FilesRead(FileFeed(7), "ctx.read_tfrecord('x')", 1, ()), Contribution(0, "A.adapt")):
        joint = JointWork(roster, lambda *_: None, keeps=False)
        assert joint.receive(roster.nodes[0], message) is None
        reason = f"its program stands still, without {message.call}, for which worker:0 waits"
        assert joint.explain(roster.nodes[1], hung).reason == reason
        assert joint.explain(roster.nodes[0], hung) == hung


def test_two_workers_that_wait_for_each_other_in_calls_of_two_kinds_are_the_error():
    roster = Roster(ClusterSpec(num_workers=2))
    joint = JointWork(roster, lambda *_: None, keeps=False)
    assert joint.receive(roster.nodes[0], Contribution(0, "A.adapt")) is None
    failure = joint.receive(roster.nodes[1], FilesRead(FileFeed(7), "ctx.read_tfrecord('x')", 1, ()))
    assert failure.reason == "its program called ctx.read_tfrecord('x'), and another worker's A.adapt in its place"
    assert failure.advice.startswith("call ctx.read_tfrecord, ")
