"""A process that sends hostile messages, and how much memory those have that receive them."""

import json
import subprocess
import sys
import threading

import psutil

from tests.support.paths import ROOT

_RUN = "import json, sys; from tests.support import hostile; hostile.messages(**json.load(sys.stdin))"


def attack(addresses, seed, count, token=""):
    """Start a process that sends hostile messages; return it."""
    process = subprocess.Popen([sys.executable, "-c", _RUN], stdin=subprocess.PIPE, text=True, cwd=ROOT)
    orders = {"seed": seed, "count": count, "token": token}
    process.stdin.write(
        json.dumps({**orders, "addresses": [each if isinstance(each, str) else list(each) for each in addresses]})
    )
    process.stdin.close()
    return process


class Sizes:
    """How much memory processes have at the most while this is watched, beyond what they had at its begin."""

    def __init__(self, pids):
        self._processes = [psutil.Process(pid) for pid in pids]
        self._first = [self._size(each) for each in self._processes]
        self.grown = [0.0] * len(pids)  # megabytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _size(self, process):
        return process.memory_info().rss / 2**20

    def _watch(self):
        while not self._over.wait(0.02):
            for number, process in enumerate(self._processes):
                self.grown[number] = max(self.grown[number], self._size(process) - self._first[number])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
