"""Feeds from the driver's side: what ends them, what they wait for, and which failure is raised."""

import pickle
import time
from contextlib import closing, suppress
from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.driver.feed import contents, session, sources
from tensorflowonspark.driver.feed.contents import ContentCheck
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import (
    Backpressure,
    FeedBegins,
    FeedComplete,
    PartId,
    PartsStored,
    PartSummary,
    PassEnded,
    PassesEnded,
    RowsConsumed,
    RowsReceived,
    Shares,
    Split,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.messages import (
    Failed,
    FeedWanted,
    Heartbeat,
    NodeEndpoint,
    NodeLost,
    NodeReady,
    NoMoreFeeds,
    Probe,
    ProbeReply,
    Returned,
    Serving,
    Stop,
)
from tensorflowonspark.task.feeder import node_lost_error
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, ScriptedJob, fails, returns, serves, take_steps

pytestmark = pytest.mark.usefixtures("unchecked_frames", "soon")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(session, "_CHECK_SECONDS", 0.1)


def feeds_once(rows, *parts):
    """Return a node that reports parts as stored, and returns those that count."""

    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        for each in parts:
            node.send(PartsStored(0, (each,)))
        seal = node.wait_for(FeedComplete)
        assert seal.train.rows == rows
        node.send(Returned(pickle.dumps(tuple((part.partition, attempt) for part, attempt in seal.train.parts))))

    return script


def part(partition, number, rows, attempt=1):
    return PartSummary(Split.TRAIN, PartId(partition), attempt, number, rows, schema=b"schema")


class Row:
    """A row of a feeding job's result: a part that counts."""

    def __init__(self, part):
        self.split, self.node = part.split.value, part.number
        self.partition, self.attempt, self.checksum = part.part.partition, part.attempt, 0


def test_a_feed_is_sealed_with_what_counts():
    parts = part(0, 0, 5, attempt=7), part(1, 1, 3), part(2, 0, 2)
    repeated = part(0, 0, 5, attempt=6), part(1, 0, 3, attempt=2)  # Spark has accepted other attempts
    backend = ScriptedBackend(
        feeds_once({0: 7, 1: 3}, repeated[0], parts[0], repeated[1], parts[2]),
        feeds_once({0: 7, 1: 3}, parts[1]),
        feed=ScriptedJob([Row(each) for each in parts]),
    )
    with cluster_on(backend, num_workers=2) as cluster:
        cluster.train("frame", rebalance=False)
        assert cluster.join() == {"worker:0": ((0, 7), (2, 1)), "worker:1": ((1, 1),)}
    assert [target.name for target in backend.endpoints] == ["worker:0", "worker:1"]


def test_reports_may_come_after_the_jobs_result():
    stored = part(0, 0, 5)

    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        time.sleep(0.3)
        assert not any(isinstance(message, FeedComplete) for message in node.received)
        node.send(PartsStored(0, (stored,)))
        node.send(Returned(pickle.dumps(node.wait_for(FeedComplete).train.parts)))

    with cluster_on(ScriptedBackend(script, feed=ScriptedJob([Row(stored)]))) as cluster:
        cluster.train("frame")
        assert cluster.join() == {"worker:0": ((PartId(0), 1),)}


def test_a_report_that_never_comes_is_a_time_out():
    backend = ScriptedBackend(lambda node: node.send(FeedWanted(0)), feed=ScriptedJob([Row(part(0, 0, 5))]))
    with pytest.raises(tfos.FeedError, match=r"no progress for 0\.5 s"), cluster_on(backend) as cluster:
        cluster.train("frame", feed_timeout=0.5)


@pytest.mark.deep
@pytest.mark.parametrize(("cache", "elsewhere"), [("disk", True), ("disk", False), (None, False)])
def test_a_part_that_its_node_does_not_report_is_named_within_seconds(monkeypatch, cache, elsewhere):
    """The node is heard from all the while; another one may have the part."""
    monkeypatch.setattr(sources, "_REPORT_SECONDS", 0.5)
    parts = part(0, 0, 5), part(1, 1, 3)

    def beat(node):
        with suppress(transport.ConnectionLost):
            while not node.stopped.wait(0.1):
                node.send(Heartbeat())

    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        if node.number == 1:
            node.send(PartsStored(0, (parts[1], *([replace(parts[0], number=1)] if elsewhere else []))))
        Thread(target=beat, args=(node,), daemon=True).start()

    backend = ScriptedBackend(script, script, feed=ScriptedJob([Row(each) for each in parts]))
    found = "worker:1 on here reports them" if elsewhere else "no other node reports them"
    words = f"partition 0: .* to worker:0 on here, which does not report them, and {found} .missing parts: 1"
    with pytest.raises(tfos.FeedError, match=words), cluster_on(backend, num_workers=2) as cluster:
        cluster.train("frame", feed_timeout=60, cache=cache)


def test_a_worker_lost_before_its_report_keeps_no_one_waiting():
    """Asynchronous workers go on without one that dies; what it had stored is lost with it."""
    parts = part(0, 2, 5), part(1, 3, 3)

    def holds(node):
        node.send(Serving())
        node.feeding.wait(5)
        if node.number == 2:
            node.send(Failed(FailureKind.KILLED, "killed"))
        else:
            node.send(PartsStored(0, (parts[1],)))

    def chief(node):
        node.send(FeedWanted(0))
        node.send(Returned(pickle.dumps(node.wait_for(FeedComplete).train.rows)))

    backend = ScriptedBackend(serves, chief, holds, holds, feed=ScriptedJob([Row(each) for each in parts]))
    with cluster_on(backend, num_workers=2, num_ps=1, chief=True) as cluster:
        cluster.train("frame")
        assert cluster.join() == {"chief:0": {3: 3}}
    (failure,) = [each for each in cluster.metrics().events if each.kind == "failure"]
    assert (failure.node, failure.text.partition(" failed: ")[2]) == ("worker:0", "killed")


@pytest.mark.parametrize("killed_first", [True, False])
def test_a_pass_ends_for_the_chief_whether_a_worker_is_lost_before_or_after_the_others_have_ended_it(killed_first):
    stored = part(0, 3, 5)
    ended, lost = Event(), Event()

    def dies(node):
        node.send(Serving())
        node.feeding.wait(5)
        if not killed_first:
            assert ended.wait(5)
            time.sleep(0.2)  # until the driver has received it, on another channel
        node.send(Failed(FailureKind.KILLED, "killed"))
        lost.set()

    def ends(node):
        node.send(Serving())
        node.feeding.wait(5)
        node.send(PartsStored(0, (stored,)))
        if killed_first:
            assert lost.wait(5)
            time.sleep(0.2)
        node.send(PassEnded(0, Split.TRAIN))
        ended.set()

    def chief(node):
        node.send(FeedWanted(0))
        node.wait_for(FeedComplete)
        node.send(Returned(pickle.dumps(node.wait_for(PassesEnded).count)))

    backend = ScriptedBackend(serves, chief, dies, ends, feed=ScriptedJob([Row(stored)]))
    with cluster_on(backend, num_workers=2, num_ps=1, chief=True) as cluster:
        cluster.train("frame")
        assert cluster.join() == {"chief:0": 1}


@pytest.mark.parametrize("cache", ["disk", None])
def test_others_are_fed_what_a_lost_worker_was_to_get_and_no_one_has(cache):
    """Of three partitions one is stored elsewhere when a worker dies; its job is cancelled, and another one follows."""
    parts = part(0, 3, 5), part(1, 3, 3), part(2, 3, 2)
    submitted = []

    class Backend(ScriptedBackend):
        def submit(self, function, data, description, on_end, chosen=None):
            names = [target.name for target in function.endpoints]
            submitted.append((names, [number for number in range(3) if chosen is None or chosen(number)]))
            if len(submitted) > 1:
                self.feeding = ScriptedJob([Row(each) for each in parts[1:]])
                again.set()
            return super().submit(function, data, description, on_end, chosen)

    again, first = Event(), ScriptedJob(ended=False)

    def holds(node):
        node.send(Serving())
        node.feeding.wait(5)
        if node.number == 3:
            node.send(PartsStored(0, parts[:1]))
            stored.set()
            assert again.wait(5)
            node.send(PartsStored(0, parts[1:]))
            node.send(RowsConsumed(0, 10))
        else:
            assert stored.wait(5)
            time.sleep(0.2)  # until the driver has received it, on another channel
            node.send(Failed(FailureKind.KILLED, "killed"))

    def chief(node):
        node.send(FeedWanted(0))
        node.wait_for(FeedBegins if cache is None else FeedComplete)
        assert again.wait(5)
        node.send(Returned(pickle.dumps("done")))

    stored = Event()
    backend = Backend(serves, chief, holds, holds, feed=first)
    with cluster_on(backend, num_workers=2, num_ps=1, chief=True) as cluster:
        cluster.train("frame", cache=cache)
        assert cluster.join() == {"chief:0": "done"}
    assert submitted == [(["worker:0", "worker:1"], [0, 1, 2]), (["worker:1"], [1, 2])]
    assert first.cancelled


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ({}, [FeedComplete]),
        ({"start": "first_rows"}, [FeedBegins, StepGrant, FeedComplete]),
        ({"cache": None}, [FeedBegins, StepGrant]),
    ],
)
def test_when_the_programs_get_the_rows(how, kinds):
    """When all have arrived, or the first ones, in steps; those that are kept are complete in the end."""
    stored = part(0, 0, 10)

    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        node.send(PartsStored(0, (stored,)))
        first = node.wait_for(kinds[0])
        assert first.train.rows == {0: 10 if kinds[0] is FeedComplete else 0}
        if len(kinds) > 1:
            node.send(StreamOpened(0, Shares(10, 1, 0)))
            while not node.wait_for(StepGrant).end:
                pass
            node.send(RowsConsumed(0, 10))
        if kinds[-1] is FeedComplete and len(kinds) > 1:
            assert node.wait_for(FeedComplete).train.parts == ((PartId(0), 1),)
        found = dict.fromkeys(type(message) for message in node.received)
        node.send(Returned(pickle.dumps([kind for kind in found if kind in (FeedBegins, StepGrant, FeedComplete)])))

    with cluster_on(ScriptedBackend(script, feed=ScriptedJob([Row(stored)]))) as cluster:
        cluster.train("frame", **how)
        assert cluster.join() == {"worker:0": kinds}


