"""The entry of rows to a node's program: the feeds of ``train`` and the tasks of ``inference``."""

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader

if TYPE_CHECKING:
    from tensorflowonspark.node.context import Context

_MAX_BLOCKS = 4  # unpickled and waiting for the program
END_OF_PARTITION = object()
END = object()


class PendingResults:
    """The results of one partition's rows: one for each row, in order."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._expected = 0
        self._received = 0
        self._results: list[Any] = []
        self._failed: str = ""

    def expect(self, rows: int) -> None:
        """Expect results for that many more rows."""
        with self._changed:
            self._expected += rows

    def add(self, results: list[Any]) -> None:
        """Add results, in the order of the rows."""
        with self._changed:
            self._results += results
            self._received += len(results)
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Fail the results that are missing."""
        with self._changed:
            self._failed = reason
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Return the results added since the last call."""
        with self._changed:
            taken, self._results = self._results, []
            return taken

    def wait(self, timeout: float) -> None:
        """Wait for the results of all rows.

        Raises
        ------
        FeedError
            If `timeout` seconds pass without a result, or the results have failed.
        """
        with self._changed:
            while self._received < self._expected and not self._failed:
                if not self._changed.wait(timeout):
                    self._failed = (
                        f"no result for {timeout:g} s (feed_timeout): it was given {self._expected} rows of this "
                        f"partition and has answered {self._received}; it must call batch_results with one result for "
                        "each row"
                    )
            if self._failed and self._received < self._expected:
                raise FeedError(self._failed)


class PartitionRows:
    """Rows of one partition, with the results that they belong to if the partition is one of an inference."""

    def __init__(self, rows: list[Any], pending: PendingResults | None = None) -> None:
        self.rows = rows
        self.pending = pending


class InputQueue:
    """A bounded queue of blocks and end markers that both sides can close."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._items: deque[Any] = deque()
        self._in_use = False  # the program has not taken all rows of the last block
        self._closed = ""  # the reason

    @property
    def is_closed(self) -> bool:
        """Whether the program takes no more rows."""
        return bool(self._closed)

    def put(self, item: Any, timeout: float | None = None) -> bool:
        """Append a block, as soon as there is room, or an end marker, at once.

        Parameters
        ----------
        item : PartitionRows or object
            A block, `END_OF_PARTITION`, `END` or an exception.
        timeout : float, optional
            Seconds to wait for room.

        Returns
        -------
        bool
            False if the queue is closed.

        Raises
        ------
        FeedError
            If there is no room in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._has_room_for(item), timeout):
                raise FeedError(
                    f"its program has taken no row for {timeout:g} s (feed_timeout): it must call next_batch"
                )
            if self._closed:
                if isinstance(item, PartitionRows) and item.pending is not None:
                    item.pending.fail(self._closed)
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def _has_room_for(self, item: Any) -> bool:
        return not isinstance(item, PartitionRows) or len(self._items) < _MAX_BLOCKS

    def get(self) -> Any:
        """Wait for the next item and return it. A block is in use until `done` or the next call."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._in_use = isinstance(item, PartitionRows)
            self._changed.notify_all()
            return item

    def done(self) -> None:
        """Release the block in use: the program has all its rows."""
        with self._changed:
            self._in_use = False
            self._changed.notify_all()

    def wait_until_taken(self) -> None:
        """Wait until the program has taken all rows of the queue."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._in_use or self._holds_blocks()))

    def _holds_blocks(self) -> bool:
        return any(isinstance(item, PartitionRows) for item in self._items)

    def close(self, reason: str) -> None:
        """Drop all items and refuse further ones; pending results fail with the reason."""
        with self._changed:
            self._closed = self._closed or reason
            for item in self._items:
                if isinstance(item, PartitionRows) and item.pending is not None:
                    item.pending.fail(reason)
            self._items.clear()
            self._in_use = False
            self._changed.notify_all()


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
