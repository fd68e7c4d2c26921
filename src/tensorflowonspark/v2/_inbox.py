"""Between those who bring rows to a node and the program's `DataFeed`: one queue of blocks of rows."""

from collections import deque
from threading import Condition
from typing import Any

from tensorflowonspark.errors import FeedError

__all__ = ["END", "END_OF_PARTITION", "Block", "Inbox", "Question"]

_AHEAD_BLOCKS = 4  # that wait, unpickled, for the program
END_OF_PARTITION = object()
END = object()


class Question:
    """A partition whose rows are to be answered, each with one result."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._asked = 0
        self._answered = 0
        self._results: list[Any] = []
        self._failed: str = ""

    def ask(self, rows: int) -> None:
        """Note that so many more rows go to the program."""
        with self._changed:
            self._asked += rows

    def answer(self, results: list[Any]) -> None:
        """Note some more results, in the order of the rows."""
        with self._changed:
            self._results += results
            self._answered += len(results)
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Note that no more results will come."""
        with self._changed:
            self._failed = reason
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Return the results that have come since the last call."""
        with self._changed:
            taken, self._results = self._results, []
            return taken

    def wait(self, timeout: float) -> None:
        """Wait until all rows have results; fail if none came for so many seconds."""
        with self._changed:
            while self._answered < self._asked and not self._failed:
                if not self._changed.wait(timeout):
                    self._failed = (
                        f"no result for {timeout:g} s (feed_timeout): it was given {self._asked} rows of this "
                        f"partition and has answered {self._answered}; it must call batch_results with one result for "
                        "each row"
                    )
            if self._failed and self._answered < self._asked:
                raise FeedError(self._failed)


class Block:
    """Some rows of one partition, and the question that they belong to, if any."""

    def __init__(self, rows: list[Any], question: Question | None = None) -> None:
        self.rows = rows
        self.question = question


class Inbox:
    """A queue that holds a few blocks, and can be closed from either end."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._items: deque[Any] = deque()
        self._in_hand = False  # the program has a block that it is not through with
        self._closed = ""  # why the program takes nothing more

    @property
    def is_closed(self) -> bool:
        """Whether the program takes nothing more."""
        return bool(self._closed)

    def put(self, item: Any, timeout: float | None = None) -> bool:
        """Append a block, when there is room, or a mark, at once; return whether the program may still take it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._has_room_for(item), timeout):
                raise FeedError(
                    f"its program has taken no row for {timeout:g} s (feed_timeout): it must call next_batch"
                )
            if self._closed:
                if isinstance(item, Block) and item.question is not None:
                    item.question.fail(self._closed)
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def _has_room_for(self, item: Any) -> bool:
        return not isinstance(item, Block) or len(self._items) < _AHEAD_BLOCKS

    def get(self) -> Any:
        """Return what is next; wait for it. A block is in hand until `done` or the next call."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._in_hand = isinstance(item, Block)
            self._changed.notify_all()
            return item

    def done(self) -> None:
        """Note that all rows of the block in hand were handed out."""
        with self._changed:
            self._in_hand = False
            self._changed.notify_all()

    def wait_until_taken(self) -> None:
        """Wait until the program has been handed all rows that were put here."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._in_hand or self._holds_blocks()))

    def _holds_blocks(self) -> bool:
        return any(isinstance(item, Block) for item in self._items)

    def close(self, reason: str) -> None:
        """Take nothing more: what is here is dropped, and questions fail for that reason."""
        with self._changed:
            self._closed = self._closed or reason
            for item in self._items:
                if isinstance(item, Block) and item.question is not None:
                    item.question.fail(reason)
            self._items.clear()
            self._in_hand = False
            self._changed.notify_all()
