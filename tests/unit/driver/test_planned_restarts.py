"""What the driver does when a host goes, or when there are slots for more workers."""

import logging
import time
from types import SimpleNamespace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import (
    CheckpointSaved,
    Failed,
    HostNotice,
    Notice,
    SaveDecision,
    SaveProposal,
    SaveReply,
    Serving,
    Stop,
)
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, returns

_PREEMPTIONS = tfos.RestartPolicy(0, max_preemptions=1)
_GOES = HostNotice("it is taken", 30.0)


def save_together(node):
    """Answer as a worker that has ended three steps, until all have agreed on one."""
    while True:
        proposal = node.wait_for(SaveProposal)
        node.send(SaveReply(proposal.number, 3, stops=proposal.step is not None and proposal.step > 3))
        if proposal.step:
            assert node.wait_for(SaveDecision) == SaveDecision(proposal.number, save=True)
            return


def worker(*notices, saves=True):
    """Return the script of a worker whose host gives notices, and that saves; a later attempt returns at once.

    Where nobody ends the attempt, it goes on for half a second.
    """

    def script(node):
        if not node.plan.config.attempt:
            for notice in notices:
                node.send(notice)
            told = node.wait_for(Notice)
            save_together(node)
            if node.number == 0 and saves:
                node.send(CheckpointSaved(0, "there", told.number))
            time.sleep(0.5)
        returns((node.plan.config.attempt, [each for each in node.received if isinstance(each, Notice)]))(node)

    return script


def run(*scripts, backend=None, **settings):
    backend = backend or ScriptedBackend(*scripts)
    left = []
    backend.leave_host = left.append
    with cluster_on(backend, num_workers=len(scripts), **settings) as cluster:
        results = cluster.join()
        events = [(each.kind, each.node, each.text) for each in cluster.metrics().events if each.kind != "started"]
    return results, events, left


def test_all_save_and_a_restart_leaves_the_host(caplog):
    with caplog.at_level(logging.WARNING):
        results, events, left = run(worker(), worker(_GOES), restarts=_PREEMPTIONS)
    assert [attempt for attempt, _ in results.values()] == [1, 1]
    assert left == ["1"]  # an executor of the host
    assert [each[:2] for each in events] == [("notice", "worker:0"), ("restart", None)]
    assert events[0][2] == "worker:0, worker:1 on here: the host goes in 30 s (it is taken)"
    assert "worker:0 on here was ended: its host goes (it is taken), and all workers have saved" in caplog.text
    assert "All nodes are started again, without here, which goes (preemption 1 of 1)" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize(
    ("notices", "saves", "settings"),
    [
        ((_GOES,), True, {}),
        ((_GOES,), True, {"restarts": tfos.RestartPolicy(2, causes=["killed"])}),
        ((_GOES,), False, {"restarts": 1}),
        ((_GOES, HostNotice()), True, {"restarts": 1}),
        ((_GOES,), True, {"restarts": tfos.RestartPolicy(3, max_preemptions=0)}),
    ],
    ids=["no restarts", "not after this", "nothing saved", "withdrawn", "no preemptions"],
)
def test_the_training_goes_on_where_no_restart_may_follow(notices, saves, settings):
    results, events, left = run(worker(saves=saves), worker(*notices), **settings)
    assert [attempt for attempt, _ in results.values()] == [0, 0]
    assert {kind for kind, *_ in events} == {"notice"}
    assert left == []


def test_all_nodes_learn_who_goes_and_what_was_withdrawn():
    again = HostNotice("later")
    results, events, _ = run(worker(saves=False), worker(_GOES, _GOES, HostNotice(), HostNotice(), again))
    names, hosts = ("worker:0", "worker:1"), ("here",)
    for _, told in results.values():
        assert [(each.number, each.nodes, each.hosts, each.reason) for each in told] == [
            (1, names, hosts, "it is taken"),
            (2, (), (), ""),
            (3, names, hosts, "later"),
        ][: len(told)]
    assert [text for *_, text in events][1] == "no host goes any more: the notice was withdrawn"


