"""Streaming DataFrames as endless feeds of Spark's micro-batches.

A micro-batch is acknowledged (Spark commits it to the query's checkpoint) when the programs have taken all its rows.
One that was not is fed again when a query starts anew from the same checkpoint.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol

from tensorflowonspark.driver.feed.session import FeedSession
from tensorflowonspark.errors import ClusterError, FeedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["StreamingFeed"]

_COMMIT_SECONDS = 10.0  # for Spark to commit a micro-batch
_CHECK_SECONDS = 0.2


class StreamedBatches(Protocol):
    """What feeds the micro-batches of a stream: `MicroBatches`, or those of a driver that runs in a Spark task."""

    check_seconds: float  # between two looks at them

    @property
    def is_over(self) -> bool:
        """Whether the programs are done with the feed."""

    @property
    def acknowledged(self) -> int:
        """The number of the last micro-batch of which the programs have taken all rows; -1 before."""

    @property
    def error(self) -> BaseException | None:
        """Why a micro-batch could not be fed."""

    def function(self) -> "Callable[[DataFrame, int], None]":
        """Return what Spark calls with each micro-batch."""

    def stop(self) -> None:
        """Wait until the current micro-batch is fed; the next one raises."""

    def end(self) -> None:
        """Wait until the programs are done with the feed, unless it has failed, and end it."""


class MicroBatches:
    """The micro-batches of a streaming DataFrame, which are one feed; `close` ends it for the cluster."""

    check_seconds = _CHECK_SECONDS

    def __init__(self, session: FeedSession, close: Callable[[], None]) -> None:
        self.acknowledged = -1
        self.error: BaseException | None = None
        self._session = session
        self._close = close
        self._between = Lock()  # held while a micro-batch is fed
        self._stopping = False
        self._count = 0

    @property
    def is_over(self) -> bool:
        """Whether the programs are done with the feed."""
        return self._session.is_over

    def function(self) -> "Callable[[DataFrame, int], None]":
        """Return what Spark calls with each micro-batch."""
        return self.feed

    def feed(self, frame: "DataFrame", batch: int) -> None:
        """Feed one micro-batch (called by Spark, one at a time); raising leaves it unacknowledged."""
        with self._between:
            if self._stopping or self._session.is_over:
                raise FeedError("the feed has been stopped")
            try:
                self._session.feed_batch(frame, self._count)
            except BaseException as error:
                self.error = error
                raise
            self._count += 1
            if self._session.is_over:
                raise FeedError("the programs have ended before the end of a micro-batch")
            self.acknowledged = batch

    def stop(self) -> None:
        """Wait until the current micro-batch is fed; the next one, for which Spark would wait for ever, raises."""
        self._stopping = True
        with self._between:
            pass

    def end(self) -> None:
        """Wait until the programs are done with the feed, unless it has failed, and end it."""
        try:
            if self.error is None:
                self._session.end()
        except ClusterError as error:
            self.error = error
        finally:
            self._close()


class StreamingFeed:
    """A feed that continues until it is stopped; `Cluster.train_stream` returns it.

    Attributes
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's own handle, for progress and metrics; end it with `stop`.

    Examples
    --------
    >>> rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    >>> with Cluster(spark, lambda ctx: sum(len(batch["value"]) for batch in ctx.batches(10))) as cluster:
    ...     feed = cluster.train_stream(rows)
    ...     while not any(each["numInputRows"] for each in feed.query.recentProgress):
    ...         assert not feed.wait(timeout=0.5)
    ...     feed.stop()
    ...     cluster.join()["worker:0"] >= 10
    True
    """

    def __init__(
        self, data: "DataFrame", batches: StreamedBatches, checkpoint: str | None, trigger: Mapping[str, Any]
    ) -> None:
        self._batches = batches
        self._ending = Lock()
        self._stopping = False
        self._ended = False
        writer = data.writeStream.foreachBatch(batches.function())
        if checkpoint:
            writer = writer.option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        self.query: StreamingQuery = writer.start()
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """End the feed when its query ends, or the programs do."""
        while not self._ended:
            if self._batches.is_over or not self.query.isActive:
                with suppress(Exception):  # `wait` and `stop` raise it
                    self.stop()
                return
            time.sleep(self._batches.check_seconds)

    def stop(self) -> None:
        """Finish the current micro-batch, end the query, and wait until the programs are done with the feed.

        The programs have then taken all rows that Spark's checkpoint counts as processed.

        Raises
        ------
        ClusterError
            If the feed has failed.
        """
        with self._ending:
            if not self._ended:
                self._end()
        self._raise()

    def _end(self) -> None:
        self._stopping = True
        self._batches.stop()
        self._wait_for_commit()
        with suppress(Exception):
            self.query.stop()
        try:
            self._batches.end()
        finally:
            self._ended = True  # only now: the next feed may follow at once

    def _wait_for_commit(self) -> None:
        """Wait until Spark has committed the last micro-batch, so that it is not fed again."""
        end = time.monotonic() + _COMMIT_SECONDS
        acknowledged = self._batches.acknowledged
        while self.query.isActive and time.monotonic() < end:
            last = self.query.lastProgress
            if acknowledged < 0 or (last is not None and last["batchId"] >= acknowledged):
                return
            time.sleep(_CHECK_SECONDS)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the feed has ended: by `stop`, or with its query or the programs.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which to return anyway.

        Returns
        -------
        bool
            Whether the feed has ended.

        Raises
        ------
        ClusterError
            If the feed has failed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ended and (end is None or time.monotonic() < end):
            time.sleep(_CHECK_SECONDS)
        self._raise()
        return self._ended

    def _raise(self) -> None:
        if (error := self._batches.error) is not None:
            raise error
        failed = self.query.exception() if self._ended and not self._batches.is_over else None
        if failed is not None and not self._stopping:
            raise FeedError(f"the streaming query failed: {failed}") from failed
