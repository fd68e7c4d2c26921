"""The address of a host, and the environment of a process that runs TensorFlow alone."""

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

_REMOTE = ("192.0.2.1", 9)  # an address reserved for documentation (RFC 5737); no packet is sent


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Prepare this process for TensorFlow without a cluster: set its visible GPUs and remove ``TF_CONFIG``.

    Call it before TensorFlow looks for GPUs. A task with GPUs from Spark sees these; any other process sees free GPUs
    of the host that no other node takes.

    Parameters
    ----------
    num_gpus : int
        Number of GPUs that it sees, if the host has any.
    worker_index : int
        The index of this process in `nodes`; without `nodes`, its position among the processes on this host.
    nodes : sequence of str
        The addresses of all such processes, as in ``"10.0.0.1"`` or ``"10.0.0.1:4000"``.

    Raises
    ------
    RequirementError
        If the host has GPUs, but too few free ones.
    SpecError
        If `worker_index` is no index of `nodes`.
    """
    os.environ.pop("TF_CONFIG", None)
    position, peers = _position_on_host(worker_index, nodes) if nodes and worker_index >= 0 else (worker_index, 0)
    gpus = _gpus_of_task() or _choose(num_gpus, position, peers)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: max(0, num_gpus)])


def _position_on_host(worker_index: int, nodes: Sequence[str]) -> tuple[int, int]:
    """Return a node's position among the nodes on its host, and their number.

    Examples
    --------
    >>> _position_on_host(2, ["10.0.0.10:1", "10.0.0.1:1", "10.0.0.1:2"])
    (1, 2)
    """
    if worker_index >= len(nodes):
        raise SpecError(f"worker_index={worker_index}: there are {len(nodes)} nodes, counted from 0")
    hosts = [_host(node) for node in nodes]  # compared whole: 10.0.0.1 is not 10.0.0.10
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


def _gpus_of_task() -> tuple[str, ...]:
    """Return the GPUs that Spark assigned to the current task, if any."""
    if "pyspark" not in sys.modules:
        return ()
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context else {}
    return task_gpus(resources) if "gpu" in resources else ()


@cache  # a Python worker of Spark runs several tasks, and would find its own GPUs in use
def _choose(num_gpus: int, position: int, peers: int) -> tuple[str, ...]:
    """Return GPUs for the process at a position among `peers` on this host; 0 means an unknown number."""
    gpus = all_gpus() if num_gpus > 0 else ()
    if not gpus:
        return ()
    if peers > 1:  # each chooses from its own share, as the free ones depend on the order of the processes
        return tuple(take(num_gpus, gpus[position::peers], f"node {position} of {peers}"))
    return tuple(get_gpus(num_gpus, -1 if peers else position, AS_LIST))


def get_ip_address() -> str:
    """Return the address at which other machines reach this one.

    It is ``SPARK_LOCAL_IP`` if that is set, else the address from which this machine sends packets.
    """
    if given := configured_address():
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_REMOTE)
            return str(probe.getsockname()[0])
        except OSError:  # no route to other machines
            return socket.gethostbyname(socket.gethostname())
