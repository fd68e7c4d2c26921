"""Feeds of a held cluster: the tasks that hold the nodes send their own partition, each to its node.

Spark repeats no task of a barrier stage alone, and nodes of a repeated stage are rejected. Each task therefore feeds
once, and a part of its partition can count before the rest has arrived.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorflowonspark.driver.feed.session import CompleteFeed, FeedSession
from tensorflowonspark.driver.feed.streamed import StreamedFeed
from tensorflowonspark.driver.spark.jobs import not_computed
from tensorflowonspark.feed_messages import PartRef, PartSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EarlyHeldFeed", "HeldFeed"]


class HeldFeed(CompleteFeed):
    """Rows that the nodes keep, and that the programs take when all have arrived."""

    def feed(self, _data: "DataFrame | None") -> None:
        """Wait for the tasks, and complete the feed; `Cluster.join` waits for the programs."""
        session = self._session
        session.complete(session.collect(_wait_for_tasks(session, lambda: False)))


class EarlyHeldFeed(StreamedFeed):
    """Rows that the nodes keep, and that the programs begin to take as they arrive.

    Parameters
    ----------
    session : FeedSession
        The session that it belongs to; it is created before the nodes start.
    """

    def __init__(self, session: FeedSession) -> None:
        super().__init__(session)
        session.partition_numbers = len(session.monitor.nodes)  # by which the numbers of a task's parts differ
        self._all_up = False
        self._first: PartSummary | None = None  # that has arrived before

    def feed(self, _data: "DataFrame | None") -> None:
        """Wait for the tasks, complete the feed, and wait until the programs are done with it."""
        with self._monitor.lock:
            self._all_up = True
            if self._first is not None:
                self._open(self._first)
                self._grant()
        session = self.session
        parts = _wait_for_tasks(session, lambda: session.is_over)
        self._wait_for_reports(parts)
        self._finish()
        session.complete(session.collect(parts))
        session.wait_until_over()

    def _open(self, first: PartSummary | None) -> None:
        # A task feeds its node as soon as that is up, when others may not be connected yet.
        if self._all_up:
            super()._open(first)
        elif self._first is None:
            self._first = first


def _wait_for_tasks(session: FeedSession, over: Callable[[], bool]) -> list[PartRef]:
    """Wait until all tasks have fed their nodes, or the feed is over; return the parts that count.

    Raises
    ------
    FeedError
        If a task could not feed its node.
    NodeError
        If a node fails.
    """

    def failures() -> list[str]:
        return [node.feed_failed for node in session.fed if node.feed_failed]

    def fed() -> bool:
        return all(node.fed_parts is not None for node in session.fed)

    session.wait(lambda: bool(failures()) or fed() or over())
    if failures() and not over():
        session.raise_root_cause()
        raise not_computed(failures()[0])
    return session.note_checksums([ref for node in session.fed for ref in node.fed_parts or ()])
