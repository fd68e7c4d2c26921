"""Simulated nodes, without TensorFlow and Spark: one process for several, each with a connection and a thread.

The process receives its nodes as a pickle on its standard input, and reports when the driver has accepted all of them.
"""

import gc
import os
import pickle
import random
import sys
import time
from contextlib import suppress
from functools import lru_cache
from threading import Semaphore, Thread

from tensorflowonspark import transport
from tensorflowonspark.messages import (
    FeedWanted,
    Heartbeat,
    Lines,
    Member,
    Members,
    NodeReady,
    NodeUsage,
    NoMoreFeeds,
    Register,
    Returned,
    Stop,
    TrainingTotals,
)
from tensorflowonspark.transport import Sealed
from tensorflowonspark.transport.pickled import unpack

_STEPS, _BATCH = 100, 64  # of an epoch that is played, and the rows of a step
_USAGE_SECONDS = 5.0  # between two reports of the use of processor and memory
# Once for all nodes of this process: real ones have hosts of their own, where each unpickles the list of all nodes.
_unpacked = lru_cache(maxsize=4)(unpack)


class PlayedNode:
    """A supervisor with its node: it sends the messages of a real one, in the same order.

    Parameters
    ----------
    order : dict
        Address, credentials, cluster and roles from the driver's plan; ``returns``: whether the program returns when no
        feed comes; ``trains``: whether it sends what a training sends.
    number : int
        The node's number.
    """

    def __init__(self, order, number):
        self._order = order
        self._number = number
        self._channel = None
        self.gone = False
        self._seconds = 0.0
        self._sent = 0

    def run(self, on_welcome):
        """Exchange messages with the driver, from the first to the last."""
        order = self._order
        channel = transport.connect(order["address"], order["credentials"]).channel()
        member = Member(self._number, order["roles"][self._number], "here", 1000 + self._number)
        channel.send(Register(member, order["cluster"], os.getpid(), os.getppid()))
        channel.receive()
        on_welcome()
        self._channel = channel
        channel.send(NodeReady("socket", 1))
        with suppress(transport.ConnectionLost):
            self._answer(channel)
        self.gone = True
        channel.close()

    def _answer(self, channel):
        while True:
            message = channel.receive()
            if isinstance(message, Sealed):
                message = _unpacked(message.content.data)
            if isinstance(message, Members):
                channel.send(FeedWanted(0))
            elif isinstance(message, NoMoreFeeds) and self._order["returns"]:
                channel.send(Returned(pickle.dumps(None)))
            elif isinstance(message, Stop):
                return

    def beat(self):
        """Send a heartbeat unless the node has ended."""
        if self._channel is not None and not self.gone:
            with suppress(transport.ConnectionLost):  # its own thread notices
                if self._order["trains"]:
                    self._train()
                else:
                    self._channel.send(Heartbeat())

    def _train(self):
        """Send what a node has measured: totals, and every five seconds a line and the use of its host."""
        self._seconds += self._order["beat"]
        now, steps = self._seconds, int(self._seconds * random.uniform(9.8, 10.2))
        waits = now * random.uniform(0.01, 0.03), now * random.uniform(0.1, 0.2)
        rows = steps * _BATCH
        totals = TrainingTotals(now, steps // _STEPS, steps % _STEPS, _STEPS, steps, rows, 260 * rows, *waits, now)
        self._channel.send(totals)
        self._sent += 1
        if self._sent % max(1, round(_USAGE_SECONDS / self._order["beat"])) == 0:
            self._channel.send(Lines((f"step {steps}",)))
            self._channel.send(
                NodeUsage(now, now * random.uniform(0.9, 1.0), random.randrange(600_000_000, 700_000_000))
            )


def main():
    """Simulate nodes of one cluster until all have ended."""
    # Many nodes share one interpreter here, which must not make them slower than real ones.
    gc.disable()
    sys.setswitchinterval(1.0)
    print("ready", flush=True)
    order = pickle.load(sys.stdin.buffer)
    nodes = [PlayedNode(order, number) for number in order["numbers"]]
    welcome = Semaphore(0)
    threads = [Thread(target=node.run, args=(welcome.release,)) for node in nodes]
    for thread in threads:
        thread.start()
    Thread(target=_beat, args=(nodes, order["beat"]), daemon=True).start()
    for _ in nodes:
        welcome.acquire()
    print("placed", flush=True)
    for thread in threads:
        thread.join()


def _beat(nodes, interval):
    """Send the heartbeats of all nodes, evenly over each interval as those of real nodes."""
    while True:
        for node in nodes:
            time.sleep(interval / len(nodes))
            node.beat()


if __name__ == "__main__":
    main()
