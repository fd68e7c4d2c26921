"""A `Cluster` whose session is a client of Spark Connect: what is left of the driver in the client.

Who imports `Cluster` from here, as the package does, gets clusters of both kinds by that name.
"""

import atexit
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import map_in_arrow
from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.cluster import Cluster as Cluster  # noqa: PLC0414 - so it is exported
from tensorflowonspark.driver.cluster_run import not_running
from tensorflowonspark.driver.connect.driver_task import ADDRESS_SCHEMA, DriverPlan, drive
from tensorflowonspark.driver.connect.refused_settings import check_settings
from tensorflowonspark.driver.connect.remote_calls import DriverLost, Output, RemoteDriver, RemoteFrame
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.structured_streaming import StreamedBatches
from tensorflowonspark.driver.metrics.records import ClusterMetrics
from tensorflowonspark.driver.nodes import NodeInfo
from tensorflowonspark.driver.run_results import Results
from tensorflowonspark.driver.spark.backend import Backend, is_remote
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.jobs import first_cause, stage_error
from tensorflowonspark.errors import ClusterError, FeedError, SpecError, StartError
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.storage import hadoop_settings
from tensorflowonspark.transport import Credentials, new_credentials, spark_wants_tls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_END_SECONDS = 10.0  # for the driver's task to end, before it is interrupted


class ConnectCluster(Cluster):
    """A cluster whose driver's part runs in a Spark task, which has a slot until the cluster ends."""

    @classmethod
    def _is_for(cls, spark: "SparkSession | None") -> bool:
        return spark is not None and is_remote(spark)

    def _backend_of(self, *_: Any) -> Backend:
        return Backend()  # that of the driver's task is the one that counts

    def _set_up(
        self,
        backend: Backend,
        config: ClusterConfig,
        name: str,
        spark: "SparkSession | None" = None,
        args: Any = None,  # noqa: ARG002
    ) -> None:
        check_settings(config)
        super()._set_up(backend, replace(config, log_dir=None), name)
        assert spark is not None
        self._session = spark
        tls = spark_wants_tls(spark)
        credentials = new_credentials(tls=tls if config.tls is None else config.tls, patience=config.heartbeat_timeout)
        self._plan = DriverPlan(replace(config, report=None), name, credentials, hadoop_settings(spark), tls)
        self._driver: _DriverJob | None = None
        self._frames: dict[str, DataFrame] = {}  # that were fed: after a restart they may be needed again
        self._results: Results | None = None
        self._last: dict[str, Any] = {}  # what is to be seen of the cluster, once it has ended
        self._last_report = ""

    # ---- calls

    @property
    def _is_running(self) -> bool:
        return self._driver is not None and not self._last

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._driver is None or self._last:
            raise not_running()
        return self._driver.call(name, *arguments, frames=self._frames)

    def _start(self, held: FeedRequest | None = None) -> None:
        assert held is None
        if self._driver is not None:
            raise ClusterError("the cluster was started before: make a new one")
        if self._config.hold:
            raise SpecError.of("hold", True, ": over Spark Connect a Cluster's nodes hold no slots: leave it out")
        self._driver = _DriverJob(self._session, self._plan)
        try:
            self._driver.start(self._config.start_timeout)
            self._call("start")
        except StartError as error:
            self._abort()
            raise StartError(
                f"{error}\nOver Spark Connect a Cluster needs a slot more than its nodes, for its driver"
            ) from None
        except BaseException:
            self._abort()
            raise

    def _joined(self, timeout: float | None) -> Results:
        if self._last and self._results is not None:
            return self._results
        self._results = self._call("join", timeout)
        return self._results

    def _close(self) -> None:
        if self._is_running:
            self._call("close")
            self._leave()

    def _abort(self) -> None:
        if self._is_running:
            with suppress(Exception):  # the driver's task has ended, and all nodes with it
                self._call("abort")
            self._leave()
        self._write_report(failed=True)

    def _leave(self) -> None:
        """Keep what is to be seen of the cluster, and end the driver's task."""
        assert self._driver is not None
        seen: dict[str, Any] = {}
        try:
            with suppress(Exception):
                seen = self._call("see")
                self._last_report = self._call("report")
                self._call("leave")
        finally:
            self._last = seen or {"text": f"<Cluster of {self._config.spec}, ended>"}
            self._driver.end()

    def _feed(self, request: FeedRequest) -> None:
        with self._ended_by_interrupt():
            self._call("feed", self._named(request))

    def _named(self, request: FeedRequest) -> FeedRequest:
        """Return a feed with the names of its DataFrames, which stay here."""
        if isinstance(request.data, BatchRDD):
            raise FeedError("over Spark Connect there are no RDDs: feed a DataFrame")
        given = {"data": request.data, "validation": request.validation}
        names = {}
        for field, frame in given.items():
            if frame is not None and not isinstance(frame, str):
                name = uuid.uuid4().hex
                self._frames[name] = frame
                names[field] = RemoteFrame(name)
        return replace(request, **names)  # type: ignore[arg-type]

    def _open_stream(self, request: FeedRequest) -> StreamedBatches:
        self._call("open_stream", replace(request, data=None))
        assert self._driver is not None
        return _RemoteBatches(self._call, self._driver.remote)

    def _drop_stream(self) -> None:
        self._call("drop_stream")

    def _targets(self, seconds: float) -> tuple[tuple[NodeEndpoint, ...], Credentials]:
        found: tuple[tuple[NodeEndpoint, ...], Credentials] = self._call("targets", seconds)
        return found

    # ---- what can be seen

    def _see(self, name: str, before: Any) -> Any:
        """Return what is to be seen of the cluster under a name: at present, at its end, or before its start."""
        seen = self._call("see") if self._is_running else self._last
        return seen.get(name, before)

    @property
    def id(self) -> str:  # noqa: D102
        return str(self._see("id", super().id))

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:  # noqa: D102
        return tuple(self._see("nodes", super().nodes))

    @property
    def tensorboard_url(self) -> str | None:  # noqa: D102
        url: str | None = self._see("tensorboard_url", None)
        return url

    @property
    def advice(self) -> str | None:  # noqa: D102
        advice: str | None = self._see("advice", None)
        return advice

    def metrics(self) -> ClusterMetrics:  # noqa: D102
        metrics: ClusterMetrics = self._see("metrics", super().metrics())
        return metrics

    def _report(self) -> str:
        return str(self._call("report")) if self._is_running else self._last_report or super()._report()

    def __repr__(self) -> str:
        return str(self._see("text", super().__repr__()))

    def _repr_html_(self) -> str:
        return str(self._see("html", super()._repr_html_()))


