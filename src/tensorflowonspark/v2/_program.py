"""What runs on a node of a cluster of 2.x: its program, with the surroundings that it knows."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorflowonspark.config import Job
from tensorflowonspark.node.forks import children_end_here

from ._inlet import Inlet
from ._servers import tell_of_servers
from .TFSparkNode import TFNodeContext, held_port, limit_gpus

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tensorflowonspark.node.context import Context

__all__ = ["Program", "renamed", "run_alone", "run_in_cluster", "session_of"]


@dataclass(frozen=True)
class Program:
    """A function of ``(args, ctx)``, and how its node is to be."""

    function: Callable[[Any, Any], Any]
    args: Any
    is_fed: bool = False
    master: str = Job.CHIEF.value  # what the program calls the chief
    queues: tuple[str, ...] = field(default=())
    keeps_port: bool = False
    # Where a relative path begins, on all nodes: 2.x took the driver's, on a file system that all share.
    working_dir: str = field(default_factory=os.getcwd)


def run_in_cluster(program: Program, ctx: "Context") -> None:
    """Run on a node of a cluster (called there)."""
    job = renamed(ctx.job, program.master)
    inlet = Inlet(ctx, program.queues) if program.is_fed and ctx.role in ctx.spec.fed else None
    seen = TFNodeContext(
        executor_id=ctx.spec.roles.index(ctx.role),
        job_name=job,
        task_index=ctx.index,
        cluster_spec={renamed(name, program.master): list(nodes) for name, nodes in ctx.cluster.items()},
        defaultFS=ctx.default_fs,
        working_dir=program.working_dir,
        mgr=inlet,
        tmp_socket=held_port(ctx.cluster[ctx.job][ctx.index]) if program.keeps_port else None,
    )
    seen._release = ctx.release_port
    # What Keras and TensorFlow of 2.x's time looked for, to tell a cluster from one machine.
    os.environ["TF_CONFIG"] = json.dumps({**json.loads(os.environ["TF_CONFIG"]), "environment": "cloud"})
    tell_of_servers(ctx._report_serving)
    try:
        _call(program, seen)
    finally:
        seen.close_port()
    if inlet is not None:  # rows that a program which failed has left are owed still: the feed ends by its error
        inlet.close()


def run_alone(program: Program, ctx: "Context") -> None:
    """Run on a node that has nothing to do with the others (called there)."""
    os.environ.pop("TF_CONFIG", None)
    seen = TFNodeContext(executor_id=ctx.index, defaultFS=ctx.default_fs, working_dir=program.working_dir)
    seen.num_workers = len(ctx.spec.trainers)
    _call(program, seen)


def _call(program: Program, ctx: TFNodeContext) -> None:
    if isinstance(program.args, list):
        sys.argv = program.args  # for programs that parse it again on each node
    limit_gpus(_num_gpus(program.args))
    try:
        with children_end_here():
            program.function(program.args, ctx)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _num_gpus(args: Any) -> Any:
    return args.get("num_gpus") if isinstance(args, dict) else getattr(args, "num_gpus", None)


def session_of(sc: "SparkContext") -> "SparkSession":
    """Return the session of an application that has only a context."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession(sc)


def renamed(job: str, master: str) -> str:
    """Return a job as the program calls it."""
    return master if job == Job.CHIEF.value else job
