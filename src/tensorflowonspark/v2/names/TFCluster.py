"""Clusters of 2.x: start, feed, infer and shut down."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.driver.cluster import Cluster
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.settings import Nodes
from tensorflowonspark.v2.deprecation import warn_deprecated
from tensorflowonspark.v2.pickled_rows import infer, pickled_batches
from tensorflowonspark.v2.program import InputMode, Program, session_of

from .reservation import StopSwitch
from .TFSparkNode import run_in_cluster

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

__all__ = ["InputMode", "TFCluster", "run"]

_log = logging.getLogger(__name__)
_DEFAULT_EPOCHS = 10  # for num_epochs=0
_CHECK_SECONDS = 1.0  # between two looks at a streaming context


def run(  # noqa: PLR0913, PLR0917 - the signature of 2.x
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
) -> "TFCluster":
    """Start a cluster.

    Parameters
    ----------
    sc : SparkContext
        The application.
    map_fun : callable
        ``map_fun(args, ctx)``, with a `TFSparkNode.TFNodeContext`, runs on each node.
    tf_args : object
        The first argument of `map_fun`. A list also becomes ``sys.argv`` on the nodes; its ``num_gpus`` is the number
        of GPUs of a node.
    num_executors : int
        Number of nodes of all roles.
    num_ps : int
        Number of parameter servers among them.
    tensorboard : bool
        Whether TensorBoard runs beside the chief.
    input_mode : int
        The reader of the data: see `InputMode`.
    log_dir : str, optional
        TensorBoard's log directory.
    driver_ps_nodes : bool
        Whether the parameter servers run on the driver's host, where they take no task slots.
    master_node : str, optional
        ``"chief"`` or ``"master"``, if one of the nodes has that role, which programs with parameter servers need.
    reservation_timeout : float
        Seconds for Spark to find slots and for the nodes to start.
    queues : sequence of str
        Queue names for `TFCluster.train` and `DataFeed`.
    eval_node : bool
        Whether one of the nodes is an evaluator.
    release_port : bool
        Whether ``ctx.tmp_socket`` is None from the start. In both cases the node's port stays reserved for TensorFlow,
        which binds it beside the reservation; any other server binds it after ``ctx.release_port()``.

    Returns
    -------
    TFCluster
        The running cluster.

    Raises
    ------
    SpecError
        If the numbers do not add up, or an argument is invalid.
    SlotsError
        If the application has too few task slots.
    StartError
        If nodes did not start; it names them.
    """
    warn_deprecated("TFCluster.run", "tensorflowonspark.Cluster(spark, function, args, num_workers=...)")
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
    storage.use_session(session)  # for paths that the driver itself resolves, as in `TFCluster.defaultFS`
    cluster = Cluster(
        session,
        run_in_cluster,
        program,
        num_workers=workers,
        num_ps=num_ps,
        chief=bool(master_node),
        evaluator=eval_node,
        tensorboard=(log_dir or f"tensorboard_{num_ps}") if tensorboard else None,
        nodes=Nodes(hold=not is_fed, start_timeout=reservation_timeout, ps_on_driver=driver_ps_nodes),
    )
    return TFCluster(cluster.start(), sc, input_mode, program)


class TFCluster:
    """A cluster that `run` has started.

    Attributes
    ----------
    sc : SparkContext
        The application.
    defaultFS, working_dir : str
        Hadoop's default file system, and the driver's working directory.
    num_executors : int
        Number of nodes.
    nodeRDD : RDD
        The numbers of the nodes.
    cluster_id : str
        The unique id of the cluster.
    cluster_info : list of dict
        Role, host and ports of each node.
    cluster_meta, meta : dict
        Properties of the cluster; ``server_addr`` is the argument of `reservation.Client`.
    input_mode : int
        See `InputMode`.
    queues : list of str
        The nodes' queues.
    server : StopSwitch
        Its ``done`` is True once the end of a stream was requested.
    """

    def __init__(self, cluster: Cluster, sc: "SparkContext", input_mode: int, program: Program) -> None:
        self._cluster = cluster
        self._program = program
        self.sc = sc
        self.input_mode = input_mode
        self.queues = list(program.queues)
        self.num_executors = len(cluster.spec.roles)
        self.defaultFS = storage.default_fs()
        self.working_dir = program.working_dir
        self.cluster_id = cluster.id
        self.server = StopSwitch(cluster._address)
        self.cluster_meta = {
            "id": self.cluster_id,
            "default_fs": self.defaultFS,
            "working_dir": self.working_dir,
            "num_executors": self.num_executors,
            "server_addr": cluster._address,
        }
        self.meta = self.cluster_meta

    @property
    def nodeRDD(self) -> "RDD[int]":
        """An RDD of the nodes' numbers."""
        return self.sc.parallelize(range(self.num_executors), self.num_executors)

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """Role, host and ports of each node."""
        return [self._info(node) for node in self._cluster.nodes]

    def _info(self, node: Any) -> dict[str, Any]:
        url = self.tensorboard_url() if node.role == self._cluster.spec.chief_role else None
        return {
            "executor_id": node.number,
            "host": node.host,
            "job_name": self._program.job_name(str(node.role.job)),
            "task_index": node.role.index,
            "port": node.port or 0,
            "tb_pid": 0,
            "tb_port": int(url.rstrip("/").rsplit(":", 1)[1]) if url else 0,
            "addr": None,
            "authkey": None,  # a secret
        }

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed rows to the workers; return when the programs have taken them, or at once for a stream.

        Parameters
        ----------
        dataRDD : RDD, DStream or DataFrame
            Of any Python objects that pickle; of a DataFrame the workers get Rows.
        num_epochs : int
            Number of passes; 0 means 10.
        feed_timeout : float
            Seconds without progress after which the feed fails.
        qname : str
            The queue of the nodes.

        Raises
        ------
        SpecError
            If `num_epochs` is negative.
        FeedError
            If the rows can't be fed.
        NodeError
            If a node failed.
        """
        self._require_feeding("train", qname)
        if num_epochs < 0:
            raise SpecError(f"num_epochs={num_epochs}: expected 0 (which means {_DEFAULT_EPOCHS}) or more")
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: self._feed(rdd, feed_timeout, qname))
            return
        rdd = _as_rdd(dataRDD)
        self._feed(self.sc.union([rdd] * (num_epochs or _DEFAULT_EPOCHS)), feed_timeout, qname)

    def _feed(self, rdd: "RDD[Any]", feed_timeout: float, qname: str) -> None:
        if self._all_returned:
            _log.warning("the programs of all workers have returned: rows that come now are dropped")
            return
        batches = pickled_batches(rdd, qname)
        self._cluster.train(batches, cache=None, feed_timeout=feed_timeout, independent_workers=True)

    @property
    def _all_returned(self) -> bool:
        return all(node.program.returned for node in self._cluster._fed)

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> "RDD[Any]":
        """Return the RDD of the programs' results (``batch_results``): one for each row, in order.

        Spark computes it lazily, which must be before `shutdown`.

        Parameters
        ----------
        dataRDD : RDD or DataFrame
            The rows.
        feed_timeout : float
            Seconds without progress after which a partition fails.
        qname : str
            The queue of the nodes.

        Raises
        ------
        FeedError
            If the rows can't be sent to the nodes, or a program has not begun after `feed_timeout` seconds.
        """
        self._require_feeding("inference", qname)
        targets = self._cluster._answering(feed_timeout)
        return infer(_as_rdd(dataRDD), targets, self._cluster._credentials, qname, feed_timeout)

    def _require_feeding(self, verb: str, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise FeedError(
                f"cluster.{verb} needs input_mode=InputMode.SPARK: with TENSORFLOW programs read their data themselves"
            )
        if qname not in self.queues:
            raise FeedError(f"qname={qname!r}: there is no such queue; TFCluster.run was given queues={self.queues}")

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Wait until the programs of all workers have returned, then stop the cluster.

        Parameters
        ----------
        ssc : StreamingContext, optional
            The stream to wait for first; it is stopped when `reservation.Client.request_stop` asks for that.
        grace_secs : float
            Ignored: the cluster waits for the chief's work after its last batch.
        timeout : float
            Seconds after which all nodes are stopped anyway, and the call fails; -1 for none.

        Raises
        ------
        NodeError
            If a node failed.
        ClusterError
            If programs still ran after `timeout`.
        """
        del grace_secs
        try:
            if ssc is not None:
                self._wait_for_stream(ssc)
            self._cluster.shutdown(None if timeout < 0 else timeout)
        finally:
            self.server.close()

    def _wait_for_stream(self, ssc: Any) -> None:
        while not ssc.awaitTerminationOrTimeout(_CHECK_SECONDS):
            self._cluster._check()
            if self.server.done or self._all_returned:
                ssc.stop(stopSparkContext=False, stopGraceFully=True)
                return

    def tensorboard_url(self) -> str | None:
        """Return TensorBoard's URL; None if TensorBoard does not run."""
        return self._cluster.tensorboard_url


def _as_rdd(rows: Any) -> "RDD[Any]":
    found: Any = rows if hasattr(rows, "mapPartitions") and hasattr(rows, "ctx") else getattr(rows, "rdd", None)
    if found is None:
        raise FeedError(
            f"{type(rows).__name__}: expected an RDD, a DataFrame or (for train) a DStream: make one with "
            "sc.parallelize(rows) or spark.createDataFrame(rows)"
        )
    return found
