"""Nodes that are threads and follow a script, and jobs with a result that is given: for tests of the driver alone."""

import os
import pickle
import time
from contextlib import suppress
from threading import Event, Lock, Thread

from tensorflowonspark import transport
from tensorflowonspark.messages import (
    Failed,
    Member,
    Members,
    NodeReady,
    Probe,
    ProbeReply,
    Register,
    Returned,
    Serving,
    Stop,
)
from tests.support.backend import LoopbackBackend, PlayedStage
from tests.support.messages import opened
from tests.support.programs import wait_for


class ScriptedNode:
    """A supervisor with its node.

    Parameters
    ----------
    plan : LaunchPlan
        The driver's.
    number : int
        The node's.
    script : callable
        Takes this node; called once when all nodes are members.
    """

    def __init__(self, plan, number, script):
        self.number = number
        self.plan = plan
        self.received = []
        self._script = script
        self.channel = transport.connect(plan.driver, plan.credentials).channel()
        self.placed = Event()
        self.feeding = Event()  # rows come only now
        self.stopped = Event()
        Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            member = Member(self.number, self.plan.config.spec.roles[self.number], "here", 1000 + self.number)
            executor = str(self.number)
            self.send(Register(member, self.plan.cluster_id, os.getpid(), os.getpid(), executor))
            self.channel.receive()
            self.placed.set()
            self.send(NodeReady("socket", 1))
            self.wait_for(Members)
            self._script(self)
            if not any(isinstance(each, Stop) for each in self.received):
                self.wait_for(Stop)
        except transport.ConnectionLost:
            pass
        self.stopped.set()
        self.channel.close()
        with suppress(transport.ConnectionLost):
            while True:  # to the end: Arrow would warn in this process, which is the driver's, where nobody may read it
                self.channel.receive()

    def send(self, message):
        self.channel.send(message)

    def wait_for(self, kind):
        """Return the next message of a kind; answer the driver's checks until then."""
        while True:
            message = opened(self.channel.receive())
            self.received.append(message)
            if isinstance(message, Probe):
                self.send(ProbeReply(message.number))
            if isinstance(message, kind):
                return message
            if isinstance(message, Stop):
                raise transport.ConnectionLost("the driver stops this node")

    def wait_until_received(self, wanted):
        wait_for(lambda: any(wanted(message) for message in self.received), 30)

    def disconnect(self):
        self.channel.close()
        raise transport.ConnectionLost("on purpose")


class ScriptedJob:
    """A feeding job of Spark's with a result or an error that is given."""

    def __init__(self, result=None, error=None, ended=True):
        self.ended, self.result, self.error, self.cancelled = ended, result, error, False

    def tasks(self):
        return 1, 2, 4

    def cancel(self):
        self.cancelled = True

    def wait(self, seconds):
        pass


class ScriptedBackend(LoopbackBackend):
    """A backend with a slot and a node for each script, and the job that feeds.

    Attributes
    ----------
    plan, nodes
        Of the last attempt; a node that was started again alone in the place of its former process.
    plans
        All, also those by which a node was started again alone.
    needed
        How many slots were asked for.
    endpoints, wake
        Of the last feed: its nodes, and the function to call at its end.
    """

    def __init__(self, *scripts, problems=(), feed=None):
        super().__init__(self._start_nodes, slots=len(scripts))
        self.nodes = []
        self.plans = []
        self.feeding = feed
        self._scripts = scripts
        self._problems = problems
        self._starting = Lock()  # a node may fail, and be started again, before all of its attempt are

    def find_slots(self, needed, wanted, timeout, had=0):
        self.needed = needed
        return super().find_slots(needed, wanted, timeout, had)

    def _start_nodes(self, plan, on_end):
        with self._starting:
            return self._started(plan)

    def _started(self, plan):
        self.plans.append(plan)
        if plan.count is not None:
            (number,) = plan.numbers
            self.nodes[number] = ScriptedNode(plan, number, self._scripts[number])
            return PlayedStage([self.nodes[number].placed], self._problems)
        self.plan = plan
        scripts = self._scripts[: len(plan.config.spec.roles)]
        self.nodes = [ScriptedNode(plan, number, script) for number, script in enumerate(scripts)]
        missing = [Event()] * (len(plan.config.spec.roles) - len(scripts))
        return PlayedStage([*(node.placed for node in self.nodes), *missing], self._problems)

    def submit(self, function, data, description, on_end, chosen=None):
        self.endpoints = function.endpoints
        self.wake = on_end
        for node in self.nodes:
            node.feeding.set()
        return self.feeding


def serves(node):
    """As a parameter server, and as a worker of one."""
    node.send(Serving())


def returns(value):
    return lambda node: node.send(Returned(pickle.dumps(value)))


def fails(kind, reason="it did", delay=0.0):
    def script(node):
        time.sleep(delay)
        node.send(Failed(kind, reason))

    return script


def take_steps(taken, shares, grant):
    """Append the rows that a worker takes in each of the steps that it is granted."""
    for count, rows in grant.steps or ():
        first = len(taken)
        left = [rows + shares.before(first) - shares.before(step) for step in range(first, first + count)]
        taken += [max(0, min(shares.rows(first + step), each)) for step, each in enumerate(left)]
