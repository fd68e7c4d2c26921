"""The driver's logic against a stand-in for Spark: nodes that are threads and say what the test wants."""

import logging
import os
import pickle
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.config import Job, Role
from tensorflowonspark.driver.nodes import NodeState
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import (
    Backpressure,
    FeedComplete,
    PartsStored,
    PartSummary,
    RowsConsumed,
    RowsReceived,
    Split,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.messages import (
    Failed,
    FeedWanted,
    Lines,
    Member,
    Members,
    NodeLost,
    NodeReady,
    NoMoreFeeds,
    Probe,
    ProbeReply,
    Register,
    Returned,
    Serving,
    Stop,
)
from tensorflowonspark.task.feeder import NodeEndpoint, loss


class FakeNode:
    """A supervisor with its node, played by a thread; `script` says what happens after all have met."""

    def __init__(self, plan, number, script):
        self.number = number
        self.heard = []
        self._plan = plan
        self._script = script
        self._channel = transport.connect(plan.driver, plan.credentials).channel()
        self.placed = Event()
        self.feeding = Event()  # rows come only now
        self.stopped = Event()
        Thread(target=self._live, daemon=True).start()

    def _live(self):
        try:
            member = Member(self.number, self._plan.config.spec.roles[self.number], "here", 1000 + self.number)
            self.say(Register(member, self._plan.cluster_id, os.getpid(), os.getpid()))
            self._channel.receive()
            self.placed.set()
            self.say(NodeReady("socket", 1))
            self.wait_for(Members)
            self._script(self)
            self.wait_for(Stop)
        except transport.ConnectionLost:
            pass
        self.stopped.set()
        self._channel.close()
        with suppress(transport.ConnectionLost):
            while True:  # to the end: Arrow would warn in this process, which is the driver's, where nobody may read it
                self._channel.receive()

    def say(self, message):
        self._channel.send(message)

    def wait_for(self, kind):
        while True:
            message = self._channel.receive()
            self.heard.append(message)
            if isinstance(message, Probe):
                self.say(ProbeReply(message.number))
            if isinstance(message, kind):
                return message
            if isinstance(message, Stop):
                raise transport.ConnectionLost("told to stop")

    def wait_until_heard(self, wanted):
        end = time.monotonic() + 5
        while not any(wanted(message) for message in self.heard):
            assert time.monotonic() < end
            time.sleep(0.01)

    def hang_up(self):
        self._channel.close()
        raise transport.ConnectionLost("on purpose")


class FakeJob:
    def __init__(self, result=None, error=None, ended=True):
        self.ended, self.result, self.error, self.cancelled = ended, result, error, False

    def tasks(self):
        return 1, 2, 4

    def cancel(self):
        self.cancelled = True

    def wait(self, seconds):
        pass


class FakeStage:
    """Ends when it has placed a node for each role, or has problems."""

    def __init__(self, backend, problems):
        self._backend = backend
        self._problems = problems

    @property
    def ended(self):
        nodes = self._backend.nodes
        all_placed = len(nodes) == len(self._backend.plan.config.spec.roles) and all(
            node.placed.is_set() for node in nodes
        )
        return all_placed or bool(self._problems)

    def problems(self):
        return self._problems

    def data_problem(self):
        return None

    def cancel(self):
        pass

    def wait(self, seconds):
        pass


class FakeBackend:
    """In place of Spark."""

    shares_terminal = True

    def __init__(self, *scripts, problems=(), feed=None):
        self.scripts = scripts
        self.nodes = []
        self.stage = FakeStage(self, list(problems))
        self.feeding = feed
        self.slots = len(scripts)

    def find_slots(self, needed, wanted, timeout, had=0):
        self.needed = needed
        return min(wanted, self.slots)

    def wants_tls(self):
        return False

    def listen(self, credentials, on_channel):
        server = transport.Server(("127.0.0.1", 0), credentials, on_channel=on_channel)
        return server, ("127.0.0.1", server.port)

    def place(self, plan, data, on_end):
        self.plan = plan
        self.nodes = [
            FakeNode(plan, number, script) for number, script in enumerate(self.scripts[: len(plan.config.spec.roles)])
        ]
        return self.stage

    def hadoop_settings(self):
        return {}

    def feed(self, data, targets, credentials, order, on_end):
        self.targets = targets
        self.wake = on_end
        for node in self.nodes:
            node.feeding.set()
        return self.feeding


class FakeSession:
    sparkContext = None  # noqa: N815 - Spark's name


def cluster_of(backend, **settings):
    cluster = tfos.Cluster(FakeSession(), lambda args, ctx: None, **settings)
    cluster._attempts._backend = cluster._life.backend = backend
    return cluster


def returns(value):
    return lambda node: node.say(Returned(pickle.dumps(value)))


def fails(kind, reason="it did", delay=0.0):
    def script(node):
        time.sleep(delay)
        node.say(Failed(kind, reason))

    return script


@pytest.fixture(autouse=True)
def frame_needs_no_check(monkeypatch):
    monkeypatch.setattr("tensorflowonspark.driver.cluster.check_frame", lambda frame, validation: None)


def test_results_come_by_name_and_all_are_stopped():
    backend = FakeBackend(lambda node: None, returns(1), returns(2))
    with cluster_of(backend, num_workers=2, num_ps=1) as cluster:
        assert cluster.join() == {"worker:0": 1, "worker:1": 2}
        assert not any(node.stopped.is_set() for node in backend.nodes)
    assert all(node.stopped.wait(5) for node in backend.nodes)
    assert backend.needed == 3
    assert [node.state for node in cluster.nodes] == [NodeState.GONE] * 3


def test_members_know_all_and_gpus_are_told():
    backend = FakeBackend(returns(1), returns(2))
    with cluster_of(backend, num_workers=2):
        pass
    (members,) = (message for message in backend.nodes[0].heard if isinstance(message, Members))
    assert [member.address for member in members.members] == ["here:1000", "here:1001"]


def test_the_first_failure_stops_everyone_at_once():
    backend = FakeBackend(lambda node: None, fails(FailureKind.RAISED))
    with (
        pytest.raises(tfos.NodeError, match="worker:1 on here failed: it did"),
        cluster_of(backend, num_workers=2) as cluster,
    ):
        cluster.join()
    assert all(node.stopped.wait(5) for node in backend.nodes)


@pytest.mark.parametrize(
    "kind", [kind for kind in FailureKind if kind is not FailureKind.PEER_LOST], ids=lambda k: k.name
)
def test_a_cause_that_is_told_after_its_consequence_is_the_one_raised(kind):
    backend = FakeBackend(fails(FailureKind.PEER_LOST, "peer reset"), fails(kind, "the cause", delay=0.3))
    with pytest.raises(tfos.NodeError, match="the cause"), cluster_of(backend, num_workers=2) as cluster:
        cluster.join()


def test_a_consequence_without_a_cause_is_raised_itself():
    backend = FakeBackend(fails(FailureKind.PEER_LOST, "peer reset"), lambda node: None)
    with pytest.raises(tfos.NodeError, match="peer reset"), cluster_of(backend, num_workers=2) as cluster:
        cluster.join()


def test_a_connection_that_breaks_is_a_failure():
    backend = FakeBackend(lambda node: node.hang_up())
    with pytest.raises(tfos.NodeError, match="the connection to its supervisor broke"), cluster_of(backend) as cluster:
        cluster.join()


def test_a_failure_before_the_users_next_call_is_raised_by_it():
    backend = FakeBackend(fails(FailureKind.RAISED))
    with pytest.raises(tfos.NodeError), cluster_of(backend):
        assert backend.nodes[0].stopped.wait(5)


def test_problems_of_the_stage_are_told():
    backend = FakeBackend(problems=["worker:0 on there: no driver in sight"])
    with pytest.raises(tfos.StartError, match="worker:0 on there: no driver in sight"):
        cluster_of(backend).start()


def test_missing_nodes_are_named():
    backend = FakeBackend(lambda node: None)
    with pytest.raises(tfos.StartError, match=r"within 0.5 s .*waiting for worker:1 \(no word from it"):
        cluster_of(backend, num_workers=2, start_timeout=0.5).start()
    assert backend.nodes[0].stopped.wait(5)


def feeds_once(rows):
    def script(node):
        node.say(FeedWanted(0))
        seal = node.wait_for(FeedComplete)
        assert seal.train.rows == rows
        node.say(Returned(pickle.dumps(seal.train.parts)))

    return script


def part(partition, number, rows, attempt=1):
    return PartSummary(Split.TRAIN, partition, attempt, number, rows, schema=b"schema")


class Row:
    def __init__(self, *parts):
        self.parts = pickle.dumps(parts)


def test_a_feed_is_sealed_with_what_counts():
    job = FakeJob([Row(part(0, 0, 5, attempt=7)), Row(part(1, 1, 3)), Row(part(2, 0, 2))])
    backend = FakeBackend(feeds_once({0: 7, 1: 3}), feeds_once({0: 7, 1: 3}), feed=job)
    with cluster_of(backend, num_workers=2) as cluster:
        cluster.train("frame", rebalance=False)
        assert cluster.join() == {"worker:0": ((0, 7), (2, 1)), "worker:1": ((1, 1),)}
    assert [target.name for target in backend.targets] == ["worker:0", "worker:1"]


def test_a_feed_ends_when_all_programs_have():
    backend = FakeBackend(returns(1), returns(2), feed=FakeJob(ended=False))
    with cluster_of(backend, num_workers=2) as cluster:
        try:
            cluster.train("frame")
        except tfos.FeedError as error:  # the programs were faster than the call
            assert "has already returned" in str(error)  # noqa: PT017
        else:
            assert backend.feeding.cancelled


def test_a_node_that_fails_ends_the_feed():
    backend = FakeBackend(fails(FailureKind.KILLED, "killed", delay=0.3), feed=FakeJob(ended=False))
    with pytest.raises(tfos.NodeError, match="killed"), cluster_of(backend) as cluster:
        cluster.train("frame")
    assert backend.feeding.cancelled


def test_a_feed_that_spark_can_not_compute():
    job = FakeJob(error=RuntimeError("Job aborted\n  tensorflowonspark.errors.FeedError: partition 3: gone"))
    backend = FakeBackend(lambda node: None, feed=job)
    with pytest.raises(tfos.FeedError, match="could not compute and feed the DataFrame: partition 3: gone"):
        with cluster_of(backend) as cluster:
            cluster.train("frame")


def streams(batch_rows, rows=None, taken=None):
    """Return a node that takes a stream of so many rows, which come in one part, and says that it took all."""

    def script(node):
        node.say(FeedWanted(0))
        node.feeding.wait(5)
        if rows is not None:
            node.say(RowsReceived(0, rows))
            node.say(PartsStored(0, (part(node.number, node.number, rows),)))
        assert node.wait_for(FeedComplete).streams
        node.say(StreamOpened(0, batch_rows))
        words = []
        while not (words and words[-1].end):
            words.append(node.wait_for(StepGrant))
            if words[-1].failed:
                return
            node.say(RowsConsumed(0, rows or 0 if taken is None else taken))
        if taken is not None:
            node.wait_for(Stop)
        node.say(Returned(pickle.dumps([(word.parts, word.steps) for word in words])))

    return script


def test_the_workers_of_a_stream_take_as_many_steps():
    job = FakeJob([Row(part(0, 0, 10)), Row(part(1, 1, 25)), Row()])
    backend = FakeBackend(streams(10, 10), streams(10, 25), feed=job)
    with cluster_of(backend, num_workers=2) as cluster:
        cluster.train("frame", cache="none")
        results = cluster.join()
    for number, rows in ((0, [10, 0, 0]), (1, [10, 10, 5])):
        words = results[f"worker:{number}"]
        assert [each for parts, _ in words for each in parts] == [(number, 1)]
        steps = [real for _, runs in words for count, real in runs for _ in range(count)]
        assert steps == rows


def test_a_stream_that_spark_can_not_compute_ends_in_the_programs_too():
    backend = FakeBackend(streams(10, 10), feed=FakeJob(error=RuntimeError("ValueError: no good")))
    cluster = cluster_of(backend).start()
    with pytest.raises(tfos.FeedError, match="no good"):
        cluster.train("frame", cache="none")
    backend.nodes[0].wait_until_heard(lambda message: "no good" in getattr(message, "failed", ""))
    cluster._life.abort()


def test_a_feed_that_stands_still_says_who_waits_for_whom():
    backend = FakeBackend(streams(10, 30, taken=20), feed=FakeJob([Row(part(0, 0, 30))]))
    with pytest.raises(tfos.FeedError) as caught, cluster_of(backend) as cluster:
        cluster.train("frame", cache="none", timeout=1.5)
    for words in ("no progress for 1.5 s", "1 of 4 are done and 2 are running", "received 30 rows", "has taken 20"):
        assert words in str(caught.value)


def test_the_time_out_counts_from_the_last_progress():
    def script(node):
        node.say(FeedWanted(0))
        for count in range(8):
            time.sleep(0.5)
            node.say(RowsReceived(0, count))
        backend.feeding.ended = True
        backend.wake()
        node.say(Returned(pickle.dumps(len(node.wait_for(FeedComplete).train.parts))))

    backend = FakeBackend(script, feed=FakeJob([Row(part(0, 0, 30))], ended=False))
    with cluster_of(backend) as cluster:
        cluster.train("frame", timeout=2)
        assert cluster.join() == {"worker:0": 1}


def test_a_worker_that_is_full_is_not_left_waiting():
    def script(node):
        node.say(FeedWanted(0))
        node.feeding.wait(5)
        if node.number == 0:
            node.say(PartsStored(0, (part(0, 0, 35),)))
        node.wait_for(FeedComplete)
        node.say(StreamOpened(0, 10))
        if node.number == 0:
            time.sleep(0.3)
            node.say(Backpressure(0))
        word = node.wait_for(StepGrant)
        while not word.steps:
            word = node.wait_for(StepGrant)
        node.say(Returned(pickle.dumps(word.steps)))

    backend = FakeBackend(script, script, feed=FakeJob(ended=False))
    with cluster_of(backend, num_workers=2) as cluster:
        cluster.train("frame", cache="none")
        assert cluster.join() == {"worker:0": ((3, 10),), "worker:1": ((3, 0),)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache": "tape"}, "cache='tape'"),
        ({"cache_limit": "much"}, "cache_limit='much'"),
        ({"timeout": 0}, "timeout=0"),
        ({"cache": "none", "validation": "flag"}, "must be a DataFrame of their own"),
    ],
)
def test_bad_settings_of_a_feed_are_refused(settings, words):
    with pytest.raises(tfos.ClusterError, match=words), cluster_of(FakeBackend(lambda node: None)) as cluster:
        cluster.train("frame", **settings)


