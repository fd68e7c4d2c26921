"""A cluster of real supervisors and nodes without Spark: threads of this process feed them and ask them."""

from threading import Event

from tensorflowonspark.driver.spark.local_nodes import LocalNodes
from tests.support.backend import LoopbackBackend, PlayedStage, cluster_on
from tests.support.inprocess import ThreadJob


class LocalNodes(LocalNodes):
    """All nodes of a plan, which run beside the driver; the stage ends when each supervisor has reached it."""

    def __init__(self, plan, _on_end):
        self._placed = [Event() for _ in plan.spec.roles]
        super().__init__(plan, range(len(plan.spec.roles)), PlayedStage(self._placed))

    def _see_off(self, number, pipe):
        super()._see_off(number, pipe)
        self._placed[number].set()


def local_cluster(program, args=None, **settings):
    """Return a cluster whose nodes are processes beside this one; it is fed lists of partitions, which are batches."""

    def feed(data, targets, credentials, order, on_end):
        return ThreadJob(data, targets, credentials, order, on_end, slots=4, mishaps=())

    return cluster_on(LoopbackBackend(LocalNodes, feed), program, args, **{"warm_nodes": False, **settings})