def test_a_feed_ends_when_all_programs_have():
    def script(node):
        node.feeding.wait(5)
        returns(node.number)(node)

    backend = ScriptedBackend(script, script, feed=ScriptedJob(ended=False))
    with cluster_on(backend, num_workers=2) as cluster:
        cluster.train("frame")
        assert backend.feeding.cancelled


def test_a_feed_that_spark_can_not_compute():
    job = ScriptedJob(error=RuntimeError("Job aborted\n  tensorflowonspark.errors.FeedError: partition 3: gone"))
    backend = ScriptedBackend(lambda node: None, feed=job)
    with pytest.raises(tfos.FeedError, match="could not compute and feed the DataFrame: partition 3: gone"):
        with cluster_on(backend) as cluster:
            cluster.train("frame")


def streams(batch_rows, rows=None, taken=None):
    """Return a node that takes a stream of so many rows, which come in one part, and says that it took all."""

    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        if rows is not None:
            node.send(RowsReceived(0, rows))
            node.send(PartsStored(0, (part(node.number, node.number, rows),)))
        assert not node.wait_for(FeedBegins).kept
        node.send(StreamOpened(0, Shares(2 * batch_rows, 2, node.number)))
        words = []
        while not (words and words[-1].end):
            words.append(node.wait_for(StepGrant))
            if words[-1].failed:
                return
            node.send(RowsConsumed(0, rows or 0 if taken is None else taken))
        if taken is not None:
            node.wait_for(Stop)
        node.send(Returned(pickle.dumps([(word.parts, word.steps) for word in words])))

    return script


