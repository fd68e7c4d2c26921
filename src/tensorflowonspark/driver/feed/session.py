"""Feed sessions: one feed, from its request until the programs are done with it.

A session does what all feeds have in common: it runs the jobs, waits for the nodes' reports, and fails when nothing
progresses. Its strategy decides when the programs get the rows: `CachedFeed`, `RecoverableFeed` and `HeldFeed` when all
have arrived, `StreamedFeed`, `EarlyFeed` and `EarlyHeldFeed` as they arrive.
"""

import logging
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import google_crc32c

from tensorflowonspark.driver.feed.job import Contents, FeedRequest, accepted_parts, node_endpoints
from tensorflowonspark.driver.feed.manifest import build_manifests
from tensorflowonspark.driver.feed.progress import ProgressTimeout, describe_rows
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    CacheConfig,
    FeedComplete,
    FeedReport,
    PartRef,
    PartsStored,
    PartSummary,
    RowsConsumed,
    RowsReceived,
    Split,
    SplitManifest,
)
from tensorflowonspark.task.feeder import FeedSpec, NodeEndpoint, PartitionFeeder
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.attempt import ClusterAttempt
    from tensorflowonspark.driver.spark.jobs import RunningJob

__all__ = ["PARTITIONS_PER_BATCH", "CachedFeed", "CompleteFeed", "FeedSession", "FeedStrategy"]

_log = logging.getLogger(__name__)
# The DataFrames of a stream share one sequence of partition numbers; each has room for more than Spark can run.
PARTITIONS_PER_BATCH = 1 << 20
_CHECK_SECONDS = 1.0  # between two checks for progress
# For a node that still sends messages to report a part whose task has ended; it should have before the task ended.
_REPORT_SECONDS = 10.0


class FeedStrategy(Protocol):
    """When the programs get the rows of a feed."""

    def feed(self, data: "DataFrame | None") -> None:
        """Feed the rows to train on, and send the programs what they need to read them."""

    def gather(self, data: "DataFrame", spec: FeedSpec) -> list[PartSummary]:
        """Feed rows that the nodes keep; return what they have stored."""

    def on_message(self, node: Node, message: Any) -> None:
        """Process a message about this feed (called under the monitor's lock)."""

    def rows_received(self, node: Node) -> int:
        """Return how many rows are known to have reached a node, apart from those that it reports itself."""

    def describe(self, node: Node) -> str:
        """Return what becomes of the rows that a node has received, for errors."""

    def advice(self) -> str:
        """Return what explains a lack of progress, for errors; empty if nothing does."""


