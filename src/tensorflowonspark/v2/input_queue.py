"""The queue between the threads that receive a node's rows and the program's `DataFeed`."""

from collections import deque
from threading import Condition
from typing import Any

from tensorflowonspark.errors import FeedError

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