def test_an_executor_that_spark_decommissions_is_left_by_spark_itself(caplog):
    class Backend(ScriptedBackend):
        decommissions = True

        def find_decommissioned(self, executors):
            return {each: f"Spark decommissions executor {each}" for each in executors if each == "1"}

    scripts = worker(), worker()
    with caplog.at_level(logging.WARNING):
        results, events, left = run(*scripts, backend=Backend(*scripts), restarts=_PREEMPTIONS)
    assert [attempt for attempt, _ in results.values()] == [1, 1]
    assert left == []
    assert events[0] == ("notice", "worker:1", "worker:1 on here: the host goes (Spark decommissions executor 1)")
    assert "All nodes are started again (preemption 1 of 1)" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize("scope", ["cluster", "node"])
@pytest.mark.parametrize(("goes", "restarts"), [("0", True), ("1", True), ("2", False)], ids=["ps", "chief", "worker"])
def test_with_parameter_servers_the_chief_saves_and_a_worker_that_goes_is_done_without(goes, restarts, scope):
    class Backend(ScriptedBackend):
        decommissions = True

        def find_decommissioned(self, executors):
            return {each: "it is taken" for each in executors if each == goes}

    def serves(node):
        node.send(Serving())
        node.wait_for(Stop)
        assert not any(isinstance(each, SaveProposal) for each in node.received)

    def chief(node):
        if not node.plan.config.attempt:
            notice = node.wait_for(Notice)
            if restarts:
                save_together(node)
            node.send(CheckpointSaved(0, "there", notice.number))
            time.sleep(0.5)
        returns(node.plan.config.attempt)(node)

    policy = tfos.RestartPolicy(0, max_preemptions=1, scope=scope)
    with cluster_on(Backend(serves, chief, serves), num_workers=1, num_ps=1, chief=True, restarts=policy) as cluster:
        results = cluster.join()
    assert results == {"chief:0": int(restarts)}


# ---- where nodes are started again alone


def alone(*scripts, goes, **settings):
    """Run a cluster whose nodes are started again alone, of which Spark decommissions the executor of one."""

    class Backend(ScriptedBackend):
        decommissions = True

        def find_decommissioned(self, executors):
            return {each: "it is taken" for each in executors if each == goes}

    backend = Backend(*scripts)
    return (*run(*scripts, backend=backend, **settings), [list(each.numbers) for each in backend.plans])


def goes_on(node):
    """Train on, and be asked for nothing."""
    time.sleep(2.0)
    assert not any(isinstance(each, SaveProposal) for each in node.received)
    returns((node.plan.config.attempt, []))(node)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("policy", "attempt"),
    [({"max_preemptions": 1}, 1), ({"max_preemptions": 0}, 0), ({"causes": ["killed"]}, 0)],
    ids=["a preemption", "none is left", "not after this"],
)
def test_a_chief_that_goes_saves_alone_and_is_started_again_alone(caplog, policy, attempt):
    policy = tfos.RestartPolicy(**{"max_restarts": 0, "max_preemptions": 1, "scope": "node", **policy})
    with caplog.at_level(logging.WARNING):
        results, events, left, plans = alone(worker(), goes_on, goes="0", restarts=policy)
    assert [each[0] for each in results.values()] == [attempt, 0]
    assert plans == [[0, 1], [0]][: attempt + 1]
    assert left == ["0"] * attempt
    assert [each[:2] for each in events] == [("notice", "worker:0"), ("node_restart", "worker:0")][: attempt + 1]
    if attempt:
        assert "worker:0 on here was ended: its host goes (it is taken), and it has saved" in caplog.text
        assert "started again, while the others continue (preemption 1 of 1)" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize("kind", [FailureKind.EXECUTOR_LOST, FailureKind.LOST])
@pytest.mark.parametrize("scope", ["node", "cluster"])
def test_what_ends_with_a_host_that_goes_was_preempted_though_nobody_has_saved(caplog, kind, scope):
    """Also where Spark gives no reason. With single nodes the chief is not asked to save for another one."""

    def ends(node):
        if not node.plan.config.attempt:
            node.wait_for(Notice)
            node.send(Failed(kind, "it is gone"))
        else:
            returns((node.plan.config.attempt, []))(node)

    def others(node):
        if scope == "node":
            goes_on(node)
        else:
            if not node.plan.config.attempt:
                node.wait_for(Stop)
            returns((node.plan.config.attempt, []))(node)

    policy = tfos.RestartPolicy(0, max_preemptions=1, scope=scope)
    with caplog.at_level(logging.WARNING):
        results, _, left, _ = alone(others, ends, goes="1", restarts=policy)
    assert results["worker:1"][0] == 1
    assert left == []
    assert "(preemption 1 of 1)" in caplog.text


