"""Streaming DataFrames as endless feeds of Spark's micro-batches.

A micro-batch is acknowledged (Spark commits it to the query's checkpoint) when the programs have taken all its rows.
One that was not is fed again when a query starts anew from the same checkpoint.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.feed.session import FeedSession
from tensorflowonspark.errors import ClusterError, FeedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["StreamingFeed"]

_COMMIT_SECONDS = 10.0  # for Spark to commit a micro-batch
_CHECK_SECONDS = 0.2


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
        self,
        data: "DataFrame",
        session: FeedSession,
        checkpoint: str | None,
        trigger: Mapping[str, Any],
        on_end: Callable[[], None],
    ) -> None:
        self._session = session
        self._on_end = on_end
        self._between = Lock()  # held while a micro-batch is fed
        self._ending = Lock()
        self._stopping = False
        self._ended = False
        self._batches = 0
        self._acknowledged = -1  # the last micro-batch
        self._error: BaseException | None = None
        writer = data.writeStream.foreachBatch(self._feed_batch)
        if checkpoint:
            writer = writer.option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        self.query: StreamingQuery = writer.start()
        Thread(target=self._watch, daemon=True).start()

    def _feed_batch(self, frame: "DataFrame", batch: int) -> None:
        """Feed one micro-batch (called by Spark, one at a time); raising leaves it unacknowledged."""
        with self._between:
            if self._stopping or self._session.is_over:
                raise FeedError("the feed has been stopped")
            try:
                self._session.feed_batch(frame, self._batches)
            except BaseException as error:
                self._error = error
                raise
            self._batches += 1
            if self._session.is_over:
                raise FeedError("the programs have ended before the end of a micro-batch")
            self._acknowledged = batch

    def _watch(self) -> None:
        """End the feed when its query ends, or the programs do."""
        while not self._ended:
            if self._session.is_over or not self.query.isActive:
                with suppress(Exception):  # `wait` and `stop` raise it
                    self.stop()
                return
            time.sleep(_CHECK_SECONDS)

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
        with self._between:
            pass  # the current micro-batch is fed; the next one, for which Spark would wait for ever, raises
        self._wait_for_commit()
        with suppress(Exception):
            self.query.stop()
        try:
            if self._error is None:
                self._session.end()
        except ClusterError as error:
            self._error = error
        finally:
            try:
                self._on_end()
            finally:
                self._ended = True  # only now: the next feed may follow at once

    def _wait_for_commit(self) -> None:
        """Wait until Spark has committed the last micro-batch, so that it is not fed again."""
        end = time.monotonic() + _COMMIT_SECONDS
        while self.query.isActive and time.monotonic() < end:
            last = self.query.lastProgress
            if self._acknowledged < 0 or (last is not None and last["batchId"] >= self._acknowledged):
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
        if self._error is not None:
            raise self._error
        failed = self.query.exception() if self._ended and not self._session.is_over else None
        if failed is not None and not self._stopping:
            raise FeedError(f"the streaming query failed: {failed}") from failed
