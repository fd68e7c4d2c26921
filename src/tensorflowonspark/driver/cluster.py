"""The cluster, as the user's program in the driver sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tensorflowonspark.columns import require_frame
from tensorflowonspark.config import ClusterSpec, RestartPolicy
from tensorflowonspark.driver.attempt import GRACE_SECONDS, ClusterAttempt, ClusterConfig
from tensorflowonspark.driver.console import parse_level
from tensorflowonspark.driver.feed.inference import infer, wait_for_answers
from tensorflowonspark.driver.feed.job import check_frame, node_endpoints
from tensorflowonspark.driver.feed.session import FeedSession, FeedSettings
from tensorflowonspark.driver.feed.streamed import StreamedFeed
from tensorflowonspark.driver.feed.structured_streaming import StreamingFeed
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.program import Function, pickled_program, positive, range_of, result_of
from tensorflowonspark.driver.restart import RestartController
from tensorflowonspark.driver.spark.backend import Backend, SparkBackend
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.errors import ClusterError, FeedError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode
from tensorflowonspark.messages import NoMoreFeeds
from tensorflowonspark.task.feeder import FeedSpec
from tensorflowonspark.transport import Credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Cluster", "Function"]

_SILENCE_SECONDS = 30.0
_STAGE_SECONDS = 600.0  # for Spark to find slots and start the tasks

_Run = TypeVar("_Run", bound=FeedSession)


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
    num_workers, num_ps, chief, evaluator
        The nodes, as for `ClusterSpec`. `num_workers` may be a pair, the least and the most, as in ``(2, 8)``: then the
        cluster takes what there are slots for when it starts, and anew at each restart. A batch has as many rows
        over all workers in any case.
    hold : bool
        Whether each node keeps its Spark task's slot for as long as it runs. For programs that read their data
        themselves; a cluster that is fed by ``train`` needs the slots for that.
    tensorboard : str
        A log directory, on any file system (`Context.log_directory`): TensorBoard is started beside the chief, for
        the cluster's life.
    env : mapping
        Environment variables for the nodes, set before anything is imported there (as ``KERAS_BACKEND``).
    log_level : str or int
        Lines of the nodes' output below this logging level don't reach the driver.
    silence_timeout : float
        Seconds without a sign of life after which a node is given up: its process is stopped, its host is gone, or
        nothing in the training moves any more. A node that uses the processor, or waits for rows or files, lives.
    restarts : RestartPolicy or int
        How often the nodes are started again when one has failed, and after which failures; a number is that of a
        `RestartPolicy` with its other defaults. What `train` was given since the last checkpoint is fed again.
    start_timeout : float
        Seconds to wait for executors that the cluster manager was asked for, at the start and at each restart, and
        as many for the nodes to come up then.
    ps_on_driver : bool
        Whether the parameter servers run on the driver's machine, and take no slots.
    warm_nodes : bool
        Whether executors keep a process that has imported TensorFlow, once a node has, and from which nodes that start
        later are forked: in about a second instead of the seconds which the import takes. It has about 300 MB of
        memory of its own, and ends with the application, or ten minutes after its last cluster. Where forking is not
        safe, as with GPUs, and for nodes whose `env` or modules differ, nodes start as if it was not there.
    tls : bool, optional
        Whether what driver, tasks and nodes send to other hosts is encrypted; by default if Spark's settings ask for
        that. What TensorFlow sends is not: see docs/security.md.

    Raises
    ------
    SpecError
        If the counts can't be right.

    Examples
    --------
    >>> def program(args, ctx):
    ...     return f"{ctx.role} of {ctx.num_workers} got {args}"
    >>> with Cluster(spark, program, "this", num_workers=2) as cluster:
    ...     cluster.join()
    {'worker:0': 'worker:0 of 2 got this', 'worker:1': 'worker:1 of 2 got this'}
    """

    def __init__(  # noqa: PLR0913 - all but the first three are settings that are named at the call
        self,
        spark: "SparkSession",
        function: Function,
        args: Any = None,
        *,
        num_workers: int | tuple[int, int] = 1,
        num_ps: int = 0,
        chief: bool = False,
        evaluator: bool = False,
        hold: bool = False,
        tensorboard: str = "",
        env: Mapping[str, str] | None = None,
        log_level: str | int = "INFO",
        heartbeat_timeout: float = _SILENCE_SECONDS,
        restarts: RestartPolicy | int = 0,
        start_timeout: float = _STAGE_SECONDS,
        ps_on_driver: bool = False,
        warm_nodes: bool = True,
        tls: bool | None = None,
    ) -> None:
        least, most = range_of(num_workers)
        settings = ClusterConfig(
            spec=ClusterSpec(num_workers=most, num_ps=num_ps, chief=chief, evaluator=evaluator),
            program=pickled_program(function, args),
            hold=hold,
            tensorboard=tensorboard,
            environment={str(name): str(value) for name, value in (env or {}).items()},
            level=parse_level(log_level),
            silence=positive("silence_timeout", heartbeat_timeout),
            start_timeout=start_timeout,
            least_workers=least,
            restarts=restarts if isinstance(restarts, RestartPolicy) else RestartPolicy(restarts),
            warm_nodes=warm_nodes,
            tls=tls,
        )
        self._set_up(SparkBackend(spark, settings.spec.num_ps if ps_on_driver else 0), settings)

    def _set_up(self, backend: Backend, settings: ClusterConfig) -> None:
        self.settings = settings
        self._attempts = RestartController(backend, settings)
        self._feed: FeedSession | None = None  # that is going on

    @property
    def spec(self) -> ClusterSpec:
        """The nodes; before the start, the most that there may be."""
        return self._monitor.spec

    @property
    def _life(self) -> ClusterAttempt:
        return self._attempts.life

    @property
    def _monitor(self) -> Monitor:
        return self._life.monitor

    @classmethod
    def carried_by(cls, backend: Backend, settings: ClusterConfig) -> "Cluster":
        """Return a cluster that something else than a Spark session of this process carries."""
        cluster = cls.__new__(cls)
        cluster._set_up(backend, settings)
        return cluster

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
        if self._life.started:
            raise ClusterError("the cluster was started before: make a new one")
        self._attempts.run_with_restarts(lambda: None)
        return self

    def shutdown(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the programs of all nodes that train, then end all nodes; return what `join` returns.

        A second call does nothing but return the same.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which all nodes are ended anyway, and the call fails.

        Raises
        ------
        NodeError
            If a node failed since.
        """
        try:
            results = self.join(timeout)
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
        if not self._life.is_own_process:
            return  # a forked child leaves the block; the cluster is its parent's
        if kind is None:
            self.shutdown()
        else:
            self._life.abort()

    # ---- use

    def train(
        self,
        data: "DataFrame | BatchRDD",
        *,
        validation: "DataFrame | str | None" = None,
        cache: str | None = "disk",
        cache_limit: int | str | None = None,
        rebalance: bool = True,
        independent_workers: bool = False,
        timeout: float = 600.0,
    ) -> None:
        """Feed a DataFrame to the workers; return when their programs are done with it.

        A program is done with a feed when it asks for the next or returns; then the Spark job that feeds is ended, if
        it still runs. Partitions go to workers on the same host where there are any.

        Parameters
        ----------
        data : DataFrame
            Its columns may be numbers, booleans, strings, binary, dates, timestamps, intervals, decimals, vectors of
            Spark ML, arrays of these and structs.
        validation : DataFrame or str, optional
            Rows to validate on (``feed.validation``), with the same columns; or the boolean column of `data` that
            says which those are.
        cache : {"disk", "memory", "none"} or None
            Where the workers keep the rows, so that each epoch can pass over them: in files in Spark's local
            directories, or in memory. The programs then begin when all rows have come. With ``"none"`` they begin
            with the first rows, and can pass over them just once.
        cache_limit : int or str, optional
            How many bytes a worker keeps at the most, as in ``"2g"``; more is an error. With ``cache="none"``, how
            many wait in its memory (512 MB if nothing is said): then Spark waits, and the rest of a partition that is
            larger goes to disk.
        rebalance : bool
            Whether workers with many rows give some to those with few, so that an epoch has no more steps than
            needed. (Workers of parameter servers keep what they were fed: none waits for another.)
        independent_workers : bool
            Whether each worker reads its rows at its own pace (`Feed.partitions`), and may return before the others,
            which are then fed the rest. Needs ``cache=None``.
        timeout : float
            Seconds without any progress, of the Spark job, the rows or the programs, after which the feed is given
            up. (Once kept rows have all come, the programs take the time that they need.)

        Raises
        ------
        FeedError
            If the DataFrame can't be fed, Spark failed to compute it, or nothing moved any more.
        NodeError
            If a node failed.
        """
        if getattr(data, "isStreaming", False):
            raise FeedError("a streaming DataFrame has no end: feed it with cluster.train_stream")
        storage = CacheConfig.parse(cache, cache_limit)
        if storage.keep is CacheMode.NONE and isinstance(validation, str):
            raise FeedError(
                "with cache='none' the rows to validate on, which are kept, must be a DataFrame of their own"
            )
        if isinstance(data, BatchRDD):
            if storage.keep is not CacheMode.NONE or validation is not None:
                raise FeedError("an RDD is fed with cache=None and without validation rows, or as a DataFrame")
        else:
            check_frame(data, validation)
        if independent_workers and storage.keep is not CacheMode.NONE:
            raise FeedError("independent workers read rows as they come: feed them with cache=None")
        kind = StreamedFeed if storage.keep is CacheMode.NONE else FeedSession
        settings = FeedSettings(storage, rebalance, timeout, independent_workers)
        if isinstance(data, BatchRDD):
            settings = replace(settings, unit=data.unit, read_with=data.read_with)

        def feed() -> None:
            run = self._begin_feed(kind, settings)
            try:
                run.train(data, validation)
                # A feed that failed leaves its number, for which the programs wait, to the next.
                self._attempts.feeds += 1
            finally:
                self._feed = None

        self._require_running()
        self._attempts.run_with_restarts(feed, only_whole=kind is StreamedFeed)
        self._attempts.past.append(feed)

    def train_stream(
        self,
        data: "DataFrame",
        *,
        checkpoint: str = "",
        trigger: Mapping[str, Any] | None = None,
        cache_limit: int | str | None = None,
        timeout: float = 600.0,
    ) -> StreamingFeed:
        """Feed a streaming DataFrame to the workers, as one feed that goes on until it is stopped; return at once.

        Parameters
        ----------
        data : DataFrame
            A streaming one (``spark.readStream``).
        checkpoint : str, optional
            Where Spark keeps what was processed, so that a later query can go on from there.
        trigger : mapping, optional
            What Spark's ``writeStream.trigger`` takes, as in ``{"processingTime": "5 seconds"}``.
        cache_limit, timeout
            As for `train` with ``cache="none"``; the time counts while a micro-batch is fed.

        Returns
        -------
        StreamingFeed
            To stop it, or to wait for its end.
        """
        require_frame(data, "data")
        if not getattr(data, "isStreaming", False):
            raise FeedError("the DataFrame has an end: feed it with cluster.train")
        check_frame(data)
        run = self._begin_feed(StreamedFeed, FeedSettings(CacheConfig.parse("none", cache_limit), timeout=timeout))

        def ended() -> None:
            self._attempts.feeds += 1
            self._attempts.past.append(None)
            self._feed = None

        try:
            return StreamingFeed(data, run, checkpoint, trigger or {}, ended)
        except BaseException:
            run.close()
            self._feed = None
            raise

    def _begin_feed(self, kind: type[_Run], settings: FeedSettings) -> _Run:
        self._require_running()
        if self.settings.hold:
            raise FeedError("a cluster with hold=True keeps the slots that feeding needs: leave it out, or use run()")
        if self._feed is not None:
            raise FeedError("another feed is going on: one follows the other")
        over = [str(node.role) for node in self._monitor.readers() if node.returned]
        if over and not settings.independent_workers:
            raise FeedError(
                f"the program of {', '.join(over)} has already returned: to take several feeds, let it loop over "
                "ctx.feeds()"
            )
        self._feed = run = kind(self._life, self._attempts.feeds, settings)
        return run

    def _require_running(self) -> None:
        self._life.require_own_process()
        if not self._life.running:
            raise ClusterError("the cluster is not running: use it inside its with block, or after start()")

    def inference(
        self,
        data: "DataFrame",
        schema: "str | StructType",
        *,
        keep: Sequence[str] | None = None,
        timeout: float = 600.0,
    ) -> "DataFrame":
        """Return a DataFrame with what the nodes answer for each row: their programs said how with ``ctx.serve``.

        It is computed when Spark comes to it, which must be while the cluster lives. Rows stay in their order, and
        each gets its own result; many partitions are answered at a time.

        Parameters
        ----------
        data : DataFrame
            What is asked about; columns as for `train`.
        schema : str or StructType
            The columns of the results, as in ``"prediction int, scores array<float>"``. Other results are an error.
        keep : sequence of str, optional
            Which columns of `data` come before the results; by default all.
        timeout : float
            Seconds for the programs to come to their ``ctx.serve``.

        Raises
        ------
        FeedError
            If the rows can't be sent, or a program does not call ``ctx.serve``: it has returned, waits for rows, or the
            time is over.
        NodeError
            If a node failed.

        Examples
        --------
        >>> def program(args, ctx):
        ...     ctx.serve(lambda ids: ids * args)
        >>> with Cluster(spark, program, 10) as cluster:
        ...     cluster.inference(spark.range(3), "tenfold long").collect()
        [Row(id=0, tenfold=0), Row(id=1, tenfold=10), Row(id=2, tenfold=20)]
        """
        self._life.require_own_process()
        require_frame(data, "data")
        self._require_running()
        nodes = wait_for_answers(self._monitor, positive("timeout", timeout))
        return infer(data, schema, node_endpoints(nodes, self._life.address), self._life.credentials, keep)

    def hold_and_feed(self, data: "DataFrame | None", validation: str) -> None:
        """Start, with tasks that stay and feed their own nodes (for `run`)."""

        def begin() -> None:
            self._life.start(data, FeedSpec(0, validation=validation))
            FeedSession(self._life, 0, FeedSettings()).seal_held(validation)

        self._attempts.begin = begin
        try:
            self._attempts.run_with_restarts(lambda: None)
        except BaseException:
            self._life.abort()
            raise

    def join(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the function has returned on all nodes that train and do not serve others.

        No further feed comes after this: a program that waits for one goes on without.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at the most.

        Returns
        -------
        dict
            What the function returned, by the node's name.

        Raises
        ------
        NodeError
            If a node failed.
        ClusterError
            If the time was over first; it names the nodes that still run.
        """
        self._life.require_own_process()
        if not self._life.started:
            raise ClusterError("the cluster is not running: use it inside its with block, or after start()")
        return self._attempts.run_with_restarts(lambda: self._join(timeout))

    def _join(self, timeout: float | None) -> dict[str, Any]:
        self._monitor.send_all(NoMoreFeeds())
        trainers = self._monitor.trainers()
        if not self._monitor.wait(lambda: all(node.returned or node.serving for node in trainers), timeout):
            running = ", ".join(f"{each.role} on {each.host}" for each in trainers if not each.returned)
            raise ClusterError(f"after {timeout:g} s (timeout) the program still runs on {running}")
        return {str(node.role): result_of(node) for node in trainers if node.returned}

    def check(self) -> None:
        """Raise what ended a node, if one has failed."""
        self._life.require_own_process()
        self._monitor.wait(lambda: True)

    @property
    def id(self) -> str:
        """Tells this cluster from all others."""
        return self._life.cluster_id

    @property
    def address(self) -> tuple[str, int]:
        """Where the driver listens, once it does: host and port."""
        return self._life.address

    @property
    def credentials(self) -> Credentials:
        """The secrets that all who call the driver or a node must show; there once it is started."""
        return self._life.credentials

    @property
    def fed(self) -> list[Node]:
        """The nodes that rows are fed to."""
        return self._monitor.fed()

    @property
    def tensorboard_url(self) -> str | None:
        """Where TensorBoard answers; None if it was not asked for or is not up yet."""
        return self._monitor.tensorboard_url

    @property
    def nodes(self) -> list[Node]:
        """What is known of each node."""
        return self._monitor.nodes
