"""A stand-in for Spark, with nodes that are threads and do what a test wants."""

import os
import pickle
import time
from contextlib import suppress
from threading import Event, Thread

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.messages import (
    Check,
    Checked,
    Failed,
    Hello,
    Member,
    Members,
    Ready,
    Returned,
    Stop,
)


class FakeNode:
    """A supervisor with its node, played by a thread; `script` says what happens after all have met."""

    def __init__(self, plan, number, script):
        self.number = number
        self.heard = []
        self._plan = plan
        self._script = script
        self._channel = transport.dial(plan.driver, plan.credentials).channel()
        self.placed = Event()
        self.feeding = Event()  # rows come only now
        self.stopped = Event()
        Thread(target=self._live, daemon=True).start()

    def _live(self):
        try:
            member = Member(self.number, self._plan.spec.roles[self.number], "here", 1000 + self.number)
            self.say(Hello(member, self._plan.cluster, os.getpid(), os.getpid()))
            self._channel.receive()
            self.placed.set()
            self.say(Ready("socket", 1))
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
            if isinstance(message, Check):
                self.say(Checked(message.number))
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
        all_placed = len(nodes) == len(self._backend.plan.spec.roles) and all(node.placed.is_set() for node in nodes)
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
            FakeNode(plan, number, script) for number, script in enumerate(self.scripts[: len(plan.spec.roles)])
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
