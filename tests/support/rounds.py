"""Workers of local SGD as threads of one process: the driver's rounds and the exchange are real, links are queues."""

from contextlib import suppress
from dataclasses import dataclass, field
from queue import Queue
from threading import Lock, Thread, Timer

import numpy as np

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.keras.round_state import RoundSettings
from tensorflowonspark.messages import Member, Returned
from tensorflowonspark.node.rounds.member import RoundMember
from tensorflowonspark.node.setup import NodeSetup


class Killed(BaseException):
    """Ends the program of a worker that has been killed."""


class _Link:
    """In place of a node's link to the driver."""

    def __init__(self, group, number):
        self._group, self._number = group, number
        self._messages = Queue()
        self.dead = False

    def send(self, message):
        self._group.on_message(self, self._number, message)

    def wait_for_round(self):
        message = self._messages.get()
        self._require_alive()
        return message

    def put(self, message):
        self._messages.put(message)

    def _require_alive(self):
        if self.dead:
            raise Killed


@dataclass
class Outcome:
    """What has become of a worker's program."""

    result: object = None
    error: BaseException | None = None


@dataclass
class Group:
    """A driver and its workers.

    Attributes
    ----------
    workers : int
        How many.
    tls : bool
        Whether connections are encrypted.
    """

    workers: int
    tls: bool = False
    sent: list = field(default_factory=list)  # messages of the driver, with the receivers' numbers
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self):
        self.config = ClusterConfig(spec=ClusterSpec(num_workers=self.workers), program=b"")
        self.credentials = transport.new_credentials(tls=self.tls)
        self.nodes = [Node(number, role) for number, role in enumerate(self.config.spec.roles)]
        for node in self.nodes:
            node.member = Member(node.number, node.role, "127.0.0.1", 1)
        self.links = {}
        self.members = {}
        self.outcomes = {}
        self.timers = []
        self.rounds = Rounds(self._send, lambda: [n for n in self.nodes if not n.lost], self._later)
        self._threads = []

    def _later(self, seconds, act):
        def ring():
            with self.lock:
                act()

        timer = Timer(seconds, ring)
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def _send(self, number, message):
        self.sent.append((number, message))
        if number in self.links:
            self.links[number].put(message)

    def on_message(self, link, number, message):
        with self.lock:
            if not link.dead:  # else its worker may have been started again meanwhile, with another link
                self.rounds.receive(self.nodes[number], message)

    def start(self, number, program):
        """Start, or start again, a worker: a program of its `RoundMember`."""
        with self.lock:
            self.nodes[number].lost = False
        link = self.links[number] = _Link(self, number)
        setup = NodeSetup(self.config, number, "127.0.0.1", self.credentials)
        member = self.members[number] = RoundMember(setup, link)
        outcome = self.outcomes[number] = Outcome()

        def run():
            with suppress(Killed):
                try:
                    outcome.result = program(member)
                except Exception as error:
                    outcome.error = error
                with self.lock:
                    if not link.dead:
                        self.nodes[number].program.returned = True
                        self.rounds.receive(self.nodes[number], Returned(b""))

        thread = Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def kill(self, number, *, known=True):
        """End a worker: its connections break, and if it is `known`, the driver notices."""
        link, member = self.links[number], self.members[number]
        link.dead = True
        link.put(None)
        member.close()
        if known:
            self.lose(number)

    def lose(self, number):
        """Have the driver notice that a worker is lost."""
        with self.lock:
            self.nodes[number].lost = True
            self.rounds.node_lost(self.nodes[number])

    def run(self, program, numbers=None):
        """Run a program on all workers; return the results of those that have one."""
        for number in range(self.workers) if numbers is None else numbers:
            self.start(number, program)
        return self.join()

    def join(self, seconds=60.0):
        for thread in self._threads:  # further ones may come meanwhile
            thread.join(seconds)
            assert not thread.is_alive(), "a worker hangs"
        for outcome in self.outcomes.values():
            if outcome.error is not None:
                raise outcome.error
        return {number: each.result for number, each in self.outcomes.items() if each.result is not None}

    def close(self):
        for timer in self.timers:
            timer.cancel()
        for link in self.links.values():
            link.dead = True
            link.put(None)
        for member in self.members.values():
            member.close()
        for thread in self._threads:
            thread.join(5.0)


def settings(size, **changed):
    """Return settings for one trained weight of some values."""
    given = {
        "shapes": ((size,),),
        "trained": size,
        "learning_rate": 1.0,
        "momentum": 0.0,
        "half": False,
        "min_workers": 1,
        "timeout": 20.0,
    }
    return RoundSettings(**{**given, **changed})


def training(given, changes, rounds):
    """Return a program that adds its own changes to the weights, and ends with as many rounds."""

    def program(member):
        number = member._setup.number
        shared, final = member.join(given, np.full(sum(map(np.prod, given.shapes)), number, np.float32))
        for at in range(rounds):
            if final:
                break
            weights = shared.weights + changes(number, at)
            shared, final = member.average(weights, 1, at == rounds - 1)
        return shared

    return program