class FeedSession:
    """Feeds the nodes of a cluster once.

    Parameters
    ----------
    attempt : ClusterAttempt
        The cluster's current attempt.
    number : int
        The feed's number.
    request : FeedRequest
        What is fed, and how.
    strategy : callable
        Returns the `FeedStrategy` of a session.

    Attributes
    ----------
    strategy : FeedStrategy
        What decides when the programs get the rows.
    validation : dict of int to SplitManifest
        The rows to validate on, by node; empty if there are none.
    consumed : dict of int to int
        How many rows the program of each node has taken.
    partition_numbers : int
        The number of Spark's partitions. A part has the number of its partition, plus a multiple of this if the
        partition has several parts.
    waited : float
        The seconds for which all programs have waited until all rows had arrived.
    stored : dict of PartRef to PartSummary
        The parts that the nodes have reported; not those of a stream.
    """

    def __init__(
        self,
        attempt: "ClusterAttempt",
        number: int,
        request: FeedRequest,
        strategy: Callable[["FeedSession"], FeedStrategy],
    ) -> None:
        self.number = number
        self.request = request
        self.monitor = attempt.monitor
        self.validation: dict[int, SplitManifest] = {}
        self.consumed: dict[int, int] = {}
        self.partition_numbers = PARTITIONS_PER_BATCH
        self.waited = 0.0
        self._began = time.monotonic()
        self._attempt = attempt
        self._endpoints: tuple[NodeEndpoint, ...] = ()
        self._received: dict[int, int] = {}
        self.stored: dict[PartRef, PartSummary] = {}
        self._checksums: dict[tuple[Split, int], int] = {}  # by partition
        self._job: RunningJob | None = None
        self.strategy = strategy(self)
        self.timeout = ProgressTimeout(request.timeout, self._progress, self._describe)
        self.monitor.begin_feed(number, self._on_message)

    def run(self) -> None:
        """Feed the rows; return when the programs are done with them."""
        self._began = time.monotonic()
        try:
            self.timeout.restart()
            self._feed_validation(self.request.validation)
            self.strategy.feed(self.request.data)
        finally:
            self.close()

    def _feed_validation(self, data: "DataFrame | str | None") -> None:
        if data is None or isinstance(data, str):
            return
        # The programs pass over these rows several times, also beside a stream.
        cache = CacheConfig() if self.request.is_streamed else self.request.cache
        parts = self.strategy.gather(data, FeedSpec(self.number, Split.VALIDATION, cache))
        self.validation = self.manifests(parts, Split.VALIDATION)

    @property
    def training_spec(self) -> FeedSpec:
        """How the rows to train on are fed, if the nodes keep them."""
        return FeedSpec(self.number, Split.TRAIN, self.request.cache, self.request.validation_column)

    @property
    def seconds(self) -> float:
        """The seconds since the begin of `run`."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """End what still goes on of this feed."""
        self.monitor.end_feed()
        if self._job is not None:
            self._job.cancel()
        self._attempt.release_job()
        self._attempt.console.close()

    # ---- for strategies

    def send(self, data: "DataFrame", spec: FeedSpec) -> list[PartRef]:
        """Run a feeding job; return the parts that count.

        If it fails since a node is lost that the others can do without, it runs once more with the nodes that are left:
        a partition counts once, whichever job has fed it.

        Raises
        ------
        FeedError
            If Spark can't compute the data, or nothing progresses.
        NodeError
            If a node fails.
        """
        while True:
            job = self.submit(data, spec)
            self.wait(lambda job=job: job.ended or self.is_over)  # type: ignore[misc]
            try:
                return self.accepted(job)
            except FeedError:
                if not any(self.monitor.nodes[each.number].lost for each in self._endpoints):
                    raise

    def submit(
        self,
        data: "DataFrame",
        spec: FeedSpec,
        nodes: Sequence[Node] | None = None,
        chosen: Callable[[int], bool] | None = None,
    ) -> "RunningJob":
        """Start a feeding job.

        Parameters
        ----------
        data : DataFrame
            The rows.
        spec : FeedSpec
            How they are fed.
        nodes : sequence of Node, optional
            The nodes that are fed; by default all.
        chosen : callable, optional
            Returns whether the partition of a number is fed; by default all are.
        """
        if nodes is None:  # independent workers may return while others still read
            nodes = [node for node in self.fed if not node.returned] or self.fed
        self._endpoints = node_endpoints(nodes, self._attempt.address)
        feeder = PartitionFeeder(self._endpoints, self._attempt.credentials, spec)
        rows = "" if spec.split is Split.TRAIN else f", {spec.split.value} rows,"
        nodes_text = f"{len(nodes)} nodes" if len(nodes) > 1 else str(nodes[0].role)
        description = self._attempt.describe_job(f"feed {spec.feed}{rows} to {nodes_text}")
        self._job = self._attempt.backend.submit(feeder, data, description, self.monitor.wake, chosen)
        self._attempt.hold_job(self._job)
        return self._job

    def accepted(self, job: "RunningJob") -> list[PartRef]:
        """Return the parts that count, from the result of a feeding job; raise what it has failed of."""
        if self.is_over:
            return []  # the programs were done before all rows arrived
        if job.error is not None:
            self.raise_root_cause()
        return self.note_checksums(accepted_parts(job))

    def note_checksums(self, refs: list[PartRef]) -> list[PartRef]:
        """Note the checksums of parts that count; return these."""
        self._checksums.update({(ref.split, ref.partition): ref.checksum for ref in refs})
        return refs

    def checksum(self, split: Split, partition: int) -> int:
        """Return the checksum of a partition's rows; 0 if there is none."""
        return self._checksums.get((split, partition), 0)

    def collect(self, refs: Sequence[PartRef]) -> list[PartSummary]:
        """Wait for the nodes' reports of parts; return the summaries.

        The job's result and the reports take different paths, and either may be first. A node that is lost reports
        nothing more; the parts that it has not reported are left out.
        """
        self.wait_for_parts(lambda: self.unreported(refs))
        return [self.stored[ref] for ref in refs if ref in self.stored]

    def unreported(self, refs: Sequence[PartRef]) -> list[PartRef]:
        """Return the parts that nodes have yet to report."""
        return [ref for ref in refs if ref not in self.stored and not self.monitor.nodes[ref.number].lost]

    def wait_for_parts(self, missing: Callable[[], Sequence[PartRef]], until: Callable[[], bool] | None = None) -> None:
        """Wait until no part is missing that a task has sent, the feed is over, or another condition holds.

        Raises
        ------
        FeedError
            If a node that still sends messages does not report its part.
        """
        fewest, since = 0, 0.0
        while not self.monitor.wait(
            lambda: self.is_over or (until is not None and until()) or not missing(), _CHECK_SECONDS
        ):
            self.timeout.check()
            with self.monitor.lock:
                absent = missing()
                if len(absent) != fewest:
                    fewest, since = len(absent), time.monotonic()
                for ref in absent:
                    if self.monitor.nodes[ref.number].last_message > since + _REPORT_SECONDS:
                        raise FeedError(self._astray(ref, len(absent)))

    def _astray(self, ref: PartRef, parts: int) -> str:
        """Return the error of a part that its node does not report."""
        node, others = self.monitor.nodes[ref.number], self.monitor.nodes
        has = next((others[each.number] for each in self.stored if replace(each, number=ref.number) == ref), None)
        found = f"{has.role} on {has.host} reports them" if has else "no other node reports them"
        return (
            f"partition {ref.partition % self.partition_numbers}: its task has sent the rows to {node.role} on "
            f"{node.host}, which does not report them, and {found} (missing parts: {parts}). See whether what is "
            "between the executors (a proxy, NAT) exchanges their addresses, and feed the rows again"
        )

    def manifests(self, parts: Sequence[PartSummary], split: Split) -> dict[int, SplitManifest]:
        """Return the manifest of a split for each node that reads it."""
        fed = self.fed
        readers = [node.number for node in self.readers if node not in fed]
        # Workers of parameter servers train asynchronously and need no even shards; when one of them dies the others
        # go on, which they could not in the midst of a move. So do nodes that are started again alone.
        together = not (self.monitor.spec.num_ps or self._attempt.restarts_nodes)
        rebalance = self.request.rebalance and together
        own = [part for part in parts if part.split is split]
        contents = {part.partition: (part.rows, self.checksum(split, part.partition)) for part in own if part.rows}
        placed = sorted((part.partition, part.number, contents[part.partition]) for part in own if part.rows)
        self._compare(contents, split)
        return build_manifests(
            own, node_endpoints(fed), self.request.cache, rebalance, readers, google_crc32c.value(repr(placed).encode())
        )

    def _compare(self, contents: Contents, split: Split) -> None:
        """Warn if Spark has computed other rows than before a restart."""
        before = self.request.contents.get(split, contents)
        self.request.contents[split] = contents
        for partition in sorted(before.keys() | contents.keys()):
            had, has = before.get(partition, (0, 0)), contents.get(partition, (0, 0))
            if had != has:
                now = f"{has[0]:,}" if had[0] != has[0] else "others, or the same in another order"
                text = (
                    "feed %d: Spark has computed other rows than before the restart (partition %d had %s rows, and now "
                    "has %s): programs that resume within an epoch begin it again. cache() the DataFrame, or write it "
                    "to files and feed these"
                )
                CONSOLE.log(_log, logging.WARNING, text, self.number, partition, f"{had[0]:,}", now)
                return

    def complete(self, parts: Sequence[PartSummary], numbers: Collection[int] | None = None) -> None:
        """Send the programs what has arrived, which is all; if `numbers` are given, those of these nodes alone."""
        if self.request.validation_column:
            self.validation = self.manifests(parts, Split.VALIDATION)
        if (
            numbers is None
            and not self.request.starts_early
            and all(node.feed_wanted == self.number for node in self.fed)
        ):
            since = max([self._began, *(node.feed_wanted_since for node in self.fed)])
            self.waited = time.monotonic() - since
        for number, split in self.manifests(parts, Split.TRAIN).items():
            if numbers is not None and number not in numbers:
                continue
            self.note_held(number, [partition for partition, _ in split.parts], split.rows.get(number, 0))
            complete = FeedComplete(
                self.number, split, self.validation.get(number), starts_early=self.request.starts_early
            )
            self.monitor.send(number, complete)

    def note_held(self, number: int, partitions: Sequence[int], rows: int) -> None:
        """Note which rows a node holds: they are named if it is lost."""
        numbers = list(dict.fromkeys(each % self.partition_numbers for each in partitions))
        self.monitor.nodes[number].holds = describe_rows(numbers, self.number, rows)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for a condition.

        Raises
        ------
        FeedError
            If nothing progresses for as long as the request allows.
        NodeError
            If a node fails.
        """
        while not self.monitor.wait(until, _CHECK_SECONDS):
            self.timeout.check()

    def wait_until_over(self) -> None:
        """Wait until the programs are done with the feed, however long that takes."""
        self.monitor.wait(lambda: self.is_over)

    def raise_root_cause(self) -> None:
        """Raise the failure of a node, if there is one: tasks fail with the node that they feed, and know less."""
        cause = self.monitor.find_cause()
        if cause is not None:
            raise cause

    @property
    def fed(self) -> list[Node]:
        """The nodes that are fed and not lost."""
        return self.monitor.fed()

    @property
    def readers(self) -> list[Node]:
        """The nodes that need the manifests: those that are fed, and a chief that reads for workers that serve."""
        fed = self.fed
        chief = self.monitor.chief
        return fed if chief in fed else [*fed, chief]

    @property
    def is_over(self) -> bool:
        """Whether all programs are done with this feed: they have returned, or ask for the next one."""
        return all(self.is_done(node) for node in self.monitor.readers())

    def is_done(self, node: Node) -> bool:
        """Whether the program of a node is done with this feed."""
        return node.returned or max(node.feed_wanted, node.first_feed) > self.number

    # ---- messages of the nodes (under the monitor's lock)

    def _on_message(self, node: Node, message: Any) -> None:
        if isinstance(message, FeedReport) and message.feed != self.number:
            return  # a late one, of a feed that is over
        if isinstance(message, PartsStored):
            self.stored.update((part.ref, part) for part in message.parts if not self._is_streamed(part.split))
        elif isinstance(message, RowsReceived):
            self._received[node.number] = message.rows
        elif isinstance(message, RowsConsumed):
            self.consumed[node.number] = message.rows
        self.strategy.on_message(node, message)

    def _is_streamed(self, split: Split) -> bool:
        return self.request.is_streamed and split is Split.TRAIN

    # ---- progress

    def _progress(self) -> Hashable:
        tasks = self._job.tasks() if self._job is not None else ()
        programs = tuple((node.feed_wanted, node.returned, node.serving) for node in self.monitor.nodes)
        return tuple(self._received.items()), tuple(self.consumed.items()), len(self.stored), tasks, programs

    def rows_received(self, node: Node) -> int:
        """Return how many rows have reached a node, as far as the driver knows."""
        return max(self._received.get(node.number, 0), self.strategy.rows_received(node))

    def _describe(self) -> str:
        """Return which process waits for which."""
        parts = []
        if self._job is not None:
            done, running, total = self._job.tasks()
            parts.append(f"of the feeding job's tasks {done} of {total} are done and {running} are running")
        for node in self.fed:
            received = f"{node.role} on {node.host} has received {self.rows_received(node):,} {self.request.unit}"
            parts.append(received + self.strategy.describe(node))
        text = "; ".join(parts) + ". Look at the job in Spark's UI and at the nodes' output, or raise timeout"
        advice = self.strategy.advice()
        return f"{text}. {advice}" if advice else text


class CompleteFeed:
    """What feeds have in common whose programs begin when all rows have arrived."""

    def __init__(self, session: FeedSession) -> None:
        self._session = session

    def gather(self, data: "DataFrame", spec: FeedSpec) -> list[PartSummary]:
        """Run the job; return what the nodes have stored."""
        return self._session.collect(self._session.send(data, spec))

    def on_message(self, node: Node, message: Any) -> None:
        """Do nothing: the session notes what it needs."""

    def rows_received(self, _node: Node) -> int:
        """Return 0: what a node has received it reports itself."""
        return 0

    def describe(self, _node: Node) -> str:
        """Return that a node waits for the other rows."""
        return " and waits for the rest"

    def advice(self) -> str:
        """Return no advice."""
        return ""


class CachedFeed(CompleteFeed):
    """Rows that the nodes keep, sent by a Spark job."""

    def feed(self, data: "DataFrame | None") -> None:
        """Run the job, complete the feed, and wait until the programs are done with it."""
        assert data is not None
        session = self._session
        session.complete(self.gather(data, session.training_spec))
        session.wait_until_over()