def test_programs_that_wait_for_a_feed_are_told_that_none_comes():
    def script(node):
        node.wait_for(NoMoreFeeds)
        node.say(Returned(pickle.dumps("no more")))

    with cluster_of(FakeBackend(script)) as cluster:
        assert cluster.join() == {"worker:0": "no more"}


def test_shutting_down_twice_returns_the_same():
    with cluster_of(FakeBackend(returns(7))) as cluster:
        assert cluster.shutdown() == {"worker:0": 7}
    assert cluster.shutdown() == cluster.join() == {"worker:0": 7}


def test_a_cluster_that_was_not_started_has_nothing_to_wait_for():
    for call in (tfos.Cluster.join, tfos.Cluster.shutdown):
        with pytest.raises(tfos.ClusterError, match="not running"):
            call(cluster_of(FakeBackend()))


def test_after_a_feed_that_failed_the_next_one_arrives():
    backend = FakeBackend(feeds_once({0: 3}), feed=FakeJob(error=RuntimeError("broken")))
    with cluster_of(backend) as cluster:
        with pytest.raises(tfos.FeedError, match="broken"):
            cluster.train("frame")
        backend.feeding = FakeJob([Row(part(0, 0, 3))])
        cluster.train("frame")
        assert cluster.join() == {"worker:0": ((0, 1),)}


