"""A training that is played to a `MetricsStore`, second by second in no time: for tests of what shows it.

``python -m tests.support.played_training`` serves its page until it is interrupted; with ``--nodes 1000`` a large one.
"""

import argparse
import math
import random
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.dashboard.service import DashboardService
from tensorflowonspark.driver.metrics import event_log
from tensorflowonspark.driver.metrics import metrics_store as store_module
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.run_clock import RunClock
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.messages import GpuUsage, Member, NodeUsage, ReportedMetrics, TrainingTotals
from tests.support.backend import LoopbackBackend

SLOW = 1  # the number of the worker that the others wait for
_STEPS, _BATCH = 40, 64
_ADVICE = (
    "waiting for other workers bounded it: worker:1 on 10.0.0.12 was busy with 1.0 cores, while the others waited for "
    "it with at most 0.4. Free its host of other work, give it as many cores as the others have, or even out their "
    "work"
)


class PlayedClock(RunClock):
    """A clock of played time; what is done in each second is played too."""

    def begin(self, tick):
        """Start no thread."""


class PlayedTraining:
    """The metrics of a training, in which one worker is slower than the others.

    Parameters
    ----------
    nodes : int
        The number of workers.
    slow : int or None
        The worker that the others wait for.
    gpus : int
        The number of GPUs of each.
    begin : float
        When it begins, in seconds since 1970.
    """

    def __init__(self, nodes=2, *, slow=SLOW, gpus=0, begin=None):
        self.seconds = 0
        self.store = MetricsStore("digits.py", PlayedClock(lambda: self._begin + self.seconds))
        self._begin = time.time() if begin is None else begin
        self._slow = slow
        self._gpus = gpus
        self._random = random.Random(1)
        roles = ClusterSpec(num_workers=nodes).roles
        self.nodes = [
            Node(
                number, role, NodeState.RUNNING, Member(number, role, f"10.0.{number // 200}.{number % 200 + 11}", 4000)
            )
            for number, role in enumerate(roles)
        ]
        self.begin_attempt(0)

    def begin_attempt(self, restarts):
        """Begin the first attempt, or another one after a failure."""
        self._totals = [[0, 0, 0.0, 0.0] for _ in self.nodes]  # steps, rows, waits for rows and for workers
        self._since = self.seconds
        with self._clock():
            self.store.begin_attempt("played", self.nodes, 0, restarts, lambda: _ADVICE if self.seconds > 20 else None)
            self.store.events.note("started", f"all nodes are up: {len(self.nodes)} workers")

    @contextmanager
    def _clock(self):
        """Let the store's clock show the time that is played."""
        now = self._begin + self.seconds
        clock = SimpleNamespace(time=lambda: now, monotonic=lambda: now)
        with mock.patch.object(store_module, "time", clock), mock.patch.object(event_log, "time", clock):
            yield

    def note(self, *event):
        """Note an event."""
        with self._clock():
            self.store.events.note(*event)

    def play(self, seconds, values=None):
        """Play some seconds; an epoch ends every tenth one.

        Parameters
        ----------
        seconds : int
            How many.
        values : callable, optional
            From an epoch's number to the metrics at its end.
        """
        for _ in range(seconds):
            self.seconds += 1
            with self._clock():
                for node in self.nodes:
                    self._play_node(node)
                self.store._add_sample()
                if self.seconds % 10 == 0:
                    self._end_epoch(self.seconds // 10 - 1, values)

    def _play_node(self, node):
        draw = self._random.uniform
        is_slow = node.number == self._slow
        totals = self._totals[node.number]
        steps = 4
        totals[0] += steps
        totals[1] += steps * _BATCH
        totals[2] += draw(0.02, 0.06)
        totals[3] += draw(0.02, 0.05) if is_slow or self._slow is None else draw(0.55, 0.65)
        training = self.seconds - self._since
        own = totals[0] % _STEPS
        self.store.take_totals(
            node,
            TrainingTotals(
                *(
                    training,
                    totals[0] // _STEPS,
                    own,
                    _STEPS,
                    totals[0],
                    totals[1],
                    260 * totals[1],
                    *totals[2:],
                    training,
                )
            ),
        )
        memory = 6.0e8 + 1e8 * math.tanh(self.seconds / 60) + draw(0, 2e7)
        gpus = tuple(GpuUsage(str(each), draw(0.7, 0.95), 14_000_000_000, 24_000_000_000) for each in range(self._gpus))
        processor = self.seconds * (1.0 if is_slow else 0.4) + draw(0, 0.1)
        self.store.take_usage(node, NodeUsage(self.seconds, processor, int(memory), gpus))
        self.store.take_lines(node, (f"step {totals[0]}: {steps} steps more",))

    def _end_epoch(self, epoch, values):
        found = values(epoch) if values else None
        if found is None:
            loss = 2.2 * math.exp(-epoch / 6) + 0.05 + self._random.uniform(0, 0.04)
            found = {
                "loss": loss,
                "accuracy": 1 - loss / 2.6,
                "val_loss": loss * 1.1 + 0.04,
                "val_accuracy": 0.97 - loss / 2.6,
            }
        record, metrics = self.store.record(0), (ReportedMetrics(epoch, found, True, 10.0),)
        self.store.take_totals(self.nodes[0], replace(record.totals or TrainingTotals(), metrics=metrics))

    def serve(self, **settings):
        """Return a dashboard that serves its page; the caller closes it."""
        config = ClusterConfig(
            ClusterSpec(num_workers=len(self.nodes)),
            b"",
            **({"page_port": 0} | settings),
        )
        return DashboardService(
            LoopbackBackend(None), config, self.store, lambda: "http://127.0.0.1:6006/", "stacks of {}".format
        )


def with_failure(training, seconds=60):
    """Play a training one worker of which fails, and that starts again."""
    training.play(seconds)
    training.note(
        "failure", "worker:0 on 10.0.0.11 was killed by SIGKILL: the host may have too little memory", "worker:0"
    )
    training.note("restart", "all nodes are started again (restart 1)")
    training.seconds += 3
    training.begin_attempt(1)
    training.play(seconds)
    return training


def main():
    """Serve the page of a played training, until it is interrupted."""
    parser = argparse.ArgumentParser(description="serve the page of a played training")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0)
    options = parser.parse_args()
    training = with_failure(PlayedTraining(options.nodes, gpus=options.gpus, begin=time.time() - 123))
    dashboard = training.serve()
    print(dashboard.url, flush=True)
    try:
        while True:
            time.sleep(1)
            training.play(1)
    finally:
        dashboard.close()


if __name__ == "__main__":
    main()
