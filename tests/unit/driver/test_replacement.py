"""Restarts of single nodes, as the driver alone decides them; and what such a restart does not allow."""

import os
import pickle
import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.config import Job, Role
from tensorflowonspark.driver.contributions import Contributions
from tensorflowonspark.driver.feed.sources import SparkJobs
from tensorflowonspark.driver.file_feeds import FileFeeds
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.driver.rendezvous import Kind, Rendezvous
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FileFeed, FilesRead, PartId, PartRef, PartSummary, Split
from tensorflowonspark.messages import (
    Contribution,
    Failed,
    Idle,
    Member,
    MemberReplaced,
    Members,
    NoMoreFeeds,
    Register,
    Returned,
    Serving,
)
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.backend import cluster_on
from tests.support.programs import wait_for
from tests.support.scripted import ScriptedBackend, returns, serves

alone = RestartPolicy(2, backoff=0.01, scope="node")


def fails_until(attempt, kind=FailureKind.KILLED, value="done"):
    """Return the script of a node that fails before its restart of a number, and then returns."""

    def script(node):
        if node.plan.config.attempt < attempt:
            node.send(Failed(kind, f"failure {node.plan.config.attempt}"))
        else:
            node.send(Returned(pickle.dumps(value)))

    return script


def test_the_plan_of_a_restart_is_of_one_node_with_the_number_of_its_restart():
    backend = ScriptedBackend(returns("first"), fails_until(2), returns("third"))
    with cluster_on(backend, num_workers=3, restarts=alone) as cluster:
        first = backend.nodes[0]
        assert cluster.join() == {"worker:0": "first", "worker:1": "done", "worker:2": "third"}
        assert [node.restarts for node in cluster.nodes] == [0, 2, 0]
        events = [(each.kind, each.node, each.text) for each in cluster.metrics().events if each.node is not None]
    assert [each[:2] for each in events] == [("failure", "worker:1"), ("node_restart", "worker:1")] * 2
    assert events[0][2].endswith(" failed: failure 0")
    assert backend.nodes[0] is first
    assert [list(plan.numbers) for plan in backend.plans] == [[0, 1, 2], [1], [1]]
    assert [plan.config.attempt for plan in backend.plans] == [0, 1, 2]
    assert len({plan.cluster_id for plan in backend.plans}) == 3
    replaced = [message.member.number for message in first.received if isinstance(message, MemberReplaced)]
    assert replaced == [1, 1]
    assert len(next(m for m in backend.nodes[1].received if isinstance(m, Members)).members) == 3


def test_no_more_feeds_are_announced_to_a_new_process():
    gone = Event()

    def script(node):
        node.wait_for(NoMoreFeeds)
        if node.plan.config.attempt == 0:
            gone.set()
            node.send(Failed(FailureKind.KILLED, "it was"))
        else:
            node.send(Returned(pickle.dumps("it knows")))

    with cluster_on(ScriptedBackend(script), restarts=alone) as cluster:
        assert cluster.join() == {"worker:0": "it knows"}
    assert gone.is_set()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FailureKind.KILLED, r"failure 2 \(after 2 restarts of this node: max_restarts\)"),
        (FailureKind.RAISED, "failure 0$"),
    ],
)
def test_a_failure_after_which_no_node_is_started_again_ends_all(kind, words):
    backend = ScriptedBackend(lambda node: None, fails_until(9, kind))
    with (
        pytest.raises(tfos.NodeError, match=words) as caught,
        cluster_on(backend, num_workers=2, restarts=alone) as one,
    ):
        one.join()
    assert caught.value.node == "worker:1"


@pytest.mark.parametrize("scope", ["cluster", "node"])
def test_preemptions_use_up_no_restarts(scope):
    backend = ScriptedBackend(fails_until(2, FailureKind.EXECUTOR_LOST))
    backend.preempted.add("0")
    with cluster_on(backend, restarts=RestartPolicy(0, max_preemptions=2, scope=scope)) as cluster:
        assert cluster.join() == {"worker:0": "done"}
    assert [plan.config.attempt for plan in backend.plans] == [0, 1, 2]


@pytest.mark.parametrize("scope", ["cluster", "node"])
def test_an_executor_that_nobody_took_uses_up_no_preemptions(scope):
    backend = ScriptedBackend(fails_until(2, FailureKind.EXECUTOR_LOST))
    policy = RestartPolicy(1, max_preemptions=2, scope=scope)
    with pytest.raises(tfos.NodeError, match="failure 1"), cluster_on(backend, restarts=policy) as cluster:
        cluster.join()
    assert len(backend.plans) == 2


def test_a_node_that_finds_no_slot_is_the_error():
    class Full(ScriptedBackend):
        def find_slots(self, needed, wanted, timeout, had=0):
            if self.plans:
                raise tfos.SlotsError(needed, 0, "none is left")
            return super().find_slots(needed, wanted, timeout, had)

    backend = Full(lambda node: None, fails_until(9))
    with pytest.raises(tfos.NodeError, match="could not be started again.*none is left") as caught:
        with cluster_on(backend, num_workers=2, restarts=alone) as cluster:
            cluster.join()
    assert (caught.value.node, caught.value.cause) == ("worker:1", "killed")


