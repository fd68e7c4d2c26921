"""What a process needs to know of its host before it starts TensorFlow."""

import os
import socket
import sys
from collections.abc import Sequence
from functools import cache

from tensorflowonspark.errors import SpecError
from tensorflowonspark.supervisor.host import configured_address
from tensorflowonspark.task.gpus import all_gpus, task_gpus

from .gpu_info import AS_LIST, get_gpus, take

__all__ = ["get_ip_address", "single_node_env"]

_ELSEWHERE = ("192.0.2.1", 9)  # kept for documentation, so that nobody has it; no packet is sent either


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Prepare this process for TensorFlow alone, without a cluster: which GPUs it sees, and no ``TF_CONFIG``.

    Call it before TensorFlow looks for GPUs. A task to which Spark gave GPUs sees these; others see GPUs of the host
    that are not in use, and that none of the other nodes takes.

    Parameters
    ----------
    num_gpus : int
        How many it is to see, if the host has any.
    worker_index : int
        Which of `nodes` this process is; without any, its position among those on this host.
    nodes : sequence of str
        The addresses of all processes that do the same, as in ``"10.0.0.1"`` or ``"10.0.0.1:4000"``.

    Raises
    ------
    EnvironmentNotReady
        If the host has GPUs, but too few that are free.
    SpecError
        If there is no such node.
    """
    os.environ.pop("TF_CONFIG", None)
    position, peers = _place(worker_index, nodes) if nodes and worker_index >= 0 else (worker_index, 0)
    gpus = _given_by_spark() or _chosen(num_gpus, position, peers)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: max(0, num_gpus)])


def _place(worker_index: int, nodes: Sequence[str]) -> tuple[int, int]:
    """Return a node's position among those on its host, and how many these are.

    Examples
    --------
    >>> _place(2, ["10.0.0.10:1", "10.0.0.1:1", "10.0.0.1:2"])
    (1, 2)
    """
    if worker_index >= len(nodes):
        raise SpecError(f"worker_index={worker_index}: there are {len(nodes)} nodes, counted from 0")
    hosts = [_host(node) for node in nodes]  # compared as a whole: 10.0.0.1 is not 10.0.0.10
    own = hosts[worker_index]
    return hosts[:worker_index].count(own), hosts.count(own)


def _host(address: str) -> str:
    """Return an address without its port.

    Examples
    --------
    >>> [_host(each) for each in ("10.0.0.1:4000", "[::1]:4000", "::1", "h7")]
    ['10.0.0.1', '::1', '::1', 'h7']
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address if address.count(":") > 1 else address.partition(":")[0]


def _given_by_spark() -> tuple[str, ...]:
    """Return the GPUs that Spark gave to the task in which this is called, if it knows any."""
    if "pyspark" not in sys.modules:
        return ()
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context else {}
    return task_gpus(resources) if "gpu" in resources else ()


@cache  # Spark's Python workers do one task after the other, and find in use what they took themselves
def _chosen(num_gpus: int, position: int, peers: int) -> tuple[str, ...]:
    """Return GPUs of the host for one of some processes on it; 0 means that nobody knows how many these are."""
    gpus = all_gpus() if num_gpus > 0 else ()
    if not gpus:
        return ()
    if peers > 1:  # each has its own to choose from: which are free depends on who has come first
        return tuple(take(num_gpus, gpus[position::peers], f"node {position} of {peers}"))
    return tuple(get_gpus(num_gpus, -1 if peers else position, AS_LIST))


def get_ip_address() -> str:
    """Return the address of this machine at which other machines reach it.

    That is ``SPARK_LOCAL_IP``, if the host's administrator has set it, or the one from which this machine would send.
    """
    if given := configured_address():
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:  # no way leads out of this machine
            return socket.gethostbyname(socket.gethostname())
