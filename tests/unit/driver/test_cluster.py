"""The driver's logic against a stand-in for Spark: nodes that are threads and say what the test wants."""

import logging
import pickle
import time
from contextlib import nullcontext

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.driver import attempt
from tensorflowonspark.driver import cluster as cluster_module
from tensorflowonspark.driver.nodes import NodeState
from tensorflowonspark.driver.recovery import Recovery
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed, Lines, Member, Members, ProgramBegun, Register, Returned
from tests.support.backend import cluster_on
from tests.support.commands import run_python
from tests.support.monitors import monitor_of
from tests.support.scripted import ScriptedBackend, ScriptedNode, fails, returns, serves

pytestmark = pytest.mark.usefixtures("unchecked_frames")


def test_results_come_by_name_and_all_are_stopped():
    backend = ScriptedBackend(serves, returns(1), returns(2))
    with cluster_on(backend, num_workers=2, num_ps=1) as cluster:
        assert cluster.join() == {"worker:0": 1, "worker:1": 2}
        assert not any(node.stopped.is_set() for node in backend.nodes)
    assert all(node.stopped.wait(5) for node in backend.nodes)
    assert backend.needed == 3
    assert [node.state for node in cluster.nodes] == [NodeState.GONE] * 3


@pytest.mark.deep
@pytest.mark.parametrize("ends", ["returns", "goes on"])
def test_a_node_that_does_not_train_has_time_to_begin_and_to_return(monkeypatch, ends):
    """As the ps of a program of 2.x that prints its role and returns, while the chief has returned already."""
    monkeypatch.setattr(cluster_module, "_FIRST_SECONDS", 30.0 if ends == "returns" else 0.5)
    done = []

    def begins_late(node):
        time.sleep(0.5)
        node.send(ProgramBegun())
        time.sleep(0.4)
        done.append("its first lines")
        if ends == "returns":
            node.send(Returned(pickle.dumps(None)))

    backend = ScriptedBackend(begins_late, returns(1))
    with cluster_on(backend, num_workers=1, num_ps=1) as cluster:
        assert cluster.join() == {"worker:0": 1}
        assert done
        assert cluster.nodes[0].state is (NodeState.RETURNED if ends == "returns" else NodeState.RUNNING)


def test_a_driver_that_was_paused_itself_gives_up_no_node():
    """Its heartbeats wait to be received, as after native code that has held Python's lock."""
    monitor = monitor_of(ClusterSpec(num_workers=1), heartbeat_timeout=1.0)
    recovery = Recovery(monitor)
    lost, node = [], monitor.roster.nodes[0]
    node.process.channel, node.process.last_message = object(), time.monotonic() - 5
    recovery.lose_channel = lambda node, *_: lost.append(node)
    recovery._checked -= 5
    recovery.check_nodes()
    assert not lost
    node.process.last_message -= 5
    recovery.check_nodes()
    assert lost == [node]


def test_members_know_all_and_gpus_are_sent():
    backend = ScriptedBackend(returns(1), returns(2))
    with cluster_on(backend, num_workers=2):
        pass
    (members,) = (message for message in backend.nodes[0].received if isinstance(message, Members))
    assert [member.address for member in members.members] == ["here:1000", "here:1001"]


def test_the_first_failure_stops_everyone_at_once():
    backend = ScriptedBackend(lambda node: None, fails(FailureKind.RAISED))
    with (
        pytest.raises(tfos.NodeError, match="worker:1 on here failed: it did"),
        cluster_on(backend, num_workers=2) as cluster,
    ):
        cluster.join()
    assert all(node.stopped.wait(5) for node in backend.nodes)


@pytest.mark.deep
@pytest.mark.parametrize(
    "kind", [kind for kind in FailureKind if kind is not FailureKind.PEER_LOST], ids=lambda k: k.name
)
def test_a_cause_that_is_reported_after_its_consequence_is_the_one_raised(kind):
    backend = ScriptedBackend(fails(FailureKind.PEER_LOST, "peer reset"), fails(kind, "the cause", delay=0.3))
    with pytest.raises(tfos.NodeError, match="the cause"), cluster_on(backend, num_workers=2) as cluster:
        cluster.join()


_RESTART = tfos.RestartPolicy(1, backoff=0)


