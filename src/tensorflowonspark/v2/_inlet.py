"""Where rows reach the program of a node: from the feeds of ``train``, and from the tasks of ``inference``.

Programs know it as ``ctx.mgr``, and do nothing with it but to give it to a `DataFeed`.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader

from ._inbox import END, END_OF_PARTITION, Block, Inbox, Question

if TYPE_CHECKING:
    from tensorflowonspark.node.context import Context

__all__ = ["Inlet", "RowsHeader"]


@dataclass(frozen=True)
class RowsHeader(InferenceHeader):
    """What a task says before it sends the rows of a partition to be answered."""

    queue: str = "input"
    timeout: float = 600.0  # seconds without progress


class Inlet:
    """The queues of one node.

    Parameters
    ----------
    context : Context
        The node.
    queues : sequence of str
        Their names.
    """

    def __init__(self, context: "Context", queues: Sequence[str]) -> None:
        self._context = context
        self._inboxes = {name: Inbox() for name in queues}
        self._turns = {name: Lock() for name in queues}  # one partition is asked about after the other
        self._state = Lock()
        self._pumping = False
        self._in_feed = False
        context.serve_batches(self)

    def inbox(self, name: str) -> Inbox:
        """Return a queue; rows of feeds begin to come.

        Raises
        ------
        FeedError
            If there is none of that name.
        """
        if name not in self._inboxes:
            raise FeedError(f"there is no queue {name!r}; TFCluster.run was given queues={list(self._inboxes)}")
        with self._state:
            if not self._pumping:
                self._pumping = True
                Thread(target=self._pump, daemon=True).start()
        return self._inboxes[name]

    # ---- rows to train on

    def _pump(self) -> None:
        """Bring the rows of one feed after the other; a feed is over when the program has been handed all of them."""
        try:
            for feed in self._context.feeds():
                with self._state:
                    if self._is_closed:
                        continue
                    self._in_feed = True
                self._bring(feed)
                with self._state:
                    if not self._in_feed:
                        return  # another thread asks for the feeds to come
                    self._in_feed = False
            last: Any = END
        except Exception as error:  # it is the program's, at its next batch
            last = error
        for inbox in self._inboxes.values():
            inbox.put(last)

    def _bring(self, feed: Any) -> None:
        """Put a feed's rows where they belong, as long as they are wanted."""
        used: set[str] = set()
        try:
            for batches in feed.partitions():
                for batch in batches:
                    (name,) = batch.schema.names
                    used.add(name)
                    if not all(self._inboxes[name].put(Block(_unpickled(each))) for each in batch.column(0)):
                        return  # the program has enough
                    self._inboxes[name].wait_until_taken()  # what the driver is told of is in the program's hands
                for name in used:
                    self._inboxes[name].put(END_OF_PARTITION)
        except Exception:
            if not self._is_closed:  # else the rows were dropped under this thread's hands
                raise

    @property
    def _is_closed(self) -> bool:
        return any(inbox.is_closed for inbox in self._inboxes.values())

    def terminate(self) -> None:
        """Let go what is left, and all that may still come; the feeding job of the driver need not wait."""
        self._end("its program called terminate()")

    def close(self) -> None:
        """Note that the program has returned."""
        self._end("its program has returned")

    def _end(self, reason: str) -> None:
        with self._state:
            in_feed, self._in_feed = self._in_feed, False
            for inbox in self._inboxes.values():
                inbox.close(reason)
        if in_feed:
            Thread(target=self._decline, daemon=True).start()

    def _decline(self) -> None:
        """Ask for all feeds to come, and take nothing of them."""
        for _ in self._context.feeds():
            pass

    # ---- rows to be answered

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Hand a partition's rows to the program; yield, for each batch and at the end, the results there are."""
        assert isinstance(header, RowsHeader)
        if header.queue not in self._inboxes:
            raise FeedError(f"there is no queue {header.queue!r}; there are {list(self._inboxes)}")
        inbox = self._inboxes[header.queue]
        question = Question()
        with self._turns[header.queue]:
            try:
                for batch in batches:
                    for each in batch.column(0):
                        rows = _unpickled(each)
                        question.ask(len(rows))
                        inbox.put(Block(rows, question), header.timeout)
                    yield _pickled(question.take())
            finally:
                inbox.put(END_OF_PARTITION)
        question.wait(header.timeout)
        yield _pickled(question.take())


def _unpickled(rows: pa.BinaryScalar) -> list[Any]:
    """Return the rows of a pickled list, as pyspark would."""
    return list(pickle.loads(rows.as_buffer(), encoding="bytes"))


def _pickled(results: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"results": pa.array([pickle.dumps(results)], pa.binary())})
