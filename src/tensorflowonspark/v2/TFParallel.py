"""The same function on each of some nodes, which have nothing to do with each other."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.run import run as run_nodes

from ._old import show_new_way
from ._program import Program, run_alone, session_of

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["run"]


def run(
    sc: "SparkContext", map_fn: Callable[[Any, Any], Any], tf_args: Any, num_executors: int, use_barrier: bool = True
) -> None:
    """Run a function on nodes of their own; return when it has returned on all of them.

    Parameters
    ----------
    sc : SparkContext
        The application.
    map_fn : callable
        ``map_fn(args, ctx)``: ``ctx.executor_id`` counts from 0 to ``ctx.num_workers`` - 1.
    tf_args : object
        Its first argument; a list also becomes ``sys.argv`` there.
    num_executors : int
        How many nodes.
    use_barrier : bool
        Not needed any more: the nodes always start together, or not at all.

    Raises
    ------
    SlotsError
        If the application has too few task slots.
    NodeError
        If the function failed on a node.
    """
    del use_barrier
    show_new_way("TFParallel.run", "tensorflowonspark.run(spark, function, args, workers=...)")
    run_nodes(session_of(sc), run_alone, Program(map_fn, tf_args), num_workers=num_executors)