def test_a_node_that_can_not_be_launched_uses_up_its_restarts():
    class Broken(ScriptedBackend):
        def _start_nodes(self, plan, on_end):
            stage = super()._start_nodes(replace(plan, count=None), on_end) if plan.count is None else None
            self.plans[-1:] = [plan] if stage else [*self.plans[-1:], plan]
            return stage or BrokenStage()

    class BrokenStage:
        ended = True

        def problems(self):
            return ["worker:1 on h7: no memory"]

        def wait(self, seconds):
            pass

        cancel = data_problem = lambda self: None

    backend = Broken(lambda node: None, fails_until(9))
    with pytest.raises(tfos.NodeError, match="its restart failed: worker:1 on h7: no memory") as caught:
        with cluster_on(backend, num_workers=2, restarts=alone) as cluster:
            cluster.join()
    assert "after 2 restarts" in caught.value.reason
    assert len(backend.plans) == 3


def test_the_process_of_another_life_is_not_admitted():
    held = Event()

    def script(node):
        if node.plan.config.attempt == 0:
            node.send(Failed(FailureKind.KILLED, "it was"))
        else:
            held.wait(10)
            node.send(Returned(pickle.dumps("done")))

    backend = ScriptedBackend(returns("other"), script)
    with cluster_on(backend, num_workers=2, restarts=alone) as cluster:
        wait_for(lambda: cluster.nodes[1].restarts == 1 and cluster.nodes[1].state is NodeState.RUNNING)
        members, old = cluster._monitor.members, backend.plans[0]
        member = Member(1, Role(Job.WORKER, 1), "here", 5)
        assert members.node_of(Register(member, old.cluster_id, os.getpid(), 1)) is None
        assert members.node_of(Register(member, backend.plans[1].cluster_id, os.getpid(), 1)) is not None
        held.set()
        cluster.join()


def test_a_node_is_shown_as_restarting():
    launch = Event()

    class Slow(ScriptedBackend):
        def find_slots(self, needed, wanted, timeout, had=0):
            if self.plans:
                launch.wait(10)
            return super().find_slots(needed, wanted, timeout, had)

    failing = Event()

    def script(node):
        failing.wait(10)
        fails_until(1)(node)

    with cluster_on(Slow(returns(0), script), num_workers=2, restarts=alone) as cluster:
        failing.set()
        wait_for(lambda: cluster.nodes[1].state is NodeState.RESTARTING)
        assert "<td" in cluster._repr_html_()
        assert "restarting" in cluster._repr_html_()
        assert (cluster.nodes[1].host, cluster.nodes[1].pid) == ("here", None)
        launch.set()
        cluster.join()


def test_a_node_that_does_not_answer_is_started_again_although_the_others_are_busy(caplog):
    def script(node):
        node.send(Idle(30.0, None) if node.plan.config.attempt == 0 else Returned(pickle.dumps("done")))

    backend = ScriptedBackend(returns_late, script)
    with cluster_on(backend, num_workers=2, restarts=alone) as cluster:
        assert cluster.join() == {"worker:0": "trained", "worker:1": "done"}
    assert "worker:1 on here failed: its process has not answered" in caplog.text


def serves_until(attempt):
    """Return the script of a worker that serves, and is killed before its restart of a number."""

    def script(node):
        node.send(Serving())
        if node.plan.config.attempt < attempt:
            time.sleep(0.1)
            node.send(Failed(FailureKind.KILLED, "it was"))

    return script


def returns_late(node):
    time.sleep(1.0)
    returns("trained")(node)


PARAMETER_SERVERS = {"num_workers": 2, "num_ps": 1, "chief": True}


def test_a_worker_that_serves_is_started_again_at_its_first_address():
    backend = ScriptedBackend(serves, returns_late, serves_until(1), serves_until(0))
    with cluster_on(backend, **PARAMETER_SERVERS, restarts=alone) as cluster:
        assert cluster.join() == {"chief:0": "trained"}
        assert [node.restarts for node in cluster.nodes] == [0, 0, 1, 0]
    assert [plan.address for plan in backend.plans] == [None, ("here", 1002)]


def test_the_others_go_on_without_a_worker_that_fails_too_often(caplog):
    backend = ScriptedBackend(serves, returns_late, serves_until(9), serves_until(0))
    with cluster_on(backend, **PARAMETER_SERVERS, restarts=alone) as cluster:
        assert cluster.join() == {"chief:0": "trained"}
    assert "worker:0 on here failed: it was (after 2 restarts of this node: max_restarts). The others" in caplog.text


@pytest.mark.deep
def test_a_parameter_server_that_fails_restarts_all():
    backend = ScriptedBackend(fails_until(1), returns_late, serves_until(0), serves_until(0))
    with cluster_on(backend, **PARAMETER_SERVERS, restarts=alone) as cluster:
        assert cluster.join() == {"chief:0": "trained"}
        assert [node.restarts for node in cluster.nodes] == [0, 0, 0, 0]
    assert [(len(plan.numbers), plan.config.attempt) for plan in backend.plans] == [(4, 0), (4, 1)]


