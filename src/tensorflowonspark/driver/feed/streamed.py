"""Streamed feeds: the programs take the rows as they arrive, in the steps that a `StepScheduler` grants."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.feed.scheduler import StepScheduler
from tensorflowonspark.driver.feed.session import PARTITIONS_PER_BATCH, FeedSession
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    Backpressure,
    FeedComplete,
    InputStarved,
    PartRef,
    PartsStored,
    PartSummary,
    RowsConsumed,
    Split,
    SplitManifest,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.task.feeder import FeedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EarlyFeed", "StreamedFeed"]

_FOR_STEPS = (StreamOpened, PartsStored, Backpressure, InputStarved)  # after which others may be possible


class StreamedFeed:
    """Rows that the programs take as they arrive: of one DataFrame, or of several in sequence as one feed.

    Parameters
    ----------
    session : FeedSession
        The session that it belongs to.

    Attributes
    ----------
    session : FeedSession
        The same.
    """

    def __init__(self, session: FeedSession) -> None:
        self.session = session
        self._monitor = session.monitor
        self._reading: set[int] = set()  # nodes whose programs have begun to read
        self._opened = False  # the programs know the feed's columns
        self._scheduler = StepScheduler([node.number for node in session.fed], session.number)

    def feed(self, data: "DataFrame | None") -> None:
        """Stream one DataFrame, and wait until the programs are done with it."""
        assert data is not None
        self.feed_batch(data, 0, last=True)
        self.session.wait_until_over()

    def gather(self, data: "DataFrame", spec: FeedSpec) -> list[PartSummary]:
        """Run a job that feeds rows which the nodes keep, those to validate on; return what the nodes have stored."""
        return self.session.collect(self.session.send(data, spec))

    def feed_batch(self, data: "DataFrame", first_partition: int, *, last: bool = False) -> None:
        """Stream a DataFrame; return when the programs have taken all its rows."""
        session, scheduler = self.session, self._scheduler
        self._send(data, first_partition)
        if last:
            self._finish()  # at once: asynchronous workers that have taken all their rows need not wait for the others
        else:
            with self._monitor.lock:
                scheduler.pause(first_partition + PARTITIONS_PER_BATCH)
                self._grant()
        session.wait(lambda: session.is_over or scheduler.all_taken)

    def _send(self, data: "DataFrame", first_partition: int) -> None:
        """Run the feeding job; return when all its parts are known."""
        session = self.session
        with self._monitor.lock:
            for node in self._monitor.nodes:  # what they have become before this feed; later each sends a message
                self._note_state(node)
        try:
            session.timeout.restart()
            spec = FeedSpec(session.number, storage=session.request.cache, first_partition=first_partition)
            accepted = session.send(data, spec)
            # The nodes report their parts themselves, and the job's result may be first.
            self._wait_for_reports(accepted)
        except FeedError as error:
            self._monitor.send_all(StepGrant(session.number, end=True, failed=str(error)))
            raise

    def _finish(self) -> None:
        """Grant the remaining steps, and the end."""
        with self._monitor.lock:
            self._open(None)
            self._scheduler.finish()
            self._grant()

    def end_stream(self) -> None:
        """Send the programs the end of the feed, and wait until they are done with it."""
        self._finish()
        self.session.wait_until_over()

    def _wait_for_reports(self, accepted: list[PartRef]) -> None:
        """Wait until the nodes have reported the parts to train on, or the programs are done with the feed."""
        session = self.session

        def missing() -> list[PartRef]:
            gone = {node.number for node in self._monitor.nodes if node.lost or session.is_done(node)}
            known = self._scheduler.partitions
            rest = [ref for ref in accepted if ref.split is Split.TRAIN and ref.number not in gone]
            return [ref for ref in rest if ref.partition not in known]

        session.wait_for_parts(missing)

    def on_message(self, node: Node, message: Any) -> None:
        """Schedule the next steps, if the message bears on them: most say only that rows were taken."""
        scheduler = self._scheduler
        if isinstance(message, StreamOpened):
            self._reading.add(node.number)
            if message.shares is None:
                scheduler.make_independent()
            else:
                scheduler.open(node.number, message.shares)
        elif isinstance(message, PartsStored):
            self._store(message.parts)
        elif isinstance(message, Backpressure):
            scheduler.press(node.number)
        elif isinstance(message, InputStarved):
            scheduler.starve(node.number)
        elif isinstance(message, RowsConsumed):
            scheduler.take(node.number, message.rows)
        if self._note_state(node) or isinstance(message, _FOR_STEPS):
            self._grant()
        if node.number in scheduler:
            partitions, rows = scheduler.held(node.number)
            self.session.note_held(node.number, partitions, rows)

    def _store(self, parts: Sequence[PartSummary]) -> None:
        for part in parts:
            if part.split is Split.TRAIN and self._scheduler.store(part) and part.rows:
                self._open(part)

    def _note_state(self, node: Node) -> bool:
        """Note that a node takes no more rows, or that its program trains apart; return whether that is new."""
        if node.number not in self._scheduler:
            return False
        if node.lost or self.session.is_done(node):
            self._scheduler.leave(node.number)
            return True
        if node.serving and self._scheduler.shared:
            self._scheduler.make_independent()
            return True
        return False

    def _open(self, first: PartSummary | None) -> None:
        """Send the programs the feed's columns, as its first rows have them."""
        if self._opened:
            return
        self._opened = True
        rows = dict.fromkeys((node.number for node in self.session.fed), 0)
        train = SplitManifest(rows, columns=first.columns, schema=first.schema) if first else SplitManifest(rows)
        request = self.session.request
        arrives = bool(request.validation_column)  # the rows to validate on, among the others
        for node in self.session.readers:
            validation = train if arrives else self.session.validation.get(node.number)
            begins = FeedComplete(
                self.session.number,
                train,
                validation,
                streams=True,
                starts_early=request.starts_early,
                validation_arrives=arrives,
            )
            self._monitor.send(node.number, begins)

    def _grant(self) -> None:
        """Send each node its next steps."""
        for number, grant in self._scheduler.grants().items():
            self._monitor.send(number, grant)

    def rows_received(self, node: Node) -> int:
        """Return how many rows of a node count so far."""
        return self._scheduler.rows.get(node.number, 0)

    def describe(self, node: Node) -> str:
        """Return how many rows the program of a node has taken."""
        if node.number not in self._reading:
            return f", and its program has not begun to read them ({self.session.request.read_with})"
        return f", of which its program has taken {self.session.consumed.get(node.number, 0):,}"

    def advice(self) -> str:
        """Return which workers have run out of rows, if the others may wait for them in a step."""
        fed, consumed = self.session.fed, self.session.consumed
        dry = [str(each.role) for each in fed if self.session.rows_received(each) <= consumed.get(each.number, 0)]
        if self._scheduler.shared or not 0 < len(dry) < len(fed):
            return ""
        return (
            f"{', '.join(dry)} has no rows left: if the workers train in step, the others wait for it; let all take as "
            "many steps and call terminate() then, or use ctx.dataset, whose steps are even"
        )


class EarlyFeed(StreamedFeed):
    """Rows of one DataFrame that the nodes keep, and that the programs begin to take as they arrive."""

    def feed(self, data: "DataFrame | None") -> None:
        """Run the job, complete the feed, and wait until the programs are done with it."""
        assert data is not None
        session = self.session
        self._send(data, 0)
        self._finish()
        session.complete(session.collect([part.ref for part in self._scheduler.counted]))
        session.wait_until_over()