@pytest.mark.deep
@pytest.mark.parametrize("policy", [_RESTART, tfos.RestartPolicy(1, backoff=0, scope="node")], ids=["all", "one"])
@pytest.mark.parametrize("executor_ends", [True, False])
def test_an_exception_shortly_before_the_end_of_its_executor_is_a_consequence(executor_ends, policy):
    """An executor that ends removes Spark's directories before its end is known: a save that writes there raises."""
    attempts = []

    def saves(node):
        attempts.append(node)
        if len(attempts) > 1:
            returns(1)(node)
            return
        node.send(Failed(FailureKind.RAISED, "FileNotFoundError: no such directory"))
        time.sleep(0.5)
        if executor_ends:
            node.send(Failed(FailureKind.EXECUTOR_LOST, "the executor that it ran on has ended"))

    with nullcontext() if executor_ends else pytest.raises(tfos.NodeError, match="no such directory"):
        with cluster_on(ScriptedBackend(saves), num_workers=1, restarts=policy) as cluster:
            results = cluster.join()
        assert list(results.values()) == [1]
    assert len(attempts) == 1 + executor_ends


@pytest.mark.deep
@pytest.mark.timeout(20)
def test_the_last_of_the_workers_of_parameter_servers_that_raises_ends_them():
    """The failure that counts is that of the first one, which was lost before."""

    def raises_last(node):
        serves(node)
        time.sleep(0.5)
        node.send(Failed(FailureKind.RAISED, "it raised"))

    def is_lost(node):
        serves(node)
        time.sleep(0.2)
        node.send(Failed(FailureKind.KILLED, "it was killed"))

    settings = {
        "num_workers": 2,
        "num_ps": 1,
        "chief": True,
        "restarts": tfos.RestartPolicy(1, causes=["executor_lost"]),
    }
    backend = ScriptedBackend(serves, lambda node: None, is_lost, raises_last)
    with pytest.raises(tfos.NodeError, match="it was killed"), cluster_on(backend, **settings) as cluster:
        cluster.join()


def test_a_consequence_without_a_cause_is_raised_itself():
    backend = ScriptedBackend(fails(FailureKind.PEER_LOST, "peer reset"), lambda node: None)
    with pytest.raises(tfos.NodeError, match="peer reset"), cluster_on(backend, num_workers=2) as cluster:
        cluster.join()


def test_a_connection_that_breaks_is_a_failure():
    backend = ScriptedBackend(lambda node: node.disconnect())
    with pytest.raises(tfos.NodeError, match="the connection to its supervisor broke"), cluster_on(backend) as cluster:
        cluster.join()


def test_a_failure_before_the_users_next_call_is_raised_by_it():
    backend = ScriptedBackend(fails(FailureKind.RAISED))
    with pytest.raises(tfos.NodeError), cluster_on(backend):
        assert backend.nodes[0].stopped.wait(5)


def test_problems_of_the_stage_are_reported():
    backend = ScriptedBackend(problems=["worker:0 on there: no driver in sight"])
    with pytest.raises(tfos.StartError, match="worker:0 on there: no driver in sight"):
        cluster_on(backend).start()


class LosesExecutor(ScriptedBackend):
    """A backend whose first stage fails since Spark loses an executor."""

    def _start_nodes(self, plan, on_end):
        lost = "Spark's barrier stage failed: ExecutorLostFailure (executor 3 exited) Reason: worker lost"
        self._problems = [] if self.plans else [lost]
        return super()._start_nodes(plan, on_end)


def test_a_start_during_which_an_executor_is_lost_is_repeated_if_restarts_are_allowed():
    with cluster_on(LosesExecutor(returns(1)), num_workers=1, restarts=1) as cluster:
        assert cluster.join() == {"worker:0": 1}
    with pytest.raises(tfos.StartError, match="ExecutorLostFailure"):
        cluster_on(LosesExecutor(returns(1)), num_workers=1).start()


def test_missing_nodes_are_named():
    backend = ScriptedBackend(lambda node: None)
    with pytest.raises(tfos.StartError, match=r"within 0.5 s .*waiting for worker:1 \(not connected"):
        cluster_on(backend, num_workers=2, nodes=tfos.Nodes(start_timeout=0.5)).start()
    assert backend.nodes[0].stopped.wait(5)


