"""A feed session: one feed, from ``cluster.train`` until the programs are done with it.

A feed that is *kept* is sealed when all of it has come: then the rows of each node are known, and the programs begin.
(One that streams is in `streamrun`.)
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.attempt import ClusterAttempt
from tensorflowonspark.driver.feed.job import contents, fed_parts, node_endpoints
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.spark.jobs import not_computed
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import (
    Backpressure,
    CacheConfig,
    CacheMode,
    FeedComplete,
    InputStarved,
    PartsStored,
    PartSummary,
    PassEnded,
    PassesEnded,
    RowsConsumed,
    RowsReceived,
    Split,
    SplitManifest,
    StreamOpened,
)
from tensorflowonspark.task.feeder import FeedSpec, NodeEndpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.spark.backend import Job
    from tensorflowonspark.driver.spark.batch_rdd import BatchRDD

__all__ = ["PARTITIONS_PER_BATCH", "FeedSession", "FeedSettings", "ProgressTimeout"]

_LOOK_SECONDS = 1.0
_NAMED_PARTITIONS = 8  # more are counted
_ABOUT_A_FEED = (PassEnded, Backpressure, RowsReceived, InputStarved, PartsStored, StreamOpened, RowsConsumed)
# The partitions of a stream's DataFrames are numbered on from one to the next, with room for more than Spark can run.
PARTITIONS_PER_BATCH = 1 << 20


@dataclass(frozen=True)
class FeedSettings:
    """How a feed is to be; `Cluster.train` says what each means."""

    storage: CacheConfig = field(default_factory=CacheConfig)
    rebalance: bool = True
    timeout: float = 600.0
    independent_workers: bool = False  # they take no steps together
    unit: str = "rows"  # of what is counted, and
    read_with: str = "ctx.dataset"  # the function that reads it: for error messages


class FeedSession:
    """Feeds the nodes of a cluster once.

    Parameters
    ----------
    life : Lifetime
        The cluster's.
    feed : int
        The feed's number.
    settings : FeedSettings
        How it is to be.
    """

    def __init__(self, life: ClusterAttempt, feed: int, settings: FeedSettings) -> None:
        self._life = life
        self._monitor = life.monitor
        self._feed = feed
        self._settings = settings
        self._targets: tuple[NodeEndpoint, ...] = ()
        self._received: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._validation: dict[int, SplitManifest] = {}
        self._passes: dict[tuple[int, Split], int] = {}  # that a node has ended
        self._passes_told: dict[Split, int] = {}
        self._job: Job | None = None
        self._patience = ProgressTimeout(settings.timeout, self._marks, self._story)
        self._monitor.on_feed = self._hear
        self._monitor.feed = feed

    # ---- what it does

    def train(self, data: "DataFrame | BatchRDD", validation: "DataFrame | str | None") -> None:
        """Feed, and return when the programs are done with it."""
        try:
            column = validation if isinstance(validation, str) else ""
            if validation is not None and not column:
                self._validation = self._contents(self._gather(validation, Split.VALIDATION), Split.VALIDATION)
            self._feed_rows(data, column)
            self._monitor.wait(lambda: self.is_over)
        finally:
            self.close()

    def _feed_rows(self, data: "DataFrame | BatchRDD", validation_column: str) -> None:
        """Feed the rows to train on, and tell the programs of them."""
        parts = self._gather(data, Split.TRAIN, validation_column)
        if validation_column:
            self._validation = self._contents(parts, Split.VALIDATION)
        self.seal(self._contents(parts, Split.TRAIN))

    def _gather(self, data: "DataFrame | BatchRDD", split: Split, validation_column: str = "") -> list[PartSummary]:
        """Feed rows that are kept; return the parts that count."""
        # Rows to validate on are passed over several times, also beside a stream.
        kept = self._settings.storage
        storage = CacheConfig() if split is Split.VALIDATION and kept.keep is CacheMode.NONE else kept
        return self._send(data, FeedSpec(self._feed, split, storage, validation_column))

    def _send(self, data: "DataFrame | BatchRDD", order: FeedSpec) -> list[PartSummary]:
        """Run the job; once more, to those that are left, if it failed since a node was lost that they can do without.

        Of a stream's partitions those that have come to count are dropped when they come again.
        """
        while True:
            self._start(data, order)
            self._wait(lambda: self._job_ended() or self.is_over)
            try:
                return self._job_parts()
            except FeedError:
                if not any(self._monitor.nodes[target.number].lost for target in self._targets):
                    raise

    def seal(self, train: dict[int, SplitManifest]) -> None:
        """Tell the programs that all rows have come."""
        for number, split in train.items():
            self._hold(number, [partition for partition, _ in split.parts], split.rows.get(number, 0))
            self._monitor.tell(number, FeedComplete(self._feed, split, self._validation.get(number)))

    def seal_held(self, validation_column: str) -> None:
        """Seal what the tasks of a held stage have fed, each to its own node."""
        try:
            self._wait(lambda: all(node.stored is not None for node in self._fed) or bool(self._held_failures()))
            if self._held_failures():
                self._raise_cause()
                raise not_computed(self._held_failures()[0])
            parts = [part for node in self._fed for part in node.stored or ()]
            if validation_column:
                self._validation = self._contents(parts, Split.VALIDATION)
            self.seal(self._contents(parts, Split.TRAIN))
        finally:
            self.close()

    def _held_failures(self) -> list[str]:
        return [node.feed_failed for node in self._fed if node.feed_failed]

    def close(self) -> None:
        """End what is still going on of it."""
        self._monitor.on_feed = self._monitor.feed = None
        for node in self._monitor.nodes:
            node.holds = ""
        if self._job is not None:
            self._job.cancel()
        self._life.feeding = None
        self._life.watcher.close()

    # ---- parts of it

    @property
    def _fed(self) -> list[Node]:
        return self._monitor.fed()

    @property
    def _readers(self) -> list[Node]:
        """The nodes that are told what is in the feed: a chief that is not fed may read it for workers that serve."""
        fed = self._fed
        return fed if self._chief in fed else [*fed, self._chief]

    @property
    def _chief(self) -> Node:
        spec = self._monitor.spec
        return self._monitor.nodes[spec.roles.index(spec.chief_role)]

    def _start(self, data: "DataFrame | BatchRDD", order: FeedSpec) -> None:
        # Where workers have no steps together, one may have returned while others still read.
        self._targets = node_endpoints(
            [node for node in self._fed if not node.returned] or self._fed, self._life.address
        )
        self._job = self._life.feeding = self._life.backend.feed(
            data, self._targets, self._life.credentials, order, on_end=self._monitor.wake
        )

    def _job_ended(self) -> bool:
        return self._job is not None and self._job.ended

    def _job_parts(self) -> list[PartSummary]:
        job = self._job
        assert job is not None
        if self.is_over:
            return []  # the programs were done before the rows were all there
        if job.error is not None:
            self._raise_cause()
        return fed_parts(job)

    def _raise_cause(self) -> None:
        """Raise the failure of a node, if there is one: it ends the tasks that feed the node too, and explains more."""
        cause = self._monitor.find_cause()
        if cause is not None:
            raise cause

    def _contents(self, parts: list[PartSummary], split: Split) -> dict[int, SplitManifest]:
        own = [part for part in parts if part.split is split]
        fed = self._fed
        readers = [node.number for node in self._readers if node not in fed]
        # Workers of parameter servers train asynchronously: they need no even shards, and the others go on when one of
        # them dies, which in the midst of a move they could not.
        rebalance = self._settings.rebalance and not self._monitor.spec.num_ps
        return contents(own, node_endpoints(fed), self._settings.storage, rebalance, readers)

    def _hold(self, number: int, partitions: list[int], rows: int) -> None:
        self._monitor.nodes[number].holds = _in_words(partitions, self._feed, rows)

    @property
    def is_over(self) -> bool:
        """Whether all programs are done with this feed: they have returned, or ask for the next."""
        return all(self._is_done(node) for node in self._monitor.readers())

    def _is_done(self, node: Node) -> bool:
        return node.returned or node.feed_wanted > self._feed

    def _wait(self, until: Callable[[], bool]) -> None:
        while not self._monitor.wait(until, _LOOK_SECONDS):
            self._patience.look()

    # ---- what the nodes say (under the monitor's lock)

    def _hear(self, node: Node, message: Any) -> None:
        if self._is_late(message):
            return
        if isinstance(message, RowsReceived):
            self._received[node.number] = message.rows
        elif isinstance(message, RowsConsumed):
            self._taken[node.number] = message.rows
        elif isinstance(message, PassEnded):
            ended = node.number, message.split
            self._passes[ended] = self._passes.get(ended, 0) + 1
        self._tell_of_passes()

    def _is_late(self, message: Any) -> bool:
        """Whether it is a word on a feed that is over."""
        return isinstance(message, _ABOUT_A_FEED) and message.feed != self._feed

    def _tell_of_passes(self) -> None:
        """Tell the chief how many passes all workers have ended that are left."""
        for split in Split:
            count = min((self._passes.get((node.number, split), 0) for node in self._fed), default=0)
            if count > self._passes_told.get(split, 0):
                self._passes_told[split] = count
                self._monitor.tell(self._chief.number, PassesEnded(self._feed, split, count))

    # ---- how far it is

    def _marks(self) -> Any:
        tasks = self._job.tasks() if self._job is not None else ()
        wanted = tuple((node.feed_wanted, node.returned, node.serving) for node in self._monitor.nodes)
        return tuple(self._received.items()), tuple(self._taken.items()), tasks, wanted

    def _story(self) -> str:
        """Return who waits for whom."""
        told = []
        if self._job is not None:
            done, running, total = self._job.tasks()
            told.append(f"of the feeding job's tasks {done} of {total} are done and {running} are running")
        for node in self._fed:
            received = self._came(node)
            told.append(
                f"{node.role} on {node.host} has received {received:,} {self._settings.unit}{self._what_of_them(node)}"
            )
        return "; ".join(told) + ". Look at the job in Spark's UI and at the nodes' output, or raise timeout"

    def _came(self, node: Node) -> int:
        """Return how many rows a node has received, as far as it has told."""
        return self._received.get(node.number, 0)

    def _what_of_them(self, _node: Node) -> str:
        """Return what has become of the rows that a node has received."""
        return " and waits for the rest"


def _in_words(partitions: Sequence[int], feed: int, rows: int) -> str:
    """Return which rows a node holds.

    Examples
    --------
    >>> _in_words([1, 3], 0, 2000)
    'partitions 1 and 3 of feed 0 (2,000 rows)'
    """
    if not rows:
        return ""
    names = [str(partition % PARTITIONS_PER_BATCH) for partition in partitions]
    if not names or len(names) > _NAMED_PARTITIONS:
        which = f"rows of {len(names)} partitions" if names else "rows"
    else:
        listed = ", ".join(names[:-1])
        which = f"partitions {listed} and {names[-1]}" if listed else f"partition {names[-1]}"
    return f"{which} of feed {feed} ({rows:,} rows)"


class ProgressTimeout:
    """Raises when nothing has moved for too long.

    Parameters
    ----------
    seconds : float
        How long is too long.
    marks : callable
        Returns how far everything is; any change of it is progress.
    story : callable
        Returns who waits for whom, for the error.

    Raises
    ------
    SpecError
        If `seconds` is no time.

    Examples
    --------
    >>> patience = ProgressTimeout(0.01, marks=lambda: (5, 3), story=lambda: "worker:0 has taken 3 of 5 rows")
    >>> time.sleep(0.02)
    >>> patience.look()
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: the feed has made no progress for 0.01 s (timeout): worker:0 has taken 3 of 5 \
rows
    """

    def __init__(self, seconds: float, marks: Callable[[], Hashable], story: Callable[[], str]) -> None:
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise SpecError(f"timeout={seconds!r}: expected seconds above 0 without any progress")
        self._seconds = seconds
        self._marks = marks
        self._story = story
        self.begin()

    def begin(self) -> None:
        """Start counting anew."""
        self._last = self._marks()
        self._since = time.monotonic()

    def look(self) -> None:
        """Raise `FeedError` if it has been too long."""
        now = self._marks()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        elif time.monotonic() - self._since > self._seconds:
            raise FeedError(f"the feed has made no progress for {self._seconds:g} s (timeout): {self._story()}")