def test_a_nodes_death_is_told_rather_than_that_of_the_job_it_took_along():
    backend = FakeBackend(
        fails(FailureKind.OUT_OF_MEMORY, "no memory", delay=0.3), feed=FakeJob(error=RuntimeError("job"))
    )
    with pytest.raises(tfos.NodeError, match="no memory"), cluster_of(backend) as cluster:
        cluster.train("frame")


def killed_and_slow_to_report(node):
    """A supervisor on a busy host: it reports its node's end long after the node's connections have ended."""
    while not isinstance(message := node._channel.receive(), Probe):
        pass
    time.sleep(1.5)
    node.say(Failed(FailureKind.KILLED, "the cause"))
    node.say(ProbeReply(message.number))


def test_a_job_that_fails_waits_for_what_supervisors_find():
    backend = FakeBackend(killed_and_slow_to_report, feed=FakeJob(error=RuntimeError("Connection refused")))
    with pytest.raises(tfos.NodeError, match="the cause"), cluster_of(backend) as cluster:
        cluster.train("frame")


def test_a_job_that_fails_waits_until_the_first_cause_is_certain():
    """Of a failure that looks like a consequence the cause may come later than the job's own end."""
    nodes = fails(FailureKind.PEER_LOST, "peer reset"), fails(FailureKind.RAISED, "the cause", delay=0.7)
    backend = FakeBackend(*nodes, feed=FakeJob(error=RuntimeError("Connection refused")))
    with pytest.raises(tfos.NodeError, match="the cause"), cluster_of(backend, num_workers=2) as cluster:
        cluster.train("frame")


