"""The node, as a program of 2.x sees it."""

import os
import socket
from collections.abc import Callable
from typing import Any

from tensorflowonspark.supervisor.host import hold_port

from . import TFNode
from ._old import gone_names

__all__ = ["TFNodeContext"]


class TFNodeContext:
    """What a program gets as its second argument.

    Attributes
    ----------
    executor_id, worker_num : int
        The node's number, from 0: first the parameter servers, then chief or master, evaluator and workers.
    job_name : str
        ``"ps"``, ``"chief"`` (or ``"master"``, if the cluster was asked for one), ``"evaluator"`` or ``"worker"``.
    task_index : int
        Its number within the job.
    cluster_spec : dict
        ``host:port`` of all nodes, by job.
    num_workers : int
        How many nodes train.
    defaultFS : str
        The URL of Hadoop's default file system.
    working_dir : str
        The driver's working directory, where relative paths begin.
    mgr : object
        What a `DataFeed` gets its rows from.
    tmp_socket : socket or None
        Holds the node's port, until `release_port`, where ``TFCluster.run`` was told ``release_port=False``.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: dict[str, list[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        self.worker_num = self.executor_id = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = cluster_spec or {}
        self.num_workers = sum(len(self.cluster_spec.get(job, ())) for job in ("master", "chief", "worker"))
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = tmp_socket
        self._release: Callable[[], None] | None = None  # frees the port, which the supervisor reserves
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be pickled: only the node's own process releases its port."""
        return {**self.__dict__, "_release": None}

    def absolute_path(self, path: str) -> str:
        """Return a path as a URL of Hadoop's default file system: `TFNode.hdfs_path` says how."""
        return TFNode.hdfs_path(self, path)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: dict[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the rows that Spark feeds to this node: `TFNode.DataFeed` says how."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Release the node's port: when this returns, the program or a child of it can bind it."""
        self.close_port()
        if self._release is not None and self._owner == os.getpid():
            self._release()

    def close_port(self) -> None:
        """Close this process's own hold of the node's port."""
        if self.tmp_socket is not None:
            self.tmp_socket.close()
            self.tmp_socket = None

    start_cluster_server = staticmethod(TFNode.start_cluster_server)
    export_saved_model = staticmethod(TFNode.export_saved_model)


def held_port(address: str) -> socket.socket:
    """Return a socket that holds a node's port beside its supervisor's."""
    return hold_port(int(address.rsplit(":", 1)[1]))


def limit_gpus(wanted: Any) -> None:
    """Let this process use so many of the node's GPUs, as ``args.num_gpus`` says."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        own = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own[:wanted])


__getattr__ = gone_names(__name__, "TFCluster.run")