def test_an_elastic_cluster_keeps_its_size():
    backend = ScriptedBackend(returns(0), fails_until(1, value=1))
    with cluster_on(backend, num_workers=(1, 3), restarts=alone) as cluster:
        assert cluster.join() == {"worker:0": 0, "worker:1": 1}
        assert [node.restarts for node in cluster.nodes] == [0, 1]


# ---- what all do together


def workers_of(count):
    nodes = [Node(number, Role(Job.WORKER, number), restarts=0) for number in range(count)]
    for node in nodes:
        node.process.channel = object()
    return nodes


def test_a_contribution_that_was_begun_counts_for_nothing():
    sent = []
    workers = workers_of(2)
    calls = Rendezvous(keeps=True)

    def send(number, message):
        sent.append((number, message.sender, message.piece))

    shared = Contributions(send, calls, keeps=True)
    shared.enter(workers[1], Contribution(0, "call"), workers)
    shared.relay(workers[1], Contribution(0, "call", b"old"), workers)
    calls.leave(workers[1])
    shared.node_lost(workers[1])
    assert sent == []
    shared.enter(workers[1], Contribution(0, "call"), workers)
    for piece, last in ((b"new", False), (b"est", True)):
        shared.relay(workers[1], Contribution(0, "call", piece, last), workers)
    assert sent == [(0, 1, b"new"), (0, 1, b"est")]


def test_another_call_after_a_restart_is_the_error():
    workers = workers_of(2)
    calls = Rendezvous(keeps=True)
    for node in workers:
        calls.enter(Kind.COLLECTIVE, 0, node, "A.adapt")
    assert calls.complete(Kind.COLLECTIVE, 0, workers)
    calls.leave(workers[1])
    assert calls.enter(Kind.COLLECTIVE, 0, workers[1], "A.adapt") is None
    failure = calls.enter(Kind.COLLECTIVE, 0, workers[1], "B.adapt")
    assert "its program called B.adapt after its restart, and all workers A.adapt in its place" in failure.reason


def test_files_that_changed_before_a_restart_are_the_error():
    sent = []
    workers = workers_of(2)
    feeds = FileFeeds(lambda number, message: sent.append(number), Rendezvous(keeps=True), keeps=True)
    for node in workers:
        feeds.receive(node, FilesRead(FileFeed(0), "read", "files", ()), workers)
    assert sent == [0, 1]
    feeds.node_lost(workers[1])
    assert feeds.receive(workers[1], FilesRead(FileFeed(0), "read", "files", ()), workers) is None
    assert sent == [0, 1, 1]
    failure = feeds.receive(workers[1], FilesRead(FileFeed(0), "read", "others", ()), workers)
    assert "read found other files after the restart of this worker than before" in failure.reason


def test_a_worker_that_finds_another_version_of_a_table_is_the_error():
    workers = workers_of(2)
    feeds = FileFeeds(lambda number, message: None, Rendezvous())
    assert feeds.receive(workers[0], FilesRead(FileFeed(0), "ctx.read_delta('t')", "version 7", ()), workers) is None
    failure = feeds.receive(workers[1], FilesRead(FileFeed(0), "ctx.read_delta('t')", "version 8", ()), workers)
    assert "ctx.read_delta('t') found other files on this worker than on another" in failure.reason
    assert "name the version of a table to which others write" in failure.advice


# ---- what is refused before anything starts


@pytest.mark.parametrize(
    ("how", "words"), [({"cache": None}, "cache=None"), ({"start": "first_rows"}, "start='first_rows'")]
)
@pytest.mark.usefixtures("unchecked_frames")
def test_rows_that_are_not_kept_are_refused(how, words):
    cluster = cluster_on(ScriptedBackend(lambda node: None), restarts=alone)
    with pytest.raises(tfos.SpecError, match=f"{words} with restarts=RestartPolicy.scope='node'.*cache='disk'"):
        cluster.train(None, **how)


@pytest.mark.parametrize(
    ("rows", "checksum", "lost", "found"),
    [
        (1000, 7, False, None),
        (999, 7, False, "999"),
        (1000, 8, False, "others, or the same in another order,"),
        (999, 8, True, None),  # who is lost once more is fed once more
    ],
)
def test_rows_that_spark_computes_otherwise_for_a_new_process_are_refused(rows, checksum, lost, found):
    part = PartId(3)
    key, ref = (Split.TRAIN, part), PartRef(Split.TRAIN, part, 1, 0, checksum)
    node = SimpleNamespace(lost=lost)
    stored = {ref: PartSummary(Split.TRAIN, part, 1, 0, rows)}
    session = SimpleNamespace(
        stored=stored, monitor=SimpleNamespace(roster=SimpleNamespace(nodes=[node])), is_done=lambda _: False
    )
    jobs = SparkJobs(session, None)
    jobs._loads = [SimpleNamespace(refs={key: ref}, contents={key: (1000, 7)})]
    words = rf"partition 3 had 1,000 rows when it was fed first, and {found} when .*cache\(\) the DataFrame"
    with pytest.raises(tfos.FeedError, match=words) if found else nullcontext():
        jobs._check_rows()
