"""The public handle of a cluster in the driver."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import require_frame
from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.declarations import takes
from tensorflowonspark.driver.attempt import GRACE_SECONDS
from tensorflowonspark.driver.cluster_run import ClusterRun, not_running
from tensorflowonspark.driver.cluster_view import ClusterView
from tensorflowonspark.driver.dashboard.page import check_report_path
from tensorflowonspark.driver.feed.feed_settings import FeedSettings, feed_request
from tensorflowonspark.driver.feed.inference import infer, wait_until_served
from tensorflowonspark.driver.feed.job import FeedRequest, check_frame
from tensorflowonspark.driver.feed.structured_streaming import MicroBatches, StreamedBatches, StreamingFeed
from tensorflowonspark.driver.imports import expect_imports
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.program import (
    Program,
    configure,
    deserialize_result,
    program_name,
    serialize_program,
)
from tensorflowonspark.driver.run_facts import run_facts
from tensorflowonspark.driver.run_results import Results
from tensorflowonspark.driver.sharing.manifest import node_endpoints
from tensorflowonspark.driver.spark.backend import Backend, SparkBackend
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.progress_jobs import ProgressJobs
from tensorflowonspark.driver.spark.repartition import spread
from tensorflowonspark.driver.tracking import track
from tensorflowonspark.errors import OF_PEERS, ClusterError, FeedError, SpecError
from tensorflowonspark.feed_messages import CacheConfig
from tensorflowonspark.messages import EVALUATOR_START_SECONDS, NodeEndpoint, TrainingEnded
from tensorflowonspark.mixture import order_of
from tensorflowonspark.renamed import takes_old_keywords
from tensorflowonspark.settings import ClusterSettings, check_seconds, with_groups
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Credentials

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from tensorflowonspark.driver.feed.mixed_frames import Mixed
    from tensorflowonspark.keywords import ClusterKeywords, FeedKeywords

_log = logging.getLogger(__name__)
_FIRST_SECONDS = 10.0  # of a program that does not train, as of a ps, in which it may return; 2.x gave it these too
_CHECK_SECONDS = 0.2
_NOTED_SECONDS = 1.0  # for which an evaluator goes on: a wait that is longer has a line


@takes(ClusterSettings, old=partial(with_groups, warn=True), elsewhere=OF_PEERS)
class Cluster(ClusterView):
    """A TensorFlow cluster on the executors of a Spark application.

    The user's function runs in a separate process on each node; TensorFlow finds its cluster in ``TF_CONFIG``. As a
    context manager, the cluster starts at the beginning of the block; at its end it waits for the function to return
    on all nodes that train. If the block raises, all nodes are ended at once.

    Parameters
    ----------
    spark : SparkSession
        The application on whose executors the nodes run.
    function : callable
        The program: ``function(args, ctx)``, ``function(ctx)`` or ``function()``, with a `Context`. It is shipped by
        cloudpickle; modules that it imports must be installed on the executors, or shipped with Spark's
        ``--py-files``. Or the path of a script, which is run unchanged (`run_script`).
    args : object
        The program's first argument: anything that pickles. Only for a function of two parameters. The arguments of a
        script are a list of strings.
    **settings
        Those of `ClusterSettings`.

    Raises
    ------
    SpecError
        If an argument can't be right: counts, a function of other parameters, a program that does not pickle, GPUs that
        the application's executors do not have, a `log_dir` that can't be written to.

    Examples
    --------
    >>> def program(args, ctx):
    ...     return f"{ctx.role} of {ctx.num_workers} got {args}"
    >>> with Cluster(spark, program, "this", num_workers=2) as cluster:
    ...     cluster.join()
    {'worker:0': 'worker:0 of 2 got this', 'worker:1': 'worker:1 of 2 got this'}
    """

    def __new__(cls, spark: "SparkSession | None" = None, *_: Any, **__: Any) -> "Cluster":
        """Return a cluster of the kind that the session needs (`driver/connect/client_cluster.py`)."""
        return super().__new__(next((each for each in cls.__subclasses__() if each._is_for(spark)), cls))

    @classmethod
    def _is_for(cls, spark: "SparkSession | None") -> bool:  # noqa: ARG003
        """Whether a session needs a cluster of this kind."""
        return False

    def __init__(
        self,
        spark: "SparkSession",
        function: Program,
        args: Any = None,
        **settings: "Unpack[ClusterKeywords]",
    ) -> None:
        config = expect_imports(configure(serialize_program(function, args), settings), function)
        if config.report is not None:
            check_report_path(config.report, "report")
        own_nodes = config.spec.num_ps if config.ps_on_driver else 0
        name = program_name(function)
        backend = self._backend_of(spark, own_nodes, config.gpus_per_node, name)
        config = replace(config, manifest=run_facts(function, settings, spark))
        self._set_up(backend, config, name, spark, args)

    def _backend_of(self, spark: "SparkSession", own_nodes: int, gpus_per_node: int | None, name: str) -> Backend:
        return SparkBackend(spark, own_nodes, gpus_per_node, name)

    def _set_up(
        self, backend: Backend, config: ClusterConfig, name: str, spark: "SparkSession | None" = None, args: Any = None
    ) -> None:
        self._config = config
        self._spark = spark  # of this process; None if the nodes run elsewhere than on one
        self._args = args
        self._reported = False
        self._run = ClusterRun(backend, config, name)
        reservation = backend.reservation()
        if reservation is not None:
            reservation.follow(self._run)

    @classmethod
    def _on_backend(cls, backend: Backend, config: ClusterConfig, name: str = "program") -> "Cluster":
        """Return a cluster whose nodes run elsewhere than on a Spark session of this process."""
        cluster = cls.__new__(cls)
        cluster._set_up(backend, config, name)
        return cluster

    # ---- start and end

    def start(self) -> "Cluster":
        """Bring all nodes up; return when their programs start.

        Returns
        -------
        Cluster
            This one.

        Raises
        ------
        ClusterError
            If the cluster was started before.
        SlotsError
            If the application has too few task slots.
        StartError
            If a node did not come up; the error names it.
        NodeError
            If a node failed at once.

        Examples
        --------
        >>> cluster = Cluster(spark, lambda ctx: ctx.index, num_workers=2).start()
        >>> cluster.shutdown()
        {'worker:0': 0, 'worker:1': 1}
        """
        self._start()
        return self

    def _start(self, held: FeedRequest | None = None) -> None:
        """Start; tasks that hold the nodes feed them, if there is a feed for them."""
        if self._spark is not None and not self._attempt.started:
            self._show_progress(self._spark.sparkContext)
        try:
            self._run.start(held)
        except BaseException:
            self._write_report(failed=True)
            raise

    def _show_progress(self, context: "SparkContext") -> None:
        """Show the training in Spark's UI, and to MLflow."""
        store = self._run.metrics
        store.events.subscribe(ProgressJobs(context, store))
        if self._config.tracking == "auto":
            track(store, self._args, context.master, lambda: self.spec, self.save_report)

    def shutdown(self, timeout: float | None = None) -> Results:
        """Wait for the programs of all nodes that train, then end all nodes.

        A second call only returns the results again.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which all nodes are ended anyway, and the call fails.

        Returns
        -------
        Results
            A dict of what the function returned, by the node's name, with the figures of the training.

        Raises
        ------
        NodeError
            If a node has failed.
        ClusterError
            If the cluster was not started, or the time is over.

        Examples
        --------
        >>> cluster = Cluster(spark, lambda: "done").start()
        >>> cluster.shutdown(timeout=60)
        {'worker:0': 'done'}
        """
        try:
            results = self.join(timeout)
        except BaseException:
            self._abort()
            raise
        self._close()
        self._write_report(failed=False)
        return results

    def _close(self) -> None:
        """End all nodes, whose programs have returned."""
        self._attempt.close(GRACE_SECONDS)

    def _abort(self) -> None:
        """End all nodes at once, after a failure."""
        self._attempt.abort()
        self._write_report(failed=True)

    def _write_report(self, *, failed: bool) -> None:
        """Write the report that the settings ask for, once; after a failure, that stays the error that a user gets."""
        path = self._config.report
        if path is None or self._reported:
            return
        self._reported = True
        try:
            self.save_report(path)
        except (ClusterError, OSError) as error:
            if not failed:
                raise
            CONSOLE.log(_log, logging.WARNING, "the report %s was not written: %s", path, error)

    def join(self, timeout: float | None = None) -> Results:
        """Wait until the function has returned on all nodes that train and do not serve others.

        On each other node the function has ten seconds from its first line to return.

        No further feed comes after this: a program that waits for one continues without.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        Results
            A dict of what the function returned, by the node's name, with the figures of the training.

        Raises
        ------
        NodeError
            If a node has failed.
        ClusterError
            If the time is over; the error names the nodes that still run.

        Examples
        --------
        >>> with Cluster(spark, lambda ctx: ctx.rank * 10, num_workers=2) as cluster:
        ...     results = cluster.join()
        >>> results, results.chief, results.by_worker, results.restarts
        ({'worker:0': 0, 'worker:1': 10}, 0, [0, 10], 0)
        """
        self._attempt.require_own_process()
        with self._ended_by_interrupt():
            return self._joined(timeout)

    def _joined(self, timeout: float | None) -> Results:
        if not self._attempt.started:
            raise not_running()
        return self._run.run_with_restarts(lambda: self._join(timeout))

    def _join(self, timeout: float | None) -> Results:
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._monitor.lock:
            self._monitor.members.end_feeds()
        trainers = self._monitor.roster.trainers()
        if not self._monitor.wait(
            lambda: all(node.program.returned or node.program.serving or node.lost for node in trainers), timeout
        ):
            raise _late([each for each in trainers if not (each.program.returned or each.lost)], timeout)
        self._wait_for_others(end)
        if late := [each for each in self._monitor.roster.evaluators() if each.evaluates]:
            raise _late(late, timeout)
        self._attempt.advise()
        returned = {str(node.role): deserialize_result(node) for node in trainers if node.program.returned}
        return Results(returned, self.spec, self.metrics())

    def _wait_for_others(self, end: float) -> None:
        """Wait until an evaluator is done, and other programs have had some time: one may just begin, or return."""
        roster = self._monitor.roster
        trainers = set(roster.spec.trainers)
        others = [node for node in roster.nodes if node.role not in trainers]
        shown_at = time.monotonic() + _NOTED_SECONDS

        def are_done() -> bool:
            seconds = (EVALUATOR_START_SECONDS if roster.may_evaluate(node) else _FIRST_SECONDS for node in others)
            return all(map(Node.may_be_ended, others, seconds))

        while time.monotonic() < end and not self._monitor.wait(are_done, _CHECK_SECONDS):
            with self._monitor.lock:
                evaluators = [node for node in roster.evaluators() if node.evaluates]
                for node in evaluators:  # also one that has been started again meanwhile
                    roster.send(node.number, TrainingEnded())
            if evaluators and time.monotonic() > shown_at:
                shown_at = math.inf
                text = f"the training has ended, and {_places(evaluators)} evaluates its last checkpoints"
                self._monitor.run.console.note(text, "evaluation")
        idle = [node for node in roster.evaluators() if roster.may_evaluate(node) and not node.program.returned]
        if idle and time.monotonic() < end:
            text = (
                "the training has ended, and %s is ended: its program has not called ctx.evaluate_checkpoints within "
                "%g s, so that nothing has evaluated the checkpoints. Call it before what takes long; a later run with "
                "the same directory evaluates those that are still there"
            )
            CONSOLE.log(_log, logging.WARNING, text, _places(idle), EVALUATOR_START_SECONDS)

    def __enter__(self) -> "Cluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._attempt.is_own_process:
            return  # a forked child leaves the block; the cluster belongs to its parent
        if kind is None:
            self.shutdown()
        else:
            self._abort()

    # ---- data

    @takes_old_keywords({"shuffle": {None: False, "global": True}}, timeout="feed_timeout", shuffle="global_shuffle")
    @takes(FeedSettings)
    def train(self, data: "DataFrame | BatchRDD | Mixed", **settings: "Unpack[FeedKeywords]") -> None:
        """Feed a DataFrame to the workers; return when their programs are done with it.

        A program is done with a feed when it asks for the next one or returns; then the Spark job that feeds is ended,
        if it still runs. Partitions go to workers on the same host where there are any.

        Parameters
        ----------
        data : DataFrame or dict
            Its columns may be numbers, booleans, strings, binary, dates, timestamps, intervals, decimals, vectors of
            Spark ML, arrays of these and structs. A dict is a mixture: by the name of each source a pair of a DataFrame
            and its share, as in ``{"web": (pages, 0.7), "books": (books, 0.3)}``. Each epoch has `epoch_rows` rows in
            these shares, and each source is shuffled and repeated by itself; step k of an epoch has the same rows on
            any number of workers.
        **settings
            Those of `FeedSettings`.

        Raises
        ------
        FeedError
            If the DataFrame can't be fed, Spark failed to compute it, or nothing progresses.
        NodeError
            If a node failed.
        SpecError
            If an argument can't be right, or nodes are started again alone and the rows are not kept from the start.

        Examples
        --------
        >>> with Cluster(spark, lambda ctx: ctx.feed().rows, num_workers=2) as cluster:
        ...     cluster.train(spark.range(100))
        ...     sum(cluster.join().by_worker)
        100
        """
        if getattr(data, "isStreaming", False):
            raise FeedError("a streaming DataFrame has no end: feed it with cluster.train_stream")
        self._feed(self._request(data, FeedSettings(**settings)))

    def _request(self, data: "DataFrame | BatchRDD | Mixed", settings: FeedSettings) -> FeedRequest:
        """Return a feed of this cluster; refuse one that it can't have."""
        request = feed_request(data, settings)
        early = request.starts_early and request.keeps_rows
        how = "start='first_rows'" if early else "cache=None"
        if early and self._config.spec.num_ps:
            raise FeedError(
                "start='first_rows' is for workers that train in step: with parameter servers feed with cache=None, or "
                "start='all_rows'"
            )
        if request.starts_early:
            self._require_joint_restarts(how)
        if request.is_global and (self._config.spec.num_ps or self._config.restarts_nodes):
            raise SpecError(
                f"{order_of(request.mixture)} is for workers that train in step: leave it out with parameter servers, "
                "and with restarts=RestartPolicy(scope='node')"
            )
        if request.starts_early and request.validation_column:
            raise FeedError(f"with {how} the rows to validate on must be a DataFrame of their own, which is fed before")
        if settings.global_shuffle:
            assert not isinstance(data, BatchRDD)  # which has no global shuffle
            request = replace(request, data=spread(data, self._config.spec.num_workers))
        return request

    def _feed(self, request: FeedRequest) -> None:
        with self._ended_by_interrupt():
            self._run.run_feed(request)

    def _require_joint_restarts(self, feed: str) -> None:
        """Raise if nodes are started again alone, which a feed does not allow whose steps the driver grants to all."""
        if self._config.restarts_nodes:
            raise SpecError(
                f"{feed} with restarts=RestartPolicy(scope='node'): rows that the workers take as they arrive can't be "
                "fed again to one of them; keep them (cache='disk', start='all_rows'), or leave out scope"
            )

    @takes_old_keywords(timeout="feed_timeout")
    def train_stream(
        self,
        data: "DataFrame",
        *,
        checkpoint: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        cache_limit: int | str | None = None,
        feed_timeout: float = 600.0,
    ) -> StreamingFeed:
        """Feed a streaming DataFrame to the workers, as one feed that continues until it is stopped; return at once.

        Parameters
        ----------
        data : DataFrame
            A streaming one (``spark.readStream``).
        checkpoint : str, optional
            The directory in which Spark records what was processed, from which a later query can continue.
        trigger : mapping, optional
            The arguments of Spark's ``writeStream.trigger``, as in ``{"processingTime": "5 seconds"}``.
        cache_limit : int or str, optional
            As for `train` with ``cache=None``.
        feed_timeout : float
            As for `train`; the time counts while a micro-batch is fed.

        Returns
        -------
        StreamingFeed
            The feed, to stop it or to wait for its end.

        Raises
        ------
        FeedError
            If the DataFrame is not a streaming one, or can't be fed.
        SpecError
            If nodes are started again alone (`RestartPolicy.scope`).

        Examples
        --------
        >>> def program(ctx):  # it returns with the first batch, which ends the stream
        ...     return len(next(iter(ctx.batches(10)))["value"])
        >>> rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        >>> with Cluster(spark, program) as cluster:
        ...     feed = cluster.train_stream(rows)
        ...     feed.wait(timeout=60), cluster.join()
        (True, {'worker:0': 10})
        """
        require_frame(data, "data")
        if not getattr(data, "isStreaming", False):
            raise FeedError("the DataFrame has an end: feed it with cluster.train")
        check_frame(data)
        self._require_joint_restarts("train_stream")
        request = FeedRequest(data, cache=CacheConfig.parse(None, cache_limit), timeout=feed_timeout)
        batches = self._open_stream(request)
        try:
            return StreamingFeed(data, batches, checkpoint, trigger or {})
        except BaseException:
            self._drop_stream()
            raise

    def _open_stream(self, request: FeedRequest) -> StreamedBatches:
        return MicroBatches(self._run.open_stream(request), self._run.close_stream)

    def _drop_stream(self) -> None:
        """End a stream that was never fed."""
        self._run.close_stream(completed=False)

    def inference(
        self,
        data: "DataFrame",
        schema: "str | StructType",
        *,
        keep: Sequence[str] | None = None,
        timeout: float = 600.0,
    ) -> "DataFrame":
        """Return a DataFrame with the results of the nodes for each row, by the function given to ``ctx.serve``.

        It is computed when Spark needs it, which must be while the cluster runs. Rows stay in their order, and each has
        its own result; many partitions are processed at a time.

        Parameters
        ----------
        data : DataFrame
            The rows; columns as for `train`.
        schema : str or StructType
            The columns of the results, as in ``"prediction int, scores array<float>"``. Other results are an error.
        keep : sequence of str, optional
            The columns of `data` that stand before the results; by default all.
        timeout : float
            Seconds for the programs to call ``ctx.serve``.

        Returns
        -------
        DataFrame
            The kept columns and the results.

        Raises
        ------
        FeedError
            If the rows can't be sent, or a program does not call ``ctx.serve``: it has returned, waits for rows, or the
            time is over.
        NodeError
            If a node failed.
        SpecError
            If the schema is not one, or names a column twice.

        Examples
        --------
        >>> def program(args, ctx):
        ...     ctx.serve(lambda ids: ids * args)
        >>> with Cluster(spark, program, 10) as cluster:
        ...     cluster.inference(spark.range(3), "tenfold long").collect()
        [Row(id=0, tenfold=0), Row(id=1, tenfold=10), Row(id=2, tenfold=20)]
        """
        self._attempt.require_own_process()
        require_frame(data, "data")
        return infer(data, schema, *self._targets(check_seconds("timeout", timeout)), keep)

    # ---- for the parts of the package that build on a cluster

    def _targets(self, seconds: float) -> tuple[tuple[NodeEndpoint, ...], Credentials]:
        """Wait until all programs answer inference; return where their nodes receive its rows, and the secrets."""
        self._run.require_running()
        targets = self._run.run_with_restarts(lambda: self._answering(seconds))
        return targets, self._credentials

    def _answering(self, seconds: float) -> tuple[NodeEndpoint, ...]:
        return node_endpoints(wait_until_served(self._monitor, seconds), self._address)

    @property
    def _address(self) -> tuple[str, int]:
        """Host and port at which the driver listens, once it does."""
        return self._attempt.address

    @property
    def _credentials(self) -> Credentials:
        """The secrets of the cluster, once it is started."""
        return self._attempt.credentials

    @property
    def _fed(self) -> list[Node]:
        """The nodes that rows are fed to."""
        return self._monitor.roster.fed()

    @contextmanager
    def _ended_by_interrupt(self) -> Iterator[None]:
        """End the nodes if the user interrupts the block, as a cell of a notebook that no other block surrounds."""
        try:
            yield
        except KeyboardInterrupt:
            self._abort()
            raise

    def _check(self) -> None:
        """Raise the failure of a node, if one has failed."""
        self._attempt.require_own_process()
        failure = self._monitor.end.failure()
        if failure is not None:
            raise failure


def _places(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.role} on {node.host}" for node in nodes)


def _late(nodes: Sequence[Node], timeout: float | None) -> ClusterError:
    return ClusterError(f"after {timeout:g} s (timeout) the program still runs on {_places(nodes)}")