def test_a_task_that_has_lost_its_node_learns_why():
    backend = FakeBackend(killed_and_slow_to_report)
    cluster = cluster_of(backend).start()
    with closing(transport.connect(backend.plan.driver, backend.plan.credentials)) as driver:
        channel = driver.channel()
        channel.send(NodeLost(0))
        assert channel.receive().error.startswith("worker:0 on here failed: the cause")
    cluster._life.abort()


def test_a_task_that_has_lost_a_node_which_is_there_learns_nothing():
    backend = FakeBackend(lambda node: None)
    cluster = cluster_of(backend).start()
    target = NodeEndpoint(0, "worker:0", "here", NodeReady(), backend.plan.driver)
    error = loss(target, backend.plan.credentials, "rows did not go", ConnectionError("reset by peer"))
    assert str(error) == "rows did not go: reset by peer"
    cluster.check()
    cluster._life.abort()


def test_workers_that_serve_are_fed_only_beside_a_chief():
    backend = FakeBackend(lambda node: node.say(Serving()), feed=FakeJob(ended=False))
    cluster = cluster_of(backend).start()
    with pytest.raises(tfos.FeedError, match="worker:0 serves a ParameterServerStrategy .* chief=True"):
        cluster.train("frame")
    cluster._life.abort()


def test_a_supervisor_that_falls_silent_is_given_up():
    with (
        pytest.raises(tfos.NodeError, match=r"has not been heard for 0\.5 s"),
        cluster_of(FakeBackend(lambda node: None), heartbeat_timeout=0.5) as cluster,
    ):
        cluster.join()


