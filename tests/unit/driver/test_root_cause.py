"""Which node hangs, by what each is at, and which hosts can't reach each other."""

import time

import pytest

from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.driver.failures import explain_network
from tensorflowonspark.driver.hangs import find_hung
from tensorflowonspark.driver.nodes import Node, NodeProgram, Roster
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedComplete, FileFeed, SplitManifest
from tensorflowonspark.messages import Failed, Idle, Member, NodeStatus, WaitsFor
from tensorflowonspark.transport import ONLY_SMALL

BUSY, RETURNED = "busy", "returned"


def at(waits_for=WaitsFor.NOTHING, *, in_tensorflow=False, in_epoch=False):
    return Idle(30.0, NodeStatus(waits_for, in_tensorflow, in_epoch, "its stack"))


NO_ANSWER = Idle(30.0, None)
IN_TENSORFLOW, IN_EPOCH, STANDS = at(in_tensorflow=True), at(in_epoch=True), at()
FEED, ROWS, STORAGE, TERMINAL = (at(each) for each in list(WaitsFor)[1:])


def nodes_at(states, wanted=-1):
    nodes = []
    for number, state in enumerate(states):
        node = Node(number, Role(Job.WORKER, number), program=NodeProgram(returned=state == RETURNED))
        node.process.idle = state if isinstance(state, Idle) else None
        node.process.idle_since = time.monotonic() - 30
        node.feed.wanted = wanted if state is FEED else None
        nodes.append(node)
    return nodes


@pytest.mark.parametrize(
    ("states", "hung"),
    [
        ([NO_ANSWER], 0),
        ([NO_ANSWER, BUSY], None),  # it may wait for the other in TensorFlow, with Python's lock
        ([NO_ANSWER, STORAGE], None),
        ([TERMINAL, NO_ANSWER], None),
        ([TERMINAL, IN_TENSORFLOW], None),
        ([TERMINAL, IN_EPOCH], None),
        ([NO_ANSWER, RETURNED], 0),
        ([NO_ANSWER, NO_ANSWER], 0),
        ([IN_TENSORFLOW, NO_ANSWER], 1),
        ([STANDS, NO_ANSWER], 0),
        ([ROWS, NO_ANSWER], 1),
        ([ROWS, IN_TENSORFLOW], None),
        ([STANDS, STANDS], None),  # nobody has steps to take
        ([STANDS, IN_TENSORFLOW], 0),
        ([IN_EPOCH, IN_TENSORFLOW], 0),
        ([IN_TENSORFLOW, RETURNED], 0),
        ([IN_TENSORFLOW, IN_TENSORFLOW, BUSY], None),
    ],
)
def test_of_those_that_train_together(states, hung):
    nodes = nodes_at(states)
    found = find_hung(nodes, nodes, feed=None)
    assert (found and found[0].number) == hung


def test_one_that_does_not_answer_has_the_time_that_tensorflow_takes_to_try_again():
    """It registers with its coordinator, which has just come up and waits for it."""
    nodes = nodes_at([IN_TENSORFLOW, NO_ANSWER])
    nodes[1].process.idle_since = time.monotonic() - 16
    assert find_hung(nodes, nodes, feed=None) is None
    nodes[1].process.idle_since = time.monotonic() - 18
    node, failure = find_hung(nodes, nodes, feed=None)
    assert node is nodes[1]
    assert "has not answered for 18 s" in failure.reason


@pytest.mark.parametrize("other", [IN_TENSORFLOW, NO_ANSWER])
@pytest.mark.parametrize(
    ("wanted", "feed", "hangs"),
    [
        (0, None, False),  # the driver may feed it later
        (0, 0, False),  # Spark computes what it waits for
        (1, 0, True),  # it is through, and feed 0 goes on until the other is
        (None, None, True),  # it waits for what the others read of files
    ],
)
def test_one_that_waits_for_a_feed(other, wanted, feed, hangs):
    nodes = nodes_at([FEED, other], wanted=wanted)
    found = find_hung(nodes, nodes, feed)
    assert bool(found) == hangs
    assert not hangs or found[0].number == 1


def test_one_that_waits_for_a_feed_after_it_has_read_files():
    roster = Roster(ClusterSpec(num_workers=2))
    roster.nodes = nodes_at([FEED, IN_TENSORFLOW], wanted=0)
    roster.send(0, FeedComplete(FileFeed(0), SplitManifest({})))
    assert find_hung(roster.nodes, roster.nodes, feed=None) is None
    roster.send(0, FeedComplete(0, SplitManifest({})))
    assert not roster.nodes[0].feed.waits


def test_one_that_trains_with_nobody_waits_for_nobody():
    *workers, server = nodes_at([BUSY, BUSY, NO_ANSWER])
    server.role = Role(Job.PS, 0)
    node, failure = find_hung([*workers, server], workers, feed=None)
    assert node is server
    assert "has not answered for 30 s" in failure.reason
    server.process.idle = IN_TENSORFLOW
    assert find_hung([*workers, server], workers, feed=None) is None


HUNG = Failed(FailureKind.HUNG, "it waits")
LOST_TASK = (
    "UnavailableError: Collective ops is aborted by: /job:worker/replica:0/task:2 heartbeat timeout\n"
    "The error could be from a previous operation. Restart your program to reset."
)
UNAVAILABLE = Failed(FailureKind.PEER_LOST, "its program raised UnavailableError: Collective ops", traceback=LOST_TASK)


@pytest.mark.parametrize(
    ("failed", "unreached", "reason"),
    [
        (HUNG, {}, "it waits"),
        (HUNG, {0: {2}}, "it can't reach worker:2 on h2 at port 2222 of TensorFlow (refused)"),
        (HUNG, {1: {2}}, "worker:1 on h1 can't reach worker:2 on h2 at port 2222 of TensorFlow (refused)"),
        (HUNG, {0: {2}, 1: {2}, 2: {2}}, "it waits"),  # nobody listens there yet
        (UNAVAILABLE, {0: {1}}, "it can't reach worker:1 on h1 at port 2222 of TensorFlow (refused)"),
        (UNAVAILABLE, {}, "its TensorFlow has lost worker:2 on h2, which runs: the network between them was broken"),
    ],
)
def test_of_those_that_can_not_reach_each_other(failed, unreached, reason):
    nodes = [Node(number, Role(Job.WORKER, number)) for number in range(3)]
    for node in nodes:
        node.member = Member(node.number, node.role, f"h{node.number}", 2222)
        node.process.unreached = {f"h{number}:2222": "refused" for number in unreached.get(node.number, ())}
    found = explain_network(nodes[0], failed, nodes)
    assert found.reason == reason
    assert (found.kind, found.traceback) == (failed.kind, failed.traceback)


def test_an_mtu_black_hole_has_a_remedy_of_its_own():
    nodes = [Node(number, Role(Job.WORKER, number)) for number in range(2)]
    for node in nodes:
        node.member = Member(node.number, node.role, f"h{node.number}", 2222)
    nodes[0].process.unreached = {"h1:2222": ONLY_SMALL}
    found = explain_network(nodes[0], UNAVAILABLE, nodes)
    assert found.reason.endswith("can't reach worker:1 on h1 at port 2222 of TensorFlow (" + ONLY_SMALL + ")")
    assert "MTU" in found.advice
    assert "firewall is closed" not in found.advice
