"""Values that workers combine by way of the driver: all sizes, and the worker that keeps others waiting."""

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.joint_work import JointWork
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FileFeed, FilesRead
from tensorflowonspark.messages import Contribution, Failed, FeedWanted, Returned
from tensorflowonspark.node import collectives
from tests.support.inprocess import cluster_in_process
from tests.support.monitors import monitor_of, reception_of


def combining(ctx):
    return collectives.NodeCollectives(ctx._setup, ctx._link).combine


@pytest.mark.parametrize("workers", [2, 5])
def test_values_of_all_sizes_come_to_all_in_order(workers, monkeypatch):
    monkeypatch.setattr(collectives, "_CHUNK_BYTES", 1000)

    def program(args, ctx):
        combine = combining(ctx)
        values = [b"", b"%d" % ctx.index * 10, b"%d" % ctx.index * 2000, b"%d" % ctx.index * 12345]
        return [combine("test", value, b",".join) for value in values]

    with cluster_in_process(program, num_workers=workers) as cluster:
        results = cluster.join()
    for result in results.values():
        for value, size in zip(result, (0, 10, 2000, 12345), strict=True):
            assert value == b",".join(b"%d" % index * size for index in range(workers))


def test_the_driver_knows_who_keeps_whom_waiting():
    sent = []
    roster = Roster(ClusterSpec(num_workers=3))
    roster.send = lambda number, message: sent.append((number, message.sender))
    workers = roster.nodes
    shared = JointWork(roster, lambda *_: None, keeps=False)
    hung = Failed(FailureKind.HUNG, "its program stands still")
    assert shared.receive(workers[0], Contribution(0, "A.adapt")) is None
    assert "without A.adapt, for which worker:0 waits" in shared.explain(workers[1], hung).reason
    assert shared.explain(workers[0], hung) == hung
    workers[1].feed.wanted = 0  # it has not asked for more than the others have
    assert shared.receive(workers[1], FeedWanted(0)) is None
    for each in workers[1:]:
        assert shared.receive(each, Contribution(0, "A.adapt")) is None
    for each in workers:
        assert shared.receive(each, Contribution(0, "A.adapt", b"x", last=True)) is None
    assert sent == [(1, 0), (2, 0), (0, 1), (0, 2)]
    workers[2].program.returned = True
    assert shared.receive(workers[2], Returned(b"")) is None
    late = shared.receive(workers[0], Contribution(1, "A.adapt"))
    assert "worker:2 returned without A.adapt" in late.reason
    workers[2].program.returned, workers[1].feed.wanted = False, 1
    assert shared.receive(workers[1], FeedWanted(1)) is None  # worker:0 has asked for no feed at all
    workers[0].feed.wanted = 0
    ahead = shared.receive(workers[1], FeedWanted(1))
    assert "worker:1 asked for the next feed without A.adapt, for which worker:0 waits" in ahead.reason


@pytest.mark.parametrize(
    "pending", [FilesRead(FileFeed(0), "ctx.read_tfrecord('x')", 1, ()), Contribution(0, "A.adapt")]
)
@pytest.mark.parametrize("leaving", [FeedWanted(1), Returned(b"")])
def test_a_worker_that_goes_on_while_others_wait_for_it_is_the_cause(pending, leaving):
    monitor = monitor_of(ClusterSpec(num_workers=2))
    reception = reception_of(monitor)
    for node in monitor.roster.nodes:
        reception._on_message(node, FeedWanted(0))
    reception._on_message(monitor.roster.nodes[0], pending)
    assert not monitor.end.failures.begun
    reception._on_message(monitor.roster.nodes[1], leaving)
    action = "returned" if isinstance(leaving, Returned) else "asked for the next feed"
    assert f"worker:1 {action} without {pending.call}, for which worker:0 waits" in str(monitor.end.failures.first())
