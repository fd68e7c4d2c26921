"""Feed sessions: one feed, from its request until the programs are done with it.

Its source brings the rows part by part (`driver/feed/sources.py`). The programs get them when all parts have arrived
(``start="all_rows"``: `FeedComplete`), or from the first part on (``start="first_rows"``: `FeedBegins`), in the steps
that a `StepScheduler` grants. An `Announcer` sends both. Rows that the nodes keep are complete after that, for further
passes; others are taken once, and come from one DataFrame or from several in sequence.
"""

import logging
import time
from collections.abc import Callable, Hashable, Sequence, Set
from typing import TYPE_CHECKING

from tensorflowonspark.driver.feed.announcer import Announcer
from tensorflowonspark.driver.feed.feed_progress import FeedProgress, ProgressTimeout, describe_rows
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.sources import HeldTasks, Source, SparkJobs
from tensorflowonspark.driver.metrics.phases import Phase
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    CacheConfig,
    FeedReport,
    PartId,
    PartRef,
    PartsStored,
    PartSummary,
    Split,
    StepGrant,
)
from tensorflowonspark.task.feeder import FeedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.attempt import ClusterAttempt
    from tensorflowonspark.driver.spark.batch_rdd import BatchRDD

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 1.0  # between two checks for progress


class FeedSession:
    """Feeds the nodes of a cluster once.

    A `held` one, whose rows come from the tasks that hold the nodes, is created before the nodes start.
    """

    def __init__(self, attempt: "ClusterAttempt", number: int, request: FeedRequest, *, held: bool = False) -> None:
        self.number = number
        self.request = request
        self.monitor = attempt.monitor
        self.stored: dict[PartRef, PartSummary] = {}  # the parts that the nodes have reported and keep
        self.waited = 0.0  # seconds in which all programs waited until all rows had arrived
        self._attempt = attempt
        self._source: Source = HeldTasks(self) if held else SparkJobs(self, attempt)
        self._scheduler = StepScheduler([node.number for node in self.fed], number)  # if the feed starts early
        self._announcer = Announcer(number, request, self.monitor)
        self._reported = FeedProgress(request, self.monitor.roster, self._scheduler)
        self._all_up = False
        self._began = time.monotonic()
        self._created = time.time()
        self.timeout = ProgressTimeout(request.timeout, self._progress, lambda: self._reported.describe(self._tasks()))
        self.monitor.feed = self

    @property
    def _held(self) -> bool:
        return isinstance(self._source, HeldTasks)

    # ---- the life of a feed

    def run(self) -> None:
        """Feed the rows; return when the programs are done with them."""
        self._began = time.monotonic()
        request = self.request
        try:
            self.timeout.restart()
            if not (request.validation is None or isinstance(request.validation, str)):
                # The programs pass over these rows several times, also beside a stream.
                cache = request.cache if request.keeps_rows else CacheConfig()
                parts = self._source.bring(request.validation, FeedSpec(self.number, Split.VALIDATION, cache))
                with self.monitor.lock:
                    self._announcer.validate_on(parts)
            self.end(self._bring(request.data, self.spec()))
        except Exception as error:
            self.close(str(error).partition("\n")[0])
            raise
        finally:
            self.close()

    def spec(self, batch: int = 0) -> FeedSpec:
        """Return how the rows to train on are fed, or those of one DataFrame of several."""
        request = self.request
        in_parts = self._held and request.starts_early
        column = request.validation_column
        round_robin = request.round_robin and (len(self.fed) > 1 or request.is_global)
        return FeedSpec(self.number, Split.TRAIN, request.cache, column, batch, in_parts, round_robin)

    def feed_batch(self, data: "DataFrame", batch: int) -> None:
        """Feed one DataFrame of several, by its number; return when the programs have taken all its rows."""
        self._bring(data, self.spec(batch))
        with self.monitor.lock:
            self._scheduler.pause(batch + 1)
            self._grant()
        self.wait(lambda: self.is_over or self._scheduler.all_taken)

    def _bring(self, data: "DataFrame | BatchRDD | None", spec: FeedSpec) -> list[PartSummary]:
        """Bring rows to train on, which the programs may take meanwhile; return the parts that the nodes keep."""
        try:
            self.timeout.restart()
            with self.monitor.lock:
                self._all_up = True
                for node in self.monitor.roster.nodes:  # what they have become before this feed
                    self._note_state(node)
                self._grant()
            return self._source.bring(data, spec)
        except FeedError as error:
            if self.request.starts_early and not self._held:  # a held cluster ends with its feed
                self.monitor.roster.send_all(StepGrant(self.number, end=True, failed=str(error)))
            raise

    def end(self, parts: Sequence[PartSummary] = ()) -> None:
        """End the feed, now that all rows have come; return when the programs are done with it.

        Its last steps are granted; if its rows are kept, in the `parts` that the source knows, it is complete.
        """
        request, monitor = self.request, self.monitor
        if request.starts_early:
            with monitor.lock:
                # At once: asynchronous workers that have taken all their rows need not wait for the others.
                self._scheduler.finish()
                self._grant()
                # The attempt that was first to arrive counts, which may be another one than Spark's.
                sent = {each.part: each for each in parts if each.split is Split.TRAIN}
                counted = [each.sent_as(sent.get(each.part, each)) for each in self._scheduler.counted]
                parts = counted + [part for part in parts if part.split is Split.VALIDATION]
        if not request.keeps_rows:
            self.wait(lambda: self.is_over or self._scheduler.all_taken)
            monitor.wait(lambda: self.is_over)
            return
        self._complete(parts)
        if self._held and not request.starts_early:
            return  # `Cluster.join` waits for the programs
        while not self.is_over:
            monitor.wait(lambda: self.is_over or self._announcer.outdated)
            if self._announcer.outdated:
                self._complete(self._source.restore())

    def _complete(self, parts: Sequence[PartSummary]) -> None:
        """Send what has arrived, which is all, to the programs that do not know it yet."""
        monitor = self.monitor
        with monitor.lock:
            if self.is_over or self._source.lost:
                return
            new = not (self._announcer.informed or self.request.starts_early)
            if new and all(node.feed.wanted == self.number for node in self.fed):
                self.waited = time.monotonic() - max([self._began, *(node.feed.wanted_since for node in self.fed)])
            self._announcer.complete(parts)

    def close(self, failure: str = "") -> None:
        """End what still goes on of this feed, because of a failure or because it is over."""
        if self.monitor.feed is not self:
            return  # it was closed before
        self.monitor.end_feed()
        if self._source.job is not None:
            self._source.job.cancel()
        self._attempt.job = None
        self.monitor.run.console.close()
        facts = {"feed": self.number, "rows": self._announcer.rows or sum(self._scheduler.rows.values())}
        self.monitor.run.metrics.events.passed(Phase("feed", self._created, time.time(), facts, failure))

    @property
    def seconds(self) -> float:
        """The seconds since the begin of `run`."""
        return time.monotonic() - self._began

    @property
    def fed(self) -> list[Node]:
        """The nodes that are fed and not lost."""
        return self.monitor.roster.fed()

    @property
    def is_over(self) -> bool:
        """Whether all programs are done with this feed: they have returned, or ask for the next one."""
        return all(self.is_done(node) for node in self.monitor.roster.readers())

    def is_done(self, node: Node) -> bool:
        """Whether the program of a node is done with this feed."""
        return node.program.returned or node.feed.next > self.number

    # ---- messages of the nodes (under the monitor's lock)

    def receive(self, node: Node, message: FeedReport) -> None:
        """Note what a report says of the rows; grant the steps that have become possible by it: most say nothing."""
        if message.feed != self.number:
            return  # a late one, of a feed that is over, or one of files
        if isinstance(message, PartsStored):
            kept = [part for part in message.parts if self.request.keeps_rows or part.split is not Split.TRAIN]
            self.stored.update((part.ref, part) for part in kept)
        self._reported.take(node, message)
        if self.request.starts_early:
            possible = self._scheduler.receive(node.number, message)
            if self._note_state(node) or possible:
                self._grant()
            if node.number in self._scheduler:
                parts, rows = self._scheduler.held(node.number)
                node.feed.holds = describe_rows(parts, self.number, rows)

    def note_program(self, node: Node) -> None:
        """Grant the steps for which the others need not wait for this node any more."""
        if self.request.starts_early and self._note_state(node):
            self._grant()

    def lose(self, node: Node) -> None:
        """Forget what a process that is lost has stored."""
        self.stored = {ref: part for ref, part in self.stored.items() if ref.number != node.number}
        self._announcer.outdated = True
        self.note_program(node)

    def _note_state(self, node: Node) -> bool:
        """Note that a node takes no more rows, or that its program trains apart; return whether that is new."""
        if node.number not in self._scheduler:
            return False
        if node.lost or self.is_done(node):
            self._scheduler.leave(node.number)
            return True
        if node.program.serving and self._scheduler.shared:
            self._scheduler.shared = False
            return True
        return False

    def _grant(self) -> None:
        """Send each node its next steps; before the first, the feed's columns, as its first rows have them."""
        first = self._scheduler.first
        # A held task feeds its node as soon as that is up, when others may not be connected yet.
        if self._all_up and (first is not None or self._scheduler.finished):
            self._announcer.begin(first)
        for number, grant in self._scheduler.grants().items():
            self.monitor.roster.send(number, grant)

    # ---- waiting

    def wait(self, until: Callable[[], bool], look: Callable[[], object] = lambda: None) -> None:
        """Wait for a condition; meanwhile `look` is called from time to time, and may raise what ends the wait.

        Without progress for as long as the request allows it raises `FeedError`; a node that fails is a `NodeError`.
        """
        while not self.monitor.wait(until, _CHECK_SECONDS):
            if self.monitor.breakpoints.places():
                self.timeout.restart()  # whoever looks at a program takes the time that it takes
            self.timeout.check()
            with self.monitor.lock:
                look()

    @property
    def counted_parts(self) -> Set[PartId]:
        """The parts of which an attempt counts, if the programs take the rows as they arrive."""
        return self._scheduler.parts

    def raise_root_cause(self) -> None:
        """Raise the failure of a node, if there is one: tasks fail with the node that they feed, and know less."""
        cause = self.monitor.find_cause()
        if cause is not None:
            raise cause

    # ---- progress

    def _progress(self) -> Hashable:
        return self._reported.state(), len(self.stored), self._tasks() or ()

    def _tasks(self) -> tuple[int, int, int] | None:
        """Return how many tasks of the feeding job are done, run, and are known in all; None without a job."""
        return None if self._source.job is None else self._source.job.tasks()
