"""Independent nodes that run the same function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.run import run as run_nodes
from tensorflowonspark.v2.deprecation import warn_deprecated
from tensorflowonspark.v2.program import Program, session_of

from .TFSparkNode import run_alone

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["run"]


def run(
    sc: "SparkContext", map_fn: Callable[[Any, Any], Any], tf_args: Any, num_executors: int, use_barrier: bool = True
) -> None:
    """Run a function on independent nodes; return when it has returned on all of them.

    Parameters
    ----------
    sc : SparkContext
        The application.
    map_fn : callable
        ``map_fn(args, ctx)``: ``ctx.executor_id`` counts from 0 to ``ctx.num_workers`` - 1.
    tf_args : object
        The first argument of `map_fn`; a list also becomes ``sys.argv`` on the nodes.
    num_executors : int
        Number of nodes.
    use_barrier : bool
        Ignored: all nodes start, or none.

    Raises
    ------
    SlotsError
        If the application has too few task slots.
    NodeError
        If the function failed on a node.
    """
    del use_barrier
    warn_deprecated("TFParallel.run", "tensorflowonspark.run(spark, function, args, num_workers=...)")
    run_nodes(session_of(sc), run_alone, Program(map_fn, tf_args), num_workers=num_executors)
