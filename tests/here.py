"""A cluster of real supervisors and nodes without Spark: threads of this process feed and ask them."""

import tensorflowonspark as tfos
from inprocess import LoopbackBackend, Session, ThreadJob
from tensorflowonspark.driver.spark.local_nodes import LocalNodes


class NoStage:
    """In place of Spark's barrier stage, which places no node."""

    ended = True

    def problems(self):
        return []

    def data_problem(self):
        return None

    def cancel(self):
        pass

    def wait(self, seconds):
        pass


class Nodes(LocalNodes):
    """All nodes, which run beside the driver; the stage has ended when each supervisor has reached it."""

    def __init__(self, plan):
        self._placed = []
        super().__init__(plan, range(len(plan.config.spec.roles)), NoStage())

    def _see_off(self, number, pipe):
        super()._see_off(number, pipe)
        self._placed.append(number)

    @property
    def ended(self):
        return len(self._placed) == len(self._plan.config.spec.roles)


class HereBackend(LoopbackBackend):
    """In place of Spark. What it feeds are the batches of each partition."""

    def place(self, plan, data, on_end):
        return Nodes(plan)

    def feed(self, data, targets, credentials, order, on_end):
        return ThreadJob(data, targets, credentials, order, on_end, slots=4, mishaps=())


def cluster_here(program, args=None, **settings):
    """Return a cluster whose nodes are processes beside this one."""
    cluster = tfos.Cluster(Session(), program, args, **{"warm_nodes": False, **settings})
    cluster._attempts._backend = cluster._life.backend = HereBackend()
    return cluster
