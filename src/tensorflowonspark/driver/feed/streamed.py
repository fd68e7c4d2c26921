"""Streamed feeds: rows that are passed on as they come, scheduled by a `StepScheduler`."""

from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.attempt import ClusterAttempt
from tensorflowonspark.driver.feed.scheduler import StepScheduler
from tensorflowonspark.driver.feed.session import PARTITIONS_PER_BATCH, FeedSession, FeedSettings
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    Backpressure,
    FeedComplete,
    InputStarved,
    PartsStored,
    PartSummary,
    RowsConsumed,
    SplitManifest,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.task.feeder import FeedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.spark.batch_rdd import BatchRDD

__all__ = ["StreamedFeed"]


class StreamedFeed(FeedSession):
    """Streams rows to the nodes of a cluster: one DataFrame, or one after the other as one feed."""

    def __init__(self, life: ClusterAttempt, feed: int, settings: FeedSettings) -> None:
        super().__init__(life, feed, settings)
        self._reading: set[int] = set()  # nodes whose programs have begun to read
        self._opened = False  # the programs know what is in it
        self._plan = StepScheduler([node.number for node in self._fed], feed)

    def _feed_rows(self, data: "DataFrame | BatchRDD", validation_column: str) -> None:
        assert not validation_column  # which `Cluster.train` refuses: rows to validate on are kept
        self.feed_batch(data, 0, last=True)

    def feed_batch(self, data: "DataFrame | BatchRDD", first_partition: int, *, last: bool = False) -> None:
        """Stream a DataFrame; return when the programs have taken all its rows."""
        plan = self._plan
        try:
            self._patience.begin()
            parts = self._send(
                data, FeedSpec(self._feed, storage=self._settings.storage, first_partition=first_partition)
            )
            # The nodes tell of their parts themselves, and Spark's word may come before theirs.
            self._wait(lambda: self._alive(parts) <= plan.partitions or self.is_over)
        except FeedError as error:
            self._monitor.send_all(StepGrant(self._feed, end=True, failed=str(error)))
            raise
        with self._monitor.changed:
            if last:
                # Told at once: workers of asynchronous training that are through need not wait for the others.
                self._open_stream(None)
                plan.finish()
            else:
                plan.pause(first_partition + PARTITIONS_PER_BATCH)
            self._speak()
        self._wait(lambda: self.is_over or plan.all_taken)

    def end_stream(self) -> None:
        """Tell the programs that nothing more comes, and wait until they are done."""
        with self._monitor.changed:
            self._open_stream(None)
            self._plan.finish()
            self._speak()
        self._monitor.wait(lambda: self.is_over)

    def _alive(self, parts: list[PartSummary]) -> set[int]:
        """Return the partitions of those parts whose nodes are neither lost nor done with the feed."""
        nodes = self._monitor.nodes
        gone = {node.number for node in nodes if node.lost or self._is_done(node)}
        return {part.partition for part in parts if part.number not in gone}

    def _hear(self, node: Node, message: Any) -> None:
        super()._hear(node, message)
        if not self._is_late(message):
            self._go_on(self._plan, node, message)

    def _go_on(self, plan: StepScheduler, node: Node, message: Any) -> None:
        """Follow a stream."""
        if isinstance(message, StreamOpened):
            self._reading.add(node.number)
            if message.batch_rows is None:
                plan.part_company()
            else:
                plan.open(node.number, message.batch_rows)
        elif isinstance(message, PartsStored):
            for part in message.parts:
                if plan.store(part) and part.rows:
                    self._open_stream(part)
        elif isinstance(message, Backpressure):
            plan.press(node.number)
        elif isinstance(message, InputStarved):
            plan.starve(node.number)
        elif isinstance(message, RowsConsumed):
            plan.take(node.number, message.rows)
        self._speak()
        if node.number in plan.rows:
            self._hold(node.number, *plan.held(node.number))

    def _open_stream(self, first: PartSummary | None) -> None:
        """Tell the programs what comes, as the first rows show it."""
        if self._opened:
            return
        self._opened = True
        rows = dict.fromkeys((node.number for node in self._fed), 0)
        train = SplitManifest(rows, columns=first.columns, schema=first.schema) if first else SplitManifest(rows)
        for node in self._readers:
            validation = self._validation.get(node.number)
            self._monitor.tell(node.number, FeedComplete(self._feed, train, validation, streams=True))

    def _speak(self) -> None:
        for node in self._monitor.nodes:
            if node.lost or self._is_done(node):
                self._plan.leave(node.number)
            elif node.serving and node.number in self._plan.rows:
                self._plan.part_company()
        for number, word in self._plan.words().items():
            self._monitor.tell(number, word)

    def _came(self, node: Node) -> int:
        return max(super()._came(node), self._plan.rows.get(node.number, 0))

    def _what_of_them(self, node: Node) -> str:
        if node.number not in self._reading:
            return f", and its program has not begun to read them ({self._settings.read_with})"
        return f", of which its program has taken {self._taken.get(node.number, 0):,}"

    def _story(self) -> str:
        fed = self._fed
        dry = [str(each.role) for each in fed if self._came(each) <= self._taken.get(each.number, 0)]
        if self._plan.shared or not 0 < len(dry) < len(fed):
            return super()._story()
        return (
            f"{super()._story()}. {', '.join(dry)} has no rows left: if the workers train in step, the others wait for "
            "it; let all take as many steps and call terminate() then, or use ctx.dataset, whose steps are even"
        )
