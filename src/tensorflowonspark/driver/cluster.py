"""The cluster, as the user's program in the driver sees it."""

import pickle
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import cloudpickle

from tensorflowonspark.driver.backend import SparkBackend
from tensorflowonspark.driver.feeding import check_frame, fed_parts, seals
from tensorflowonspark.driver.lifetime import GRACE_SECONDS, Lifetime, Settings
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.watcher import parse_level
from tensorflowonspark.errors import ClusterError, FeedError, SpecError
from tensorflowonspark.messages import NoMoreFeeds, PartSummary
from tensorflowonspark.spec import ClusterSpec
from tensorflowonspark.task.plan import FeedTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Cluster", "run"]

_CAUSE_SECONDS = 1.0  # for a node's failure to be told after a job of ours failed of it
_STAGE_SECONDS = 600.0  # for Spark to find slots and start the tasks (2.x: reservation_timeout)

Function = Callable[[Any, Any], Any]


class Cluster:
    """A TensorFlow cluster on the executors of a Spark application.

    The user's function runs in a process of its own on each node; TensorFlow finds its cluster in ``TF_CONFIG``. Used
    with ``with``, the cluster starts at the block's begin, and at its end waits for the function to return on all
    nodes that train. If the block raises, all nodes are ended at once.

    Parameters
    ----------
    spark : SparkSession
        The application whose executors carry the nodes.
    function : callable
        ``function(args, ctx)``, with a `Context`. It is shipped by cloudpickle; modules that it imports must be
        installed on the executors, or shipped with Spark's ``--py-files``.
    args : object
        What the function gets as its first argument: anything that pickles.
    workers, ps, chief, evaluator
        The nodes, as for `ClusterSpec`.
    hold : bool
        Whether each node keeps its Spark task's slot for as long as it runs. For programs that read their data
        themselves; a cluster that is fed by ``train`` needs the slots for that.
    tensorboard : str
        A log directory: TensorBoard is started beside the chief, for the cluster's life.
    environment : mapping
        Environment variables for the nodes, set before anything is imported there (as ``KERAS_BACKEND``).
    log_level : str or int
        Lines of the nodes' output below this logging level don't reach the driver.
    start_timeout : float
        Seconds for Spark to find free slots and for the nodes to come up.

    Raises
    ------
    SpecError
        If the counts can't be right.

    Examples
    --------
    >>> def program(args, ctx):
    ...     return f"{ctx.role} of {ctx.num_workers} got {args}"
    >>> with Cluster(spark, program, "this", workers=2) as cluster:
    ...     cluster.join()
    {'worker:0': 'worker:0 of 2 got this', 'worker:1': 'worker:1 of 2 got this'}
    """

    def __init__(  # noqa: PLR0913 - all but the first three are settings that are named at the call
        self,
        spark: "SparkSession",
        function: Function,
        args: Any = None,
        *,
        workers: int = 1,
        ps: int = 0,
        chief: bool = False,
        evaluator: bool = False,
        hold: bool = False,
        tensorboard: str = "",
        environment: Mapping[str, str] | None = None,
        log_level: str | int = "INFO",
        start_timeout: float = _STAGE_SECONDS,
    ) -> None:
        self.spec = ClusterSpec(workers=workers, ps=ps, chief=chief, evaluator=evaluator)
        self._hold = hold
        settings = Settings(
            spec=self.spec,
            program=_pickled_program(function, args),
            hold=hold,
            tensorboard=tensorboard,
            environment={str(name): str(value) for name, value in (environment or {}).items()},
            level=parse_level(log_level),
            start_timeout=start_timeout,
        )
        self._life = Lifetime(SparkBackend(spark), settings)
        self._monitor = self._life.monitor
        self._data: DataFrame | None = None
        self._feeds = 0  # that were sealed

    # ---- life

    def start(self) -> "Cluster":
        """Bring all nodes up; return when their programs start.

        Raises
        ------
        SlotsError
            If the application has too few task slots.
        StartError
            If nodes did not come up; it names them.
        NodeError
            If a node failed at once.
        """
        self._life.start(self._data)
        return self

    def shutdown(self) -> dict[str, Any]:
        """Wait for the programs of all nodes that train, then end all nodes; return what `join` returns.

        A second call does nothing but return the same.

        Raises
        ------
        NodeError
            If a node failed since.
        """
        try:
            results = self.join()
        except BaseException:
            self._life.abort()
            raise
        self._life.close(GRACE_SECONDS)
        return results

    def __enter__(self) -> "Cluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self._life.abort()

    # ---- use

    def train(self, data: "DataFrame") -> None:
        """Feed a DataFrame to the workers; return when their programs are done with it.

        A program is done with a feed when it asks for the next or returns. Partitions go to workers on the same host
        where there are any.

        Parameters
        ----------
        data : DataFrame
            Its columns may be numbers, booleans, strings, binary, and arrays of these.

        Raises
        ------
        FeedError
            If the DataFrame can't be fed, or Spark failed to compute it.
        NodeError
            If a node failed.
        """
        self._check_feedable(data)
        feed = self._feeds
        nodes = self._monitor.fed()
        targets = tuple(FeedTarget(node.number, str(node.role), node.host, node.ready) for node in nodes)
        self._life.feeding = job = self._life.backend.feed(
            data, targets, self._life.token, feed, on_end=self._monitor.wake
        )
        try:
            self._monitor.wait(lambda: job.ended or all(node.returned for node in nodes) or self._serving() != [])
            self._refuse_serving()
            if job.ended:
                if job.error is not None:
                    # A node's death ends the job too, and says more; it may be told a moment later.
                    self._monitor.wait(lambda: False, _CAUSE_SECONDS)
                self._seal(feed, fed_parts(job))
                self._feeds += 1  # a feed that failed leaves its number, for which the programs wait, to the next
                self._monitor.wait(
                    lambda: all(node.feed_wanted > feed or node.returned for node in nodes) or self._serving() != []
                )
                self._refuse_serving()
        finally:
            job.cancel()
            self._life.feeding = None
            self._life.watcher.close()

    def _check_feedable(self, data: "DataFrame") -> None:
        if not self._life.running:
            raise ClusterError("the cluster is not running: use it inside its with block, or after start()")
        if self._hold:
            raise FeedError("a cluster with hold=True keeps the slots that feeding needs: leave it out, or use run()")
        self._refuse_serving()
        over = [str(node.role) for node in self._monitor.fed() if node.returned]
        if over:
            raise FeedError(
                f"the program of {', '.join(over)} has already returned: to take several feeds, let it loop over "
                "ctx.feeds()"
            )
        check_frame(data)

    def _serving(self) -> list[str]:
        return [str(node.role) for node in self._monitor.fed() if node.serving]

    def _refuse_serving(self) -> None:
        serving = ", ".join(self._serving())
        if serving:
            raise FeedError(
                f"{serving} serves a ParameterServerStrategy (ctx.join_server) and asks for no rows: "
                "read the data in the chief's program"
            )

    def _seal(self, feed: int, parts: list[PartSummary]) -> None:
        for number, seal in seals(feed, parts, [node.number for node in self._monitor.fed()]).items():
            self._monitor.tell(number, seal)

    def _seal_held_feed(self) -> None:
        """Seal the one feed of a held stage, when every task has fed its node."""
        nodes = self._monitor.fed()
        self._monitor.wait(lambda: all(node.stored for node in nodes))
        self._seal(0, [node.stored for node in nodes if node.stored])

    def join(self) -> dict[str, Any]:
        """Wait until the function has returned on all nodes that train and do not serve others.

        No further feed comes after this: a program that waits for one goes on without.

        Returns
        -------
        dict
            What the function returned, by the node's name.

        Raises
        ------
        NodeError
            If a node failed.
        """
        if not self._life.started:
            raise ClusterError("the cluster is not running: use it inside its with block, or after start()")
        self._monitor.tell_all(NoMoreFeeds())
        trainers = self._monitor.trainers()
        self._monitor.wait(lambda: all(node.returned or node.serving for node in trainers))
        return {str(node.role): _result(node) for node in trainers if node.returned}

    @property
    def tensorboard_url(self) -> str | None:
        """Where TensorBoard answers; None if it was not asked for or is not up yet."""
        return self._monitor.tensorboard_url

    @property
    def nodes(self) -> list[Node]:
        """What is known of each node."""
        return self._monitor.nodes