def test_a_host_that_allows_too_few_open_files_is_an_error_that_names_the_limit(monkeypatch):
    asked = []
    monkeypatch.setattr(attempt, "allow_files", lambda more: asked.append(more))  # which raises the soft limit
    words = r"3 nodes need 12 open files in the driver, more than its host allows: raise the hard limit .ulimit -Hn"
    with pytest.raises(tfos.StartError, match=words):
        cluster_on(ScriptedBackend(), num_workers=3).start()
    assert asked == [12]


def test_shutting_down_twice_returns_the_same():
    with cluster_on(ScriptedBackend(returns(7))) as cluster:
        assert cluster.shutdown() == {"worker:0": 7}
    assert cluster.shutdown() == cluster.join() == {"worker:0": 7}


def test_a_cluster_that_was_not_started_has_nothing_to_wait_for():
    for call in (tfos.Cluster.join, tfos.Cluster.shutdown):
        with pytest.raises(tfos.ClusterError, match="not running"):
            call(cluster_on(ScriptedBackend()))


def test_a_supervisor_that_falls_silent_is_given_up():
    with (
        pytest.raises(tfos.NodeError, match=r"no heartbeat of its supervisor for 0\.5 s"),
        cluster_on(ScriptedBackend(lambda node: None), nodes=tfos.Nodes(heartbeat_timeout=0.5)) as cluster,
    ):
        cluster.join()


def test_a_restart_takes_the_workers_that_there_are_then():
    sizes = []

    def dies_once(node):
        sizes.append(len(node.plan.config.spec.roles))
        if node.plan.config.attempt == 0:
            backend.slots = 1
            node.send(Failed(FailureKind.EXECUTOR_LOST, "the executor is gone"))
        node.send(Returned(pickle.dumps(node.plan.config.attempt)))

    backend = ScriptedBackend(dies_once, returns(3), returns(3))
    with cluster_on(backend, num_workers=(1, 3), restarts=1) as cluster:
        assert cluster.join() == {"worker:0": 1}
    assert sizes == [3, 1]


def test_output_that_can_not_be_shown_does_no_harm():
    def script(node):
        node.send(Lines(("a line",)))
        node.send(Returned(pickle.dumps(1)))

    class ClosedPipe:
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

        flush = write

    cluster = cluster_on(ScriptedBackend(script))
    cluster._run.console._stream = ClosedPipe()
    cluster._run.console._logger = logging.Logger("of its own")
    with cluster:
        assert cluster.join() == {"worker:0": 1}


@pytest.mark.deep
def test_a_program_that_ends_silently_ends():
    """Start, and neither wait nor shut down: the interpreter must end, and the nodes with it."""
    program = (
        "from tests.support.backend import cluster_on\n"
        "from tests.support.scripted import ScriptedBackend\n"
        "cluster_on(ScriptedBackend(lambda node: None)).start()\n"
        "print('started', flush=True)\n"
    )
    assert run_python(program) == "started\n"


def test_a_second_supervisor_for_a_node_is_turned_away():
    backend = ScriptedBackend(lambda node: None)
    cluster = cluster_on(backend).start()
    other = ScriptedNode(backend.plan, 0, lambda node: None)
    assert other.stopped.wait(5)
    assert other.received == []
    cluster._attempt.abort()


def _hello(plan, number=0, role=None, cluster=None):
    member = Member(number, role or plan.config.spec.roles[0], "here", 1)
    return Register(member, plan.cluster_id if cluster is None else cluster, 1, 1)


@pytest.mark.parametrize(
    "word",
    [
        lambda plan: _hello(plan, cluster="another"),
        lambda plan: _hello(plan, cluster=7),
        lambda plan: _hello(plan, number=1),
        lambda plan: _hello(plan, number=-1),
        lambda plan: _hello(plan, number="0"),
        lambda plan: _hello(plan, role=Role(Job.PS, 0)),
        lambda plan: Register(None, plan.cluster_id, 1, 1),
        lambda plan: "no hello at all",
        _hello,  # word for word the one that was let in
    ],
)
def test_a_registration_that_is_not_awaited_is_turned_away(word):
    backend = ScriptedBackend(lambda node: None)
    cluster = cluster_on(backend).start()
    channel = transport.connect(backend.plan.driver, backend.plan.credentials).channel()
    channel.send(word(backend.plan))
    with pytest.raises(transport.ConnectionLost, match="^the other side closed the connection$"):
        channel.receive()
    assert cluster.nodes[0].host == "here"
    cluster._check()
    cluster._attempt.abort()
