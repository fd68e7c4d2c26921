"""A backend without Spark: it grants slots and listens on loopback; nodes and feeding jobs are given to it.

The tests of the driver give it nodes that follow a script (`tests.support.scripted`), those of data threads that run
programs (`tests.support.inprocess`), those of failures real processes (`tests.support.local_cluster`), and the
benchmark of scale processes that each play fifty nodes.
"""

import time

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.driver.spark.jobs import Stage
from tensorflowonspark.driver.spark.lost_executors import LostExecutor
from tensorflowonspark.driver.spark.slots import ApplicationSlots


class PlayedStage(Stage):
    """In place of Spark's barrier stage: it ends when all nodes are placed, or when one can't be.

    Parameters
    ----------
    placed : sequence of threading.Event
        One for each node, or for each group of nodes.
    problems : list of str
        Why nodes can't be placed.
    """

    def __init__(self, placed, problems=()):
        self._placed = placed
        self._problems = list(problems)

    @property
    def ended(self):
        return bool(self._problems) or all(event.is_set() for event in self._placed)

    def problems(self):
        return self._problems


class LoopbackBackend(Backend):
    """In place of Spark.

    Parameters
    ----------
    place : callable
        Takes a plan and a function to call at the end of the stage; starts the nodes, returns the stage.
    submit : callable, optional
        Takes the function of the job's tasks, the partitions, a function to call at the job's end and, where nodes are
        restarted alone, one that tells whether a partition is computed; returns the job.
    slots : int, optional
        How many task slots it has; by default as many as are asked for.
    """

    shares_terminal = True

    def __init__(self, place, submit=None, slots=None):
        self._place = place
        self._submit = submit
        self.slots = slots
        self.preempted = set()
        self.lost = {}  # why Spark has lost executors, and
        self.reason_seconds = 0.0  # when it knows that

    def find_slots(self, needed, wanted, timeout, had=0):
        return wanted if self.slots is None else min(wanted, self.slots)

    def reservation(self):
        return ApplicationSlots(None).reservation()

    def why_lost(self, executor, others=()):
        time.sleep(self.reason_seconds)
        lost = {**self.lost, **dict.fromkeys(self.preempted, "Executor decommission: it is taken")}
        return [LostExecutor(each, lost[each]) for each in (executor, *others) if each in lost]

    def place(self, plan, data, on_end):
        return self._place(plan, on_end)

    def submit(self, function, data, description, on_end, chosen=None):
        if chosen is None:
            return self._submit(function, data, on_end)
        return self._submit(function, data, on_end, chosen)


class Session:
    """What a cluster needs of a Spark session before its backend is exchanged."""

    sparkContext = None  # noqa: N815 - pyspark's name


def cluster_on(backend, program=None, args=None, **settings):
    """Return a cluster that a backend carries; it is not started yet."""
    cluster = tfos.Cluster(Session(), program or (lambda args, ctx: None), args, **settings)
    return tfos.Cluster._on_backend(backend, cluster._config)