def run(
    spark: "SparkSession",
    function: Function,
    args: Any = None,
    *,
    data: "DataFrame | None" = None,
    **settings: Any,
) -> dict[str, Any]:
    """Run a function on a cluster until it has returned everywhere: for one data set, or none.

    The nodes hold their Spark tasks; with `data`, each task feeds its own node from its own partition.

    Parameters
    ----------
    spark, function, args
        As for `Cluster`.
    data : DataFrame, optional
        What is fed; it is divided evenly over the workers. Only for clusters of workers.
    **settings
        All other settings of `Cluster`.

    Returns
    -------
    dict
        What the function returned, by the node's name.

    Raises
    ------
    ClusterError
        As `Cluster` does.

    Examples
    --------
    >>> run(spark, lambda args, ctx: args + ctx.index, 10, workers=2)
    {'worker:0': 10, 'worker:1': 11}
    """
    cluster = Cluster(spark, function, args, **settings, hold=True)
    if data is not None:
        if len(cluster.spec.roles) != len(cluster.spec.fed):
            raise SpecError(f"run(data=...) feeds every node, and not all are workers in {cluster.spec}: use Cluster")
        check_frame(data)
        cluster._data = data
    with cluster:
        if data is not None:
            cluster._seal_held_feed()
    return cluster.join()


def _result(node: Node) -> Any:
    try:
        return pickle.loads(node.result)
    except Exception as error:
        raise ClusterError(
            f"what the program returned on {node.role} can't be read in the driver ({type(error).__name__}: {error}): "
            "return numbers or numpy arrays, or install here what it needs"
        ) from error


def _pickled_program(function: Function, args: Any) -> bytes:
    if not callable(function):
        raise SpecError(f"function={function!r}: expected a function of (args, ctx)")
    try:
        return bytes(cloudpickle.dumps((function, args)))
    except Exception as error:
        raise SpecError(
            f"the function or its args can't be shipped to the nodes: {error}. Open connections, sessions and models "
            "belong inside the function"
        ) from error