def test_a_host_that_is_used_again_is_left_once(caplog):
    """As by a cluster manager that places an executor there again: the next attempt trains there to its end."""

    def stays(node):
        node.send(_GOES)
        told = node.wait_for(Notice)
        save_together(node)
        if node.number == 0:
            node.send(CheckpointSaved(0, "there", told.number))
        time.sleep(0.5)
        returns(node.plan.config.attempt)(node)

    results, events, left = run(stays, stays, restarts=tfos.RestartPolicy(0, max_preemptions=5))
    assert list(results.values()) == [1, 1]
    assert [kind for kind, *_ in events] == ["notice", "restart", "notice"]
    assert left == ["1"]


@pytest.mark.deep
def test_a_notice_whose_text_changes_is_one():
    """As of a server that counts down: a checkpoint that was begun before the last text counts."""

    def counts_down(node):
        if not node.plan.config.attempt:
            for seconds in (3, 2, 1):
                node.send(HostNotice(f"in {seconds} s", float(seconds)))
            while node.wait_for(Notice).number < 3:
                pass
            save_together(node)
            node.send(CheckpointSaved(0, "there", 1))
            time.sleep(0.5)
        returns(node.plan.config.attempt)(node)

    results, events, _ = run(counts_down, restarts=_PREEMPTIONS)
    assert list(results.values()) == [1]
    assert [kind for kind, *_ in events] == ["notice", "restart"]


# ---- slots for more workers


def learns_in_steps(node):
    """Save once all have agreed on it, in the first attempt."""
    if not node.plan.config.attempt:
        told = node.wait_for(Notice)
        save_together(node)
        if node.number == 0:
            node.send(CheckpointSaved(0, "there", told.number))
        time.sleep(0.5)
    else:
        time.sleep(0.3)
    returns(node.plan.config.attempt)(node)


def growing(free, scripts, reservation=None, **settings):
    """Run a cluster of one to three workers, with a slot for one at first, and then as many as there are scripts."""
    backend = ScriptedBackend(*scripts)
    backend.reservation = lambda: reservation
    backend.slots = 1

    def free_slots():
        backend.slots = len(scripts)
        return free()

    backend.free_slots = free_slots
    nodes = tfos.Nodes(grow_after=0.1)
    with cluster_on(backend, num_workers=(1, 3), nodes=nodes, **settings) as cluster:
        results = cluster.join()
        return results, [each.kind for each in cluster.metrics().events if each.kind != "started"]


def test_slots_that_are_free_are_taken_in(caplog):
    with caplog.at_level(logging.WARNING):
        results, events = growing(lambda: 2, [learns_in_steps] * 2, restarts=_PREEMPTIONS)
    assert results == {"worker:0": 1, "worker:1": 1}
    assert events == ["restart"]
    assert "worker:0 on here was ended: there are slots for another worker, and all workers have saved" in caplog.text
    assert "All nodes are started again (growth 1)" in caplog.text


@pytest.mark.deep
@pytest.mark.parametrize(
    ("free", "settings"),
    [
        (lambda: 2, {}),
        (lambda: 1, {"restarts": 1}),  # its own, whose task has returned
        (lambda: 2, {"restarts": tfos.RestartPolicy(1, causes=["killed"])}),
        (lambda: 2, {"restarts": tfos.RestartPolicy(1, scope="node")}),
        (lambda: 2 + int(time.monotonic() * 10) % 2 * -2, {"restarts": 1}),
        (lambda: 2, {"restarts": 1, "reservation": SimpleNamespace(about=dict, follow=lambda run: None)}),
    ],
    ids=["no restarts", "none free", "not after this", "single nodes", "free for moments", "in a trial of a search"],
)
def test_a_cluster_stays_as_it_is(free, settings):
    def trains(node):
        time.sleep(1.0)
        returns(node.plan.config.attempt)(node)

    results, events = growing(free, [trains] * 2, **settings)
    assert results == {"worker:0": 0}
    assert events == []
