"""A backend without Spark: processes that simulate the nodes, each a share of them."""

import math
import pickle
import subprocess
import sys
from threading import Event, Thread

from benchmarks.common.rounds import ROOT
from tensorflowonspark.config import report_seconds
from tests.support.backend import LoopbackBackend, PlayedStage

_NODES_PER_PROCESS = 50
_MOST_PROCESSES = 20  # of more nodes each plays more
_TOTALS_SECONDS = 1.0  # between two reports of a training's totals, of real nodes too


class Player:
    """A process that plays nodes."""

    def __init__(self):
        command = [sys.executable, "-m", "benchmarks.scale.nodes"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.placed = Event()

    def wait_until_ready(self):
        """Return when it has imported what it needs."""
        self._process.stdout.readline()

    def play(self, order, on_placed):
        """Have it play nodes; `on_placed` is called when the driver has welcomed them all."""

        def listen():
            if self._process.stdout.readline():
                self.placed.set()
                on_placed()

        pickle.dump(order, self._process.stdin)
        self._process.stdin.flush()
        Thread(target=listen, daemon=True).start()

    def kill(self):
        """End it as no program can."""
        self._process.kill()

    def close(self):
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


class PlayedBackend(LoopbackBackend):
    """In place of Spark; its processes are up before a cluster is started.

    The last node has a process of its own, so that its end can be that of a host.

    Parameters
    ----------
    count : int
        How many nodes.
    returns : bool
        Whether their programs return when no feed comes.
    trains : bool
        Whether they send every second what a training sends, in place of heartbeats.
    """

    def __init__(self, count, returns, trains=False):
        super().__init__(self._start_nodes)
        self._returns = returns
        self._trains = trains
        most = max(_NODES_PER_PROCESS, math.ceil(count / _MOST_PROCESSES))
        self._shares = [range(first, min(first + most, count - 1)) for first in range(0, count - 1, most)]
        self._shares.append(range(count - 1, count))
        self.players = [Player() for _ in self._shares]
        for player in self.players:
            player.wait_until_ready()

    def _start_nodes(self, plan, on_end):
        order = {
            "address": plan.driver,
            "credentials": plan.credentials,
            "cluster": plan.cluster_id,
            "roles": plan.config.spec.roles,
        }
        beat = (
            report_seconds(_TOTALS_SECONDS, len(plan.config.spec.roles))
            if self._trains
            else plan.config.heartbeat_seconds
        )
        order |= {"returns": self._returns, "trains": self._trains, "beat": beat}
        for player, numbers in zip(self.players, self._shares, strict=True):
            player.play({**order, "numbers": numbers}, on_end)
        return PlayedStage([player.placed for player in self.players])

    def close(self):
        """End the players."""
        for player in self.players:
            player.close()
