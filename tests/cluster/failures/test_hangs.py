"""Nodes that are there and do nothing: found in the time that was set, told apart, and not found where all is well."""

import os
import signal
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.messages import Members
from tests.support.local_cluster import local_cluster
from tests.support.processes import node_of
from tests.support.programs import wait_for

pytestmark = pytest.mark.masters("local")

_SILENCE_SECONDS = 3.0
_MARGIN_SECONDS = 5.0  # for the machine to be busy with something else


def fails(spark, program, **settings):
    """Run a program that hangs; return the error, and the seconds after which it came."""
    begin = time.monotonic()
    with pytest.raises(tfos.NodeError) as caught:
        tfos.run(spark, program, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=_SILENCE_SECONDS), **settings)
    return caught.value, time.monotonic() - begin


@pytest.mark.parametrize("silence", [0, -1, "soon"])
def test_a_time_that_can_not_be_right_is_refused(spark, silence):
    with pytest.raises(tfos.SpecError, match="heartbeat_timeout=.*expected seconds above 0"):
        tfos.Cluster(spark, lambda args, ctx: None, nodes=tfos.Nodes(heartbeat_timeout=silence))


@pytest.mark.smoke
def test_a_node_that_is_stopped(spark):
    def program(args, ctx):
        time.sleep(3600)

    with pytest.raises(tfos.NodeError) as caught:
        with tfos.Cluster(
            spark, program, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=_SILENCE_SECONDS)
        ) as cluster:
            time.sleep(1)
            node_of(cluster, 1).send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            cluster.join()
    assert time.monotonic() - begin < _SILENCE_SECONDS + _MARGIN_SECONDS
    assert caught.value.node == "worker:1"
    assert "is stopped (SIGSTOP, or a debugger)" in caught.value.reason


def test_a_worker_that_computes_before_it_makes_its_strategy():
    """The other one waits for it in TensorFlow, with Python's lock, and can't even answer that it does."""

    def program(seconds, ctx):
        import tensorflow as tf

        end = time.monotonic() + seconds
        while ctx.index == 0 and time.monotonic() < end:
            pass
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        return float(add())

    with local_cluster(
        program, 3 * _SILENCE_SECONDS, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=_SILENCE_SECONDS)
    ) as cluster:
        assert cluster.join() == {"worker:0": 2.0, "worker:1": 2.0}


def test_a_node_that_is_stopped_while_it_waits():
    """It has answered that it waits for a feed, with good reason, and is stopped only then."""

    def program(args, ctx):
        ctx.feed()

    with pytest.raises(tfos.NodeError, match="worker:0 on .* is stopped") as caught:
        with local_cluster(program, nodes=tfos.Nodes(heartbeat_timeout=1.0)) as cluster:
            wait_for(lambda: cluster._monitor.roster.nodes[0].process.idle)
            node_of(cluster, 0).send_signal(signal.SIGSTOP)
            wait_for(lambda: cluster._monitor.end.failure(), seconds=1.0 + _MARGIN_SECONDS)
            cluster._check()
    assert caught.value.cause == "stopped"


@pytest.mark.slow
def test_native_code_that_holds_python(spark):
    def program(args, ctx):
        import ctypes

        if ctx.index == 1:
            ctypes.PyDLL(None).sleep(3600)  # a PyDLL's functions keep the lock

    error, _ = fails(spark, program)
    assert error.node == "worker:1"
    assert "has not answered for" in error.reason


