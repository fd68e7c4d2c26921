"""A cluster of real supervisors and nodes without Spark: threads of this process feed them and ask them."""

from dataclasses import replace
from threading import Event

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.local_nodes import LocalNodes
from tests.support.backend import LoopbackBackend, PlayedStage, cluster_on
from tests.support.inprocess import ThreadJob


class LocalNodes(LocalNodes):
    """All nodes of a plan, which run beside the driver; the stage ends when each supervisor has reached it."""

    def __init__(self, plan, _on_end):
        self._placed = {number: Event() for number in plan.numbers}
        super().__init__(plan, plan.numbers, PlayedStage(self._placed.values()))

    def _detach(self, number, pipe):
        super()._detach(number, pipe)
        self._placed[number].set()


def local_cluster(program, args=None, *, nodes=None, place=LocalNodes, **settings):
    """Return a cluster whose nodes are processes beside this one; it is fed lists of partitions, which are batches."""

    def submit(function, data, on_end, chosen=None):
        return ThreadJob(function, data, on_end, slots=4, mishaps=(), chosen=chosen)

    cold = replace(nodes or tfos.Nodes(), warm_nodes=False)
    return cluster_on(LoopbackBackend(place, submit), program, args, nodes=cold, **settings)