def test_the_workers_of_a_stream_take_as_many_steps():
    job = ScriptedJob([Row(part(0, 0, 10)), Row(part(1, 1, 25))])
    backend = ScriptedBackend(streams(10, 10), streams(10, 25), feed=job)
    with cluster_on(backend, num_workers=2) as cluster:
        cluster.train("frame", cache=None)
        results = cluster.join()
    for number, rows in ((0, [10, 0, 0]), (1, [10, 10, 5])):
        words = results[f"worker:{number}"]
        assert [each for parts, _ in words for each in parts] == [(PartId(number), 1)]
        steps = []
        for _, runs in words:
            take_steps(steps, Shares(20, 2, number), StepGrant(0, steps=runs))
        assert steps == rows


def test_a_stream_that_spark_can_not_compute_ends_in_the_programs_too():
    backend = ScriptedBackend(streams(10, 10), feed=ScriptedJob(error=RuntimeError("ValueError: no good")))
    cluster = cluster_on(backend).start()
    with pytest.raises(tfos.FeedError, match="no good"):
        cluster.train("frame", cache=None)
    backend.nodes[0].wait_until_received(lambda message: "no good" in getattr(message, "failed", ""))
    cluster._attempt.abort()


def test_a_feed_that_stands_still_names_who_waits_for_whom():
    backend = ScriptedBackend(streams(10, 30, taken=20), feed=ScriptedJob([Row(part(0, 0, 30))]))
    with pytest.raises(tfos.FeedError) as caught, cluster_on(backend) as cluster:
        cluster.train("frame", cache=None, feed_timeout=0.5)
    for words in ("no progress for 0.5 s", "1 of 4 are done and 2 are running", "received 30 rows", "has taken 20"):
        assert words in str(caught.value)