class _RemoteBatches:
    """The micro-batches of a stream whose driver's part runs in a Spark task: see `StreamedBatches`.

    Spark calls the function of each micro-batch in a process of its own on the server, with a session of its own.
    """

    check_seconds = 2.0  # each look is a Spark job

    def __init__(self, call: Callable[..., Any], remote: RemoteDriver) -> None:
        self._call = call
        self._remote = remote
        self._last: tuple[bool, int, BaseException | None] = False, -1, None  # once the stream has ended
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether the programs are done with the feed."""
        return self._see()[0]

    @property
    def acknowledged(self) -> int:
        """The number of the last micro-batch of which the programs have taken all rows."""
        return self._see()[1]

    @property
    def error(self) -> BaseException | None:
        """Why a micro-batch could not be fed."""
        return self._see()[2]

    def _see(self) -> tuple[bool, int, BaseException | None]:
        if not self._ended:
            self._last = self._call("see_stream")
        return self._last

    def function(self) -> "Callable[[DataFrame, int], None]":
        """Return what Spark calls with each micro-batch."""
        return partial(_feed_batch, self._remote)

    def stop(self) -> None:
        """Wait until the current micro-batch is fed."""
        self._call("stop_stream")

    def end(self) -> None:
        """Wait until the programs are done with the feed, and end it."""
        self._call("end_stream")
        self._see()
        self._ended = True


def _feed_batch(remote: RemoteDriver, frame: "DataFrame", batch: int) -> None:
    name = uuid.uuid4().hex
    remote.call(frame.sparkSession, "feed_batch", RemoteFrame(name), batch, frames={name: frame})


class _DriverJob:
    """The Spark job whose task is the driver, from its start until the cluster has ended."""

    def __init__(self, spark: "SparkSession", plan: DriverPlan) -> None:
        self._spark = spark
        self._plan = plan
        self._tag = f"tensorflowonspark-{uuid.uuid4().hex}"
        self._output = Output(sys.stderr)
        self._found: SimpleQueue[tuple[str, int] | BaseException] = SimpleQueue()  # the address, and the end
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="driver task", daemon=True)
        self.remote: RemoteDriver  # once it is up

    def start(self, seconds: float) -> None:
        """Start the job; return when the driver can be called."""
        atexit.register(self._interrupt)  # a program that ends without shutting down leaves nothing running
        self._thread.start()
        try:
            found = self._found.get(timeout=seconds)
        except Empty:
            self._interrupt()
            raise StartError(
                f"the cluster's driver, a Spark task, did not start within {seconds:g} s (start_timeout): it needs a "
                "slot more than the nodes, and for a moment two; other jobs may hold the slots"
            ) from None
        if isinstance(found, BaseException):
            raise stage_error(found, feeds=False) from found
        self.remote = RemoteDriver(found, self._plan.credentials)

    def _run(self) -> None:
        try:
            self._spark.addTag(self._tag)
            frame = self._spark.range(0, 2, 1, 2)
            rows = map_in_arrow(frame, partial(drive, self._plan), ADDRESS_SCHEMA, barrier=True).toLocalIterator()
            for row in rows:
                self._found.put((row.host, row.port))
            error: BaseException = ClusterError("the driver's task has returned")
        except BaseException as caught:
            error = caught
        self._error = error
        self._found.put(error)

    def call(self, name: str, *arguments: Any, frames: "Mapping[str, DataFrame]") -> Any:
        """Call a function of the driver; if its task has ended, raise `ClusterError`."""
        try:
            return self.remote.call(self._spark, name, *arguments, frames=frames, output=self._output)
        except DriverLost as error:
            self._thread.join(_END_SECONDS)
            self._interrupt()  # Spark may start the task again
            why = first_cause(self._error or error)
            raise ClusterError(
                f"the Spark task of the cluster's driver has ended, and the cluster with it: {why}. See the stages and "
                "the executors in Spark's UI"
            ) from error

    def end(self) -> None:
        """Wait for the end of the task, or interrupt it."""
        try:
            self._thread.join(_END_SECONDS)
        finally:
            self._interrupt()

    def _interrupt(self) -> None:
        atexit.unregister(self._interrupt)
        if self._thread.is_alive():
            with suppress(Exception):  # the session has ended
                self._spark.interruptTag(self._tag)