def test_a_worker_that_stands_still_in_an_epoch(spark):
    """The other one waits for it in TensorFlow, which by itself would wait for minutes."""

    def program(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        for step, _ in enumerate(ctx.dataset(2, shuffle=False)):
            if ctx.index == 1 and step == 3:
                time.sleep(3600)
            add()

    error, _ = fails(spark, program, data=spark.range(100))
    assert error.node == "worker:1"
    assert "its program stands still: it has used no processor time for" in error.reason
    assert "time.sleep(3600)" in error.traceback


def test_a_worker_that_takes_fewer_steps(spark):
    def program(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        for _ in range(3 + ctx.index):
            add()

    error, _ = fails(spark, program)
    assert error.node == "worker:1"
    assert "waits in TensorFlow" in error.reason
    assert "worker:0 has no more steps to take with it" in error.reason
    assert "add()" in error.traceback


def test_a_worker_that_waits_for_an_eager_collective():
    """Eager collectives run in a pool of threads, for which the main one waits by means of the standard library."""

    def program(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if ctx.index == 1:
            strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))

    with pytest.raises(tfos.NodeError) as caught:
        with local_cluster(program, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=_SILENCE_SECONDS)) as cluster:
            cluster.join()
    assert caught.value.node == "worker:1"
    assert "waits in TensorFlow" in caught.value.reason


@pytest.mark.slow
def test_who_computes_or_waits_with_reason_lives(spark):
    """One waits for the other's computation, then the program waits for a feed, and for nothing in particular."""

    def program(args, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        add()
        end = time.monotonic() + 5
        while ctx.index == 1 and time.monotonic() < end:
            pass
        add()
        for _ in range(40):
            time.sleep(0.1)
            add()  # a training that hardly computes
        for feed in ctx.feeds():
            rows = feed.total_rows
        time.sleep(5)
        return rows

    with tfos.Cluster(spark, program, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=2.0)) as cluster:
        time.sleep(18)
        cluster.train(spark.range(10))
        assert cluster.shutdown() == {"worker:0": 10, "worker:1": 10}


def test_a_stopped_node_is_reported_not_those_that_lost_it(spark):
    """TensorFlow gives a silent peer up long before its process has been silent for the time that was set."""

    class UnavailableError(Exception):
        pass

    def program(args, ctx):
        if ctx.index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)
        raise UnavailableError("worker 1 is gone")

    with pytest.raises(tfos.NodeError, match="worker:1 on .* is stopped"):
        tfos.run(spark, program, num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=60))


class Proxy:
    """Passes bytes on to a node's TensorFlow, until it drops them silently, as a broken network does."""

    def __init__(self, address):
        self._target = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.drops = False
        Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            outer, _ = self._listener.accept()
            try:
                inner = socket.create_connection(self._target)
            except OSError:  # the node's TensorFlow does not listen yet, or no longer: its peer tries again
                outer.close()
                continue
            for source, sink in ((outer, inner), (inner, outer)):
                Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        with suppress(OSError):
            while came := source.recv(1 << 16):
                while self.drops:
                    time.sleep(0.1)
                sink.sendall(came)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_a_network_that_drops_packets_between_two_nodes(spark, monkeypatch):
    """The driver receives the heartbeats of both nodes, which can't reach each other: nothing progresses."""
    proxies = []

    def send_members(membership):
        roster = membership._roster
        members = [node.member for node in roster.nodes]
        proxies.extend(Proxy((member.host, member.port)) for member in members)
        for own in members:
            seen = [
                each if each == own else replace(each, port=proxy.port)
                for each, proxy in zip(members, proxies, strict=True)
            ]
            roster.send(own.number, Members(tuple(seen)))

    def program(path, ctx):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        add = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
        while True:
            add()
            Path(path).touch()
            time.sleep(0.1)

    monkeypatch.setattr("tensorflowonspark.driver.members.Membership._send_all", send_members)
    with tempfile.TemporaryDirectory() as directory, pytest.raises(tfos.NodeError) as caught:
        begun = Path(directory, "begun")
        with tfos.Cluster(
            spark, program, str(begun), num_workers=2, nodes=tfos.Nodes(heartbeat_timeout=_SILENCE_SECONDS)
        ) as cluster:
            while not begun.exists():
                cluster._check()
                time.sleep(0.1)
            for proxy in proxies:
                proxy.drops = True
            begin = time.monotonic()
            cluster.join()
    assert time.monotonic() - begin < _SILENCE_SECONDS + _MARGIN_SECONDS
    assert caught.value.cause in ("hung", "peer_lost")
    assert "the network between the workers may drop packets" in caught.value.advice