@pytest.mark.deep
def test_the_time_out_counts_from_the_last_progress():
    def script(node):
        node.send(FeedWanted(0))
        for count in range(8):
            time.sleep(0.2)
            node.send(RowsReceived(0, count))
        node.send(PartsStored(0, (part(0, 0, 30),)))
        backend.feeding.ended = True
        backend.wake()
        node.send(Returned(pickle.dumps(len(node.wait_for(FeedComplete).train.parts))))

    backend = ScriptedBackend(script, feed=ScriptedJob([Row(part(0, 0, 30))], ended=False))
    with cluster_on(backend) as cluster:
        cluster.train("frame", feed_timeout=1)
        assert cluster.join() == {"worker:0": 1}


def test_a_worker_that_is_full_is_not_left_waiting():
    def script(node):
        node.send(FeedWanted(0))
        node.feeding.wait(5)
        if node.number == 0:
            node.send(PartsStored(0, (part(0, 0, 35),)))
        node.wait_for(FeedBegins)
        node.send(StreamOpened(0, Shares(20, 2, node.number)))
        if node.number == 0:
            time.sleep(0.3)
            node.send(Backpressure(0))
        word = node.wait_for(StepGrant)
        while not word.steps:
            word = node.wait_for(StepGrant)
        node.send(Returned(pickle.dumps(word.steps)))

    backend = ScriptedBackend(script, script, feed=ScriptedJob(ended=False))
    with cluster_on(backend, num_workers=2) as cluster:
        cluster.train("frame", cache=None)
        assert cluster.join() == {"worker:0": ((3, 30),), "worker:1": ((3, 0),)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache": "tape"}, "cache='tape'"),
        ({"cache_limit": "much"}, "cache_limit='much'"),
        ({"timeout": 0}, "timeout=0"),
        ({"cache": None, "validation": "flag"}, "must be a DataFrame of their own"),
    ],
)
def test_bad_settings_of_a_feed_are_refused(settings, words):
    with pytest.raises(tfos.ClusterError, match=words), cluster_on(ScriptedBackend(lambda node: None)) as cluster:
        cluster.train("frame", **settings)


def test_programs_that_wait_for_a_feed_are_informed_that_none_comes():
    def script(node):
        node.wait_for(NoMoreFeeds)
        node.send(Returned(pickle.dumps("no more")))

    with cluster_on(ScriptedBackend(script)) as cluster:
        assert cluster.join() == {"worker:0": "no more"}


def test_after_a_feed_that_failed_the_next_one_arrives():
    def script(node):
        node.wait_for(Probe)
        failed.wait(5)
        feeds_once({0: 3}, part(0, 0, 3))(node)

    failed = Event()
    backend = ScriptedBackend(script, feed=ScriptedJob(error=RuntimeError("broken")))
    with cluster_on(backend) as cluster:
        with pytest.raises(tfos.FeedError, match="broken"):
            cluster.train("frame")
        for node in backend.nodes:
            node.feeding.clear()
        failed.set()
        backend.feeding = ScriptedJob([Row(part(0, 0, 3))])
        cluster.train("frame")
        assert cluster.join() == {"worker:0": ((0, 1),)}


