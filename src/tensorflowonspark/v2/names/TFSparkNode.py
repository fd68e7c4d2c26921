"""Nodes of 2.x: the context of a program, and the functions that run the program on a node."""

import json
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflowonspark.supervisor.host import hold_port
from tensorflowonspark.v2.deprecation import removed_names
from tensorflowonspark.v2.inlet import Inlet
from tensorflowonspark.v2.program import Program

from . import TFNode

if TYPE_CHECKING:
    from tensorflowonspark.node.context import Context

__all__ = ["TFNodeContext"]


class TFNodeContext:
    """The second argument of a program.

    Attributes
    ----------
    executor_id, worker_num : int
        The node's number, from 0: first the parameter servers, then chief or master, evaluator and workers.
    job_name : str
        ``"ps"``, ``"chief"`` (or ``"master"``, if `TFCluster.run` was given that name), ``"evaluator"`` or
        ``"worker"``.
    task_index : int
        The node's number within its job.
    cluster_spec : dict
        ``host:port`` of all nodes, by job.
    num_workers : int
        Number of nodes that train.
    defaultFS : str
        The URL of Hadoop's default file system.
    working_dir : str
        The driver's working directory, where relative paths begin.
    mgr : object
        The source of a `DataFeed`'s rows.
    tmp_socket : socket or None
        Holds the node's port until `release_port`, if `TFCluster.run` was given ``release_port=False``.
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
        """Return the state to pickle: only the node's own process releases its port."""
        return {**self.__dict__, "_release": None}

    def absolute_path(self, path: str) -> str:
        """Return a path as a URL of Hadoop's default file system; see `TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: dict[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the rows that Spark feeds to this node; see `TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Release the node's port: when this returns, the program or a child of it can bind it."""
        self._close_port()
        if self._release is not None and self._owner == os.getpid():
            self._release()

    def _close_port(self) -> None:
        """Close this process's socket on the node's port."""
        if self.tmp_socket is not None:
            self.tmp_socket.close()
            self.tmp_socket = None

    start_cluster_server = staticmethod(TFNode.start_cluster_server)
    export_saved_model = staticmethod(TFNode.export_saved_model)


def run_in_cluster(program: Program, ctx: "Context") -> None:
    """Run a program on a node of a cluster."""
    inlet = Inlet(ctx, program.queues) if program.is_fed and ctx.role in ctx.spec.fed else None
    own = TFNodeContext(
        executor_id=ctx.spec.roles.index(ctx.role),
        job_name=program.job_name(ctx.job),
        task_index=ctx.index,
        cluster_spec={program.job_name(name): list(nodes) for name, nodes in ctx.cluster.items()},
        defaultFS=ctx.default_fs,
        working_dir=program.working_dir,
        mgr=inlet,
        tmp_socket=hold_port(int(ctx.cluster[ctx.job][ctx.index].rsplit(":", 1)[1])) if program.keeps_port else None,
    )
    own._release = ctx.release_port
    # Keras and TensorFlow of 2.x's time recognize a cluster by this entry.
    os.environ["TF_CONFIG"] = json.dumps({**json.loads(os.environ["TF_CONFIG"]), "environment": "cloud"})
    ctx._report_server_join()
    try:
        program.call(own)
    finally:
        own._close_port()
    if inlet is not None:  # not after a failure: the feed then ends with the node's error
        inlet.close()


def run_alone(program: Program, ctx: "Context") -> None:
    """Run a program on a node of its own."""
    os.environ.pop("TF_CONFIG", None)
    own = TFNodeContext(executor_id=ctx.index, defaultFS=ctx.default_fs, working_dir=program.working_dir)
    own.num_workers = len(ctx.spec.trainers)
    program.call(own)


__getattr__ = removed_names(__name__, "TFCluster.run")
