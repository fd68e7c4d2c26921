"""Workers of local SGD as processes that are killed and started again: the driver's rounds, and the exchange."""

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Lock, Thread, Timer

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.messages import Member, RoundPlan, RoundResult
from tensorflowonspark.node.rounds.member import RoundMember
from tensorflowonspark.node.setup import NodeSetup

EVERY = 20  # steps
_PAUSE = 0.1  # seconds, for the steps between two rounds


class _Link:
    """A worker's link to the driver: a channel."""

    def __init__(self, channel):
        self._channel = channel
        self.send = channel.send

    def wait_for_round(self):
        return self._channel.receive()


def work(number, workers, port, token, stop):
    """Train as one worker until a file exists; print what has come of it."""
    from benchmarks.parallel.digits import Digits

    credentials = transport.Credentials(token)
    channel = transport.connect(("127.0.0.1", port), credentials).channel()
    channel.send(number)
    config = ClusterConfig(spec=ClusterSpec(num_workers=workers), program=b"")
    member = RoundMember(NodeSetup(config, number, "127.0.0.1", credentials), _Link(channel))
    digits = Digits(workers, seed=0)
    shared, over = member.join(digits.settings(outer=True, half=True), digits.initial)
    while not over:
        weights = digits.train(number, shared.weights, EVERY)
        time.sleep(_PAUSE)
        shared, over = member.average(weights, EVERY, Path(stop).exists())
    found = {
        "version": shared.version,
        "weights": hash(shared.weights.tobytes()),
        "accuracy": digits.accuracy(shared.weights),
    }
    print(json.dumps(found), flush=True)
    time.sleep(2.0)  # others may still take its weights
    os._exit(0)


class Training:
    """A driver's rounds with workers that are processes.

    Parameters
    ----------
    workers : int
        How many.
    directory : str
        For files.
    log : file
        Receives the workers' standard error.
    """

    def __init__(self, workers, directory, log):
        self._stop = Path(directory) / "stop"
        self._log = log
        self._lock = Lock()
        self._nodes = [Node(number, role) for number, role in enumerate(ClusterSpec(num_workers=workers).roles)]
        self._channels = {}
        self._processes = {}
        self.plans, self.completed, self.joined = [], [], []  # times of messages, by the numbers of rounds
        self._rounds = Rounds(self._send, lambda: [each for each in self._nodes if not each.lost], self._later)
        self._credentials = transport.new_credentials(tls=False)
        self._server = transport.Server(("127.0.0.1", 0), self._credentials, on_channel=self._serve)
        for node in self._nodes:
            node.member = Member(node.number, node.role, "127.0.0.1", 1)
            self.start(node.number)

    def _send(self, number, message):
        if isinstance(message, RoundPlan) and message.number not in [each for each, _ in self.plans]:
            self.plans.append((message.number, time.monotonic()))
        if isinstance(message, RoundResult):
            if message.averaged and message.number not in [each for each, _ in self.completed]:
                self.completed.append((message.number, time.monotonic()))
            if number not in [each.number for each in message.holders]:
                self.joined.append(number)
        with suppress(transport.ConnectionLost):  # its own thread notices
            self._channels[number].send(message)

    def _later(self, seconds, act):
        def ring():
            with self._lock:
                act()

        timer = Timer(seconds, ring)
        timer.daemon = True
        timer.start()

    def _serve(self, channel):
        number = channel.receive()
        node = self._nodes[number]
        with self._lock:
            node.lost = False
            self._channels[number] = channel
        try:
            while True:
                message = channel.receive()
                with self._lock:
                    self._rounds.receive(node, message)
        except transport.ConnectionLost:
            with self._lock:
                if self._channels.get(number) is channel:
                    node.lost = True
                    self._rounds.node_lost(node)

    def start(self, number):
        """Start a worker."""
        arguments = [number, len(self._nodes), self._server.port, self._credentials.token, self._stop]
        self._processes[number] = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )

    def kill(self, number):
        """Kill a worker."""
        self._processes[number].kill()
        self._processes[number].wait()

    def wait(self, until, seconds=120.0):
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.completed)} rounds are complete")
            time.sleep(0.02)

    def members(self):
        """Return how many workers train."""
        return len(self._rounds._members)

    def finish(self):
        """Have all workers end; return what each has printed."""
        self._stop.touch()
        printed = {}

        def read(number, process):
            printed[number] = json.loads(process.communicate()[0])

        threads = [Thread(target=read, args=each) for each in self._processes.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        self._server.close()
        return printed

    def pids(self):
        """Return the processes of the workers."""
        return {number: process.pid for number, process in self._processes.items()}

    def end(self):
        """Kill what is left."""
        for process in self._processes.values():
            process.kill()
            process.wait()


def measure(workers, kills, directory, log):
    """Kill workers at random, each of which is started again; return what it has cost."""
    drawn = random.Random(0)
    training = Training(workers, directory, log)
    try:
        training.wait(lambda: training.members() == workers and len(training.completed) >= 5)
        undisturbed = [later - earlier for (_, earlier), (_, later) in pairwise(training.completed)]
        restarted_others = 0
        pauses = []
        for _ in range(kills):
            time.sleep(drawn.uniform(0.2, 1.0))
            victim = drawn.randrange(workers)
            before, rounds = training.pids(), len(training.completed)
            killed = time.monotonic()
            training.kill(victim)
            training.wait(lambda rounds=rounds: len(training.completed) > rounds)
            pauses.append(training.completed[rounds][1] - killed)
            training.start(victim)
            after = training.pids()
            restarted_others += sum(before[each] != after[each] for each in before if each != victim)
            training.wait(lambda: training.members() == workers)
        # All have joined, and take part in some more rounds.
        rounds = len(training.completed)
        training.wait(lambda: len(training.completed) >= rounds + 3)
        results = training.finish()
    finally:
        training.end()
    begun = len({number for number, _ in training.plans})
    return {
        "workers": workers,
        "kills": kills,
        "rounds": len(training.completed),
        "begun_again": begun - len(training.completed),
        "restarted_others": restarted_others,
        "joined": len(training.joined) - (workers - 1),
        "undisturbed": undisturbed,
        "pauses": pauses,
        "equal": len({(each["version"], each["weights"]) for each in results.values()}) == 1
        and len(results) == workers,
        "accuracy": results[0]["accuracy"],
    }


if __name__ == "__main__":
    number, workers, port, token, stop = sys.argv[1:]
    work(int(number), int(workers), int(port), token, stop)