def killed_and_slow_to_report(node):
    """A supervisor on a busy host: it reports its node's end long after the node's connections have ended."""
    while not isinstance(message := node.channel.receive(), Probe):
        pass
    time.sleep(1.5)
    node.send(Failed(FailureKind.KILLED, "the cause"))
    node.send(ProbeReply(message.number))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("nodes", "job_ended", "words"),
    [
        ([fails(FailureKind.KILLED, "killed", delay=0.3)], False, "killed"),
        ([fails(FailureKind.OUT_OF_MEMORY, "no memory", delay=0.3)], True, "no memory"),  # it took the job along
        ([killed_and_slow_to_report], True, "the cause"),
        # Of a failure that looks like a consequence the cause may come later than the job's own end.
        (
            [fails(FailureKind.PEER_LOST, "peer reset"), fails(FailureKind.RAISED, "the cause", delay=0.7)],
            True,
            "the cause",
        ),
    ],
)
def test_the_failure_of_a_node_ends_a_feed_and_is_raised_rather_than_that_of_its_job(nodes, job_ended, words):
    job = ScriptedJob(error=RuntimeError("Connection refused")) if job_ended else ScriptedJob(ended=False)
    backend = ScriptedBackend(*nodes, feed=job)
    with pytest.raises(tfos.NodeError, match=words), cluster_on(backend, num_workers=len(nodes)) as cluster:
        cluster.train("frame")
    assert job_ended or backend.feeding.cancelled


@pytest.mark.deep
def test_a_task_that_has_lost_its_node_learns_why():
    backend = ScriptedBackend(killed_and_slow_to_report)
    cluster = cluster_on(backend).start()
    with closing(transport.connect(backend.plan.driver, backend.plan.credentials)) as driver:
        channel = driver.channel()
        channel.send(NodeLost(0))
        assert channel.receive().error.startswith("worker:0 on here failed: the cause")
    cluster._attempt.abort()


def test_a_task_that_has_lost_a_node_which_is_there_learns_nothing():
    backend = ScriptedBackend(lambda node: None)
    cluster = cluster_on(backend).start()
    target = NodeEndpoint(0, "worker:0", "here", NodeReady(), backend.plan.driver)
    error = node_lost_error(target, backend.plan.credentials, "rows did not go", ConnectionError("reset by peer"))
    assert str(error) == "rows did not go: reset by peer"
    error = node_lost_error(target, backend.plan.credentials, "rows did not go", transport.NoConnection("no answer"))
    assert str(error).startswith("rows did not go: no answer; open the ports of nodes between the hosts (ports), or, ")
    cluster._check()
    cluster._attempt.abort()


def test_workers_that_serve_are_fed_only_beside_a_chief():
    backend = ScriptedBackend(lambda node: node.send(Serving()), feed=ScriptedJob(ended=False))
    cluster = cluster_on(backend).start()
    with pytest.raises(tfos.FeedError, match="worker:0 serves a ParameterServerStrategy .* chief=True"):
        cluster.train("frame")
    cluster._attempt.abort()


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize(
    ("now", "lost", "words"),
    [
        ({0: (7, 1), 1: (7, 2)}, False, ""),
        ({0: (7, 1), 1: (6, 2)}, False, "(partition 1 had 7 rows, and now has 6)"),
        ({0: (7, 1), 1: (7, 3)}, False, "(partition 1 had 7 rows, and now has others, or the same in another order,)"),
        ({0: (7, 1)}, False, "(partition 1 had 7 rows, and now has 0)"),
        ({0: (7, 1)}, True, ""),  # with a node that others do without
    ],
)
def test_other_rows_than_before_a_restart_are_said_once(monkeypatch, now, lost, words, dealt):
    def begun():
        return ContentCheck(3, request)

    request, found = SimpleNamespace(contents={}), []
    monkeypatch.setattr(contents.CONSOLE, "log", lambda _log, _level, text, *values: found.append(text % values))
    begun().compare(Split.TRAIN, {0: (7, 1), 1: (7, 2)}, round_robin=dealt, lost=lost)
    after = begun()
    for _ in range(2):
        after.compare(Split.TRAIN, now, round_robin=dealt, lost=lost)
    if dealt:  # the partitions of a cluster of one worker are others
        begun().compare(Split.TRAIN, {0: (14, 5)}, round_robin=False, lost=lost)
    assert len(found) == bool(words)
    assert words in "".join(found)
    assert all(each.startswith("feed 3: Spark has computed other rows than before the restart") for each in found)