def test_a_restart_takes_the_workers_that_there_are_then():
    sizes = []

    def dies_once(node):
        sizes.append(len(node._plan.config.spec.roles))
        if node._plan.config.attempt == 0:
            backend.slots = 1
            node.say(Failed(FailureKind.EXECUTOR_LOST, "the executor is gone"))
        node.say(Returned(pickle.dumps(node._plan.config.attempt)))

    backend = FakeBackend(dies_once, returns(3), returns(3))
    with cluster_of(backend, num_workers=(1, 3), restarts=1) as cluster:
        assert cluster.join() == {"worker:0": 1}
    assert sizes == [3, 1]


def test_output_that_can_not_be_shown_does_no_harm():
    def script(node):
        node.say(Lines(("a line",)))
        node.say(Returned(pickle.dumps(1)))

    class ClosedPipe:
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

        flush = write

    cluster = cluster_of(FakeBackend(script))
    cluster._life.watcher._stream = ClosedPipe()
    cluster._life.watcher._logger = logging.Logger("of its own")
    with cluster:
        assert cluster.join() == {"worker:0": 1}


def test_a_program_that_ends_without_a_word_ends(tmp_path):
    """Start, and neither wait nor shut down: the interpreter must end, and the nodes with it."""
    script = tmp_path / "driver.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_cluster import FakeBackend, cluster_of\n"
        "cluster_of(FakeBackend(lambda node: None)).start()\n"
        "print('started', flush=True)\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout == "started\n"


def test_a_second_supervisor_for_a_node_is_turned_away():
    backend = FakeBackend(lambda node: None)
    cluster = cluster_of(backend).start()
    other = FakeNode(backend.plan, 0, lambda node: None)
    assert other.stopped.wait(5)
    assert other.heard == []
    cluster._life.abort()


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
def test_a_hello_that_is_not_awaited_is_turned_away(word):
    backend = FakeBackend(lambda node: None)
    cluster = cluster_of(backend).start()
    channel = transport.connect(backend.plan.driver, backend.plan.credentials).channel()
    channel.send(word(backend.plan))
    with pytest.raises(transport.ConnectionLost, match="^the other side closed the channel$"):
        channel.receive()
    assert cluster.nodes[0].host == "here"
    cluster.check()
    cluster._life.abort()
