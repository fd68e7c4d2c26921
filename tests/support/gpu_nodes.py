"""A cluster without Spark whose nodes are offered the GPUs of this machine, as a task offers them."""

from tensorflowonspark.task.gpus import free_gpus
from tensorflowonspark.task.launch import LaunchPlan
from tests.support import local_cluster


class _Offered(LaunchPlan):
    """A plan of which each node is offered the GPUs on which no process runs."""

    def assignment(self, number, host, owner, gpus=(), nodes_here=1):
        return super().assignment(number, host, owner, free_gpus(), nodes_here)


class _GpuNodes(local_cluster.LocalNodes):
    def __init__(self, plan, on_end):
        super().__init__(_Offered(**vars(plan)), on_end)


def gpu_cluster(program, args=None, **settings):
    """Return a cluster of workers on JAX, which are processes beside this one and have its GPUs."""
    environment = {"KERAS_BACKEND": "jax", **settings.pop("env", {})}
    return local_cluster.local_cluster(program, args, env=environment, place=_GpuNodes, **settings)
