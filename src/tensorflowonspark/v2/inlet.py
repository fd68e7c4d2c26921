"""The entry of rows to a node's program: the feeds of ``train`` and the tasks of ``inference``."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader
from tensorflowonspark.v2.input_queue import END, END_OF_PARTITION, InputQueue, PartitionRows, PendingResults

if TYPE_CHECKING:
    from tensorflowonspark.node.context import Context


@dataclass(frozen=True)
class RowsHeader(InferenceHeader):
    """The header of a partition's rows that a task sends for inference."""

    queue: str = "input"
    timeout: float = 600.0  # seconds without progress


class Inlet:
    """The queues of one node, which programs know as ``ctx.mgr`` and pass to `DataFeed`.

    Parameters
    ----------
    context : Context
        The node's context.
    queues : sequence of str
        The names of the queues.
    """

    def __init__(self, context: "Context", queues: Sequence[str]) -> None:
        self._context = context
        self._inboxes = {name: InputQueue() for name in queues}
        self._turns = {name: Lock() for name in queues}  # one partition at a time is answered
        self._state = Lock()
        self._receiving = False
        self._in_feed = False
        context.serve_batches(self)

    def inbox(self, name: str) -> InputQueue:
        """Return a queue, and start to receive feeds.

        Raises
        ------
        FeedError
            If no queue has that name.
        """
        if name not in self._inboxes:
            raise FeedError(f"there is no queue {name!r}; TFCluster.run was given queues={list(self._inboxes)}")
        with self._state:
            if not self._receiving:
                self._receiving = True
                Thread(target=self._receive_feeds, daemon=True).start()
        return self._inboxes[name]

    # ---- training

    def _receive_feeds(self) -> None:
        """Put the rows of all feeds into the queues; a feed is over when the program has taken all its rows."""
        try:
            for feed in self._context.feeds():
                with self._state:
                    if self._is_closed:
                        continue
                    self._in_feed = True
                self._receive(feed)
                with self._state:
                    if not self._in_feed:
                        return  # another thread requests the further feeds
                    self._in_feed = False
            last: Any = END
        except Exception as error:  # the program's next batch raises it
            last = error
        for inbox in self._inboxes.values():
            inbox.put(last)

    def _receive(self, feed: Any) -> None:
        """Put a feed's rows into its queues until these are closed."""
        used: set[str] = set()
        try:
            for batches in feed.partitions():
                for batch in batches:
                    (name,) = batch.schema.names
                    used.add(name)
                    if not all(self._inboxes[name].put(PartitionRows(_unpickled(each))) for each in batch.column(0)):
                        return
                    self._inboxes[name].wait_until_taken()  # the node reports rows when the program has them
                for name in used:
                    self._inboxes[name].put(END_OF_PARTITION)
        except Exception:
            if not self._is_closed:  # else another thread has ended this feed meanwhile
                raise

    @property
    def _is_closed(self) -> bool:
        return any(inbox.is_closed for inbox in self._inboxes.values())

    def terminate(self) -> None:
        """Drop the remaining rows of this feed and all further feeds; the driver ends the feeding job."""
        self._close_queues("its program called terminate()")

    def close(self) -> None:
        """Close the queues: the program has returned."""
        self._close_queues("its program has returned")

    def _close_queues(self, reason: str) -> None:
        with self._state:
            in_feed, self._in_feed = self._in_feed, False
            for inbox in self._inboxes.values():
                inbox.close(reason)
        if in_feed:
            Thread(target=self._skip_feeds, daemon=True).start()

    def _skip_feeds(self) -> None:
        """Request all further feeds without reading them."""
        for _ in self._context.feeds():
            pass

    # ---- inference

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass a partition's rows to the program; yield the available results for each batch and the rest at the end.

        Raises
        ------
        FeedError
            If no queue has the header's name, or results are missing.
        """
        assert isinstance(header, RowsHeader)
        if header.queue not in self._inboxes:
            raise FeedError(f"there is no queue {header.queue!r}; there are {list(self._inboxes)}")
        inbox = self._inboxes[header.queue]
        pending = PendingResults()
        with self._turns[header.queue]:
            try:
                for batch in batches:
                    for each in batch.column(0):
                        rows = _unpickled(each)
                        pending.expect(len(rows))
                        inbox.put(PartitionRows(rows, pending), header.timeout)
                    yield _pickled(pending.take())
            finally:
                inbox.put(END_OF_PARTITION)
        pending.wait(header.timeout)
        yield _pickled(pending.take())


def _unpickled(rows: pa.BinaryScalar) -> list[Any]:
    """Return the rows of a pickled list, unpickled as pyspark does."""
    return list(pickle.loads(rows.as_buffer(), encoding="bytes"))


def _pickled(results: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"results": pa.array([pickle.dumps(results)], pa.binary())})
