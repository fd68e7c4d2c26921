"""What carries the nodes of scale.py in place of Spark: processes that play them, each a share."""

import pickle
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

from tensorflowonspark import transport

_NODES = Path(__file__).parent / "scale_nodes.py"
_NODES_PER_PROCESS = 50
_BEATS = 6  # in the time that a supervisor may be silent, as real ones


class Player:
    """A process that plays nodes."""

    def __init__(self):
        command = [sys.executable, str(_NODES)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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


class PlayedStage:
    """In place of Spark's barrier stage."""

    def __init__(self, players):
        self._players = players

    @property
    def ended(self):
        return all(player.placed.is_set() for player in self._players)

    def problems(self):
        return []

    def data_problem(self):
        return None

    def cancel(self):
        pass

    def wait(self, seconds):
        pass


class PlayedBackend:
    """In place of Spark; its processes are up before a cluster is started.

    The last node has a process of its own, so that its end can be that of a host.

    Parameters
    ----------
    count : int
        How many nodes.
    returns : bool
        Whether their programs return when no feed comes.
    """

    shares_terminal = True

    def __init__(self, count, returns):
        self._returns = returns
        firsts = range(0, count - 1, _NODES_PER_PROCESS)
        self._shares = [range(first, min(first + _NODES_PER_PROCESS, count - 1)) for first in firsts]
        self._shares.append(range(count - 1, count))
        self.players = [Player() for _ in self._shares]
        for player in self.players:
            player.wait_until_ready()

    def hadoop_settings(self):
        return {}

    def find_slots(self, needed, wanted, timeout, had=0):
        return wanted

    def wants_tls(self):
        return False

    def listen(self, credentials, on_channel):
        server = transport.Server(("127.0.0.1", 0), credentials, on_channel=on_channel)
        return server, ("127.0.0.1", server.port)

    def place(self, plan, data, on_end):
        order = {
            "address": plan.driver,
            "credentials": plan.credentials,
            "cluster": plan.cluster_id,
            "roles": plan.config.spec.roles,
        }
        order |= {"returns": self._returns, "beat": plan.config.heartbeat_timeout / _BEATS}
        for player, numbers in zip(self.players, self._shares, strict=True):
            player.play({**order, "numbers": numbers}, on_end)
        return PlayedStage(self.players)

    def close(self):
        """End the players."""
        for player in self.players:
            player.close()
