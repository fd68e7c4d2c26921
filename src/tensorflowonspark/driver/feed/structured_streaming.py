"""Streaming DataFrames as endless feeds: Spark's micro-batches, one after the other.

A micro-batch is acknowledged (Spark commits it to the query's checkpoint) when the programs have taken all its rows.
What was not acknowledged comes again when a query starts anew from the same checkpoint.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.feed.session import PARTITIONS_PER_BATCH
from tensorflowonspark.driver.feed.streamed import StreamedFeed
from tensorflowonspark.errors import ClusterError, FeedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["StreamingFeed"]

_log = logging.getLogger(__name__)
_COMMIT_SECONDS = 10.0  # for Spark to write down that a micro-batch is done
_LOOK_SECONDS = 0.2


class StreamingFeed:
    """What ``cluster.train_stream`` returns: a feed that goes on until it is stopped.

    Attributes
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's own handle, for progress and metrics; end it with `stop`.
    """

    def __init__(
        self,
        data: "DataFrame",
        run: StreamedFeed,
        checkpoint: str,
        trigger: Mapping[str, Any],
        on_end: Callable[[], None],
    ) -> None:
        self._run = run
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
            if self._stopping or self._run.is_over:
                raise FeedError("the feed has been stopped")
            try:
                self._run.feed_batch(frame, self._batches * PARTITIONS_PER_BATCH)
            except BaseException as error:
                self._error = error
                raise
            self._batches += 1
            if self._run.is_over:
                raise FeedError("the programs have ended before the end of a micro-batch")
            self._acknowledged = batch

    def _watch(self) -> None:
        """End the feed when its query ends, or the programs do."""
        while not self._ended:
            if self._run.is_over or not self.query.isActive:
                with suppress(Exception):  # whoever waits gets it
                    self.stop()
                return
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Finish the micro-batch that is being fed, end the query, and wait until the programs are done with the feed.

        Nothing that Spark holds for processed is lost: all of it has been taken by the programs.

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
            self._wait_for_commit()
            with suppress(Exception):
                self.query.stop()
        try:
            if self._error is None:
                self._run.end_stream()
        except ClusterError as error:
            self._error = error
        finally:
            self._ended = True
            self._run.close()
            self._on_end()

    def _wait_for_commit(self) -> None:
        """Let Spark write down the last micro-batch: one that was taken must not come again."""
        end = time.monotonic() + _COMMIT_SECONDS
        while self.query.isActive and time.monotonic() < end:
            last = self.query.lastProgress
            if self._acknowledged < 0 or (last is not None and last["batchId"] >= self._acknowledged):
                return
            time.sleep(_LOOK_SECONDS)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the feed has ended, by `stop` or since its query or the programs have; return whether it has.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which to return anyway.

        Raises
        ------
        ClusterError
            If the feed has failed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ended and (end is None or time.monotonic() < end):
            time.sleep(_LOOK_SECONDS)
        self._raise()
        return self._ended

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
        failed = self.query.exception() if self._ended and not self._run.is_over else None
        if failed is not None and not self._stopping:
            raise FeedError(f"the streaming query failed: {failed}") from failed
