"""A cluster, as programs of 2.x start it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.errors import SpecError

from ._cluster import TFCluster
from ._mode import InputMode
from ._old import show_new_way
from ._program import Program, run_in_cluster, session_of

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["InputMode", "TFCluster", "run"]


def run(  # noqa: PLR0913, PLR0917 - as it was
    sc: "SparkContext",
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = ("input", "output", "error"),
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start a cluster.

    Parameters
    ----------
    sc : SparkContext
        The application.
    map_fun : callable
        ``map_fun(args, ctx)``, with a `TFSparkNode.TFNodeContext`, runs on each node.
    tf_args : object
        Its first argument. A list also becomes ``sys.argv`` there; ``num_gpus`` in it says how many GPUs a node takes.
    num_executors : int
        How many nodes there are in all.
    num_ps : int
        How many of them are parameter servers.
    tensorboard : bool
        Whether TensorBoard runs beside the chief.
    input_mode : int
        Who reads the data: see `InputMode`.
    log_dir : str, optional
        TensorBoard's directory.
    driver_ps_nodes : bool
        Whether the parameter servers run on the driver's machine, and take no slots.
    master_node : str, optional
        ``"chief"`` or ``"master"``, if one of the nodes is to be that, as programs with parameter servers need it.
    reservation_timeout : float
        Seconds for Spark to find slots and for the nodes to come up.
    queues : sequence of str
        Names for `TFCluster.train` and `DataFeed`.
    eval_node : bool
        Whether one of the nodes evaluates.
    release_port : bool
        Whether ``ctx.tmp_socket`` is None from the start. In both cases the node's port stays reserved for TensorFlow,
        which binds it beside the reservation; any other server binds it after ``ctx.release_port()``.

    Raises
    ------
    SpecError
        If the numbers do not add up, or an argument can't be right.
    SlotsError
        If the application has too few task slots.
    StartError
        If nodes did not come up; it names them.
    """
    show_new_way("TFCluster.run", "tensorflowonspark.Cluster(spark, function, args, workers=...)")
    if input_mode not in (InputMode.TENSORFLOW, InputMode.SPARK):
        raise SpecError(f"input_mode={input_mode!r}: expected InputMode.TENSORFLOW or InputMode.SPARK")
    if master_node not in (None, "chief", "master"):
        raise SpecError(f"master_node={master_node!r}: expected 'chief', 'master' or None")
    is_fed = input_mode == InputMode.SPARK
    for name, wanted in (("driver_ps_nodes", driver_ps_nodes), ("eval_node", eval_node)):
        if wanted and is_fed:
            raise SpecError(f"{name}=True works with input_mode=InputMode.TENSORFLOW only")
    workers = num_executors - num_ps - bool(master_node) - bool(eval_node)
    if workers < 0 or not (workers or master_node):
        raise SpecError(
            f"num_executors={num_executors} must be num_ps={num_ps} and {bool(master_node) + bool(eval_node)} for "
            f"master_node={master_node!r} and eval_node={eval_node}, and at least one worker or master: it is "
            f"{workers:+d} workers"
        )
    program = Program(map_fun, tf_args, is_fed, master_node or "chief", tuple(queues), keeps_port=not release_port)
    session = session_of(sc)
    storage.use_session(session)  # for what the driver itself says of places: `TFCluster.defaultFS`
    cluster = Cluster(
        session,
        run_in_cluster,
        program,
        num_workers=workers,
        num_ps=num_ps,
        chief=bool(master_node),
        evaluator=eval_node,
        hold=not is_fed,
        tensorboard=(log_dir or f"tensorboard_{num_ps}") if tensorboard else None,
        start_timeout=reservation_timeout,
        ps_on_driver=driver_ps_nodes,
    )
    return TFCluster(cluster.start(), sc, input_mode, program)
