"""Nodes without TensorFlow and Spark, for scale.py: a process that plays some, each with a connection and a thread.

It is told on its standard input, as a pickle, which to play; it says so when all of them have been welcomed.
"""

import gc
import os
import pickle
import sys
import time
from contextlib import suppress
from threading import Semaphore, Thread

from tensorflowonspark import transport
from tensorflowonspark.messages import (
    FeedWanted,
    Heartbeat,
    Member,
    Members,
    NodeReady,
    NoMoreFeeds,
    Register,
    Returned,
    Stop,
)


class PlayedNode:
    """A supervisor with its node: its words are those of a real one, in the same order.

    Parameters
    ----------
    order : dict
        What the driver's plan says; ``returns``: whether the program ends when no feed comes.
    number : int
        Its own.
    """

    def __init__(self, order, number):
        self._order = order
        self._number = number
        self._channel = None
        self.gone = False

    def live(self, on_welcome):
        """Live from the hello to the driver's last word."""
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
            if isinstance(message, Members):
                channel.send(FeedWanted(0))
            elif isinstance(message, NoMoreFeeds) and self._order["returns"]:
                channel.send(Returned(pickle.dumps(None)))
            elif isinstance(message, Stop):
                return

    def beat(self):
        """Say that it lives, if it does."""
        if self._channel is not None and not self.gone:
            with suppress(transport.ConnectionLost):  # its own thread notices
                self._channel.send(Heartbeat())


def main():
    """Play the nodes of one cluster, until all are gone."""
    # What a real node does in a process of its own must not cost more here, where many wait for one interpreter.
    gc.disable()
    sys.setswitchinterval(1.0)
    print("ready", flush=True)
    order = pickle.load(sys.stdin.buffer)
    nodes = [PlayedNode(order, number) for number in order["numbers"]]
    welcome = Semaphore(0)
    lives = [Thread(target=node.live, args=(welcome.release,)) for node in nodes]
    for life in lives:
        life.start()
    Thread(target=_beat, args=(nodes, order["beat"]), daemon=True).start()
    for _ in nodes:
        welcome.acquire()
    print("placed", flush=True)
    for life in lives:
        life.join()


def _beat(nodes, interval):
    """Let each say once in an interval that it lives, not all at the same time: real ones start at different times."""
    while True:
        for node in nodes:
            time.sleep(interval / len(nodes))
            node.beat()


if __name__ == "__main__":
    main()
