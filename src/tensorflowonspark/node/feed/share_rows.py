"""The rows of one worker's share of a feed, wherever they are: in a cache, in files, or still arriving."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import Layout, Shares, SplitManifest
from tensorflowonspark.messages import Progress
from tensorflowonspark.mixture import Mixture
from tensorflowonspark.node.feed.observer import NOBODY, Observer
from tensorflowonspark.node.feed.plan import EpochPlan, plan_epoch, shares_of, uneven_rows
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.streams import PartStream, RowStream
from tensorflowonspark.node.feed.taken import TakenRows

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class ShareRows:
    """The rows of one worker's share of a feed, and what all workers have.

    A node that has other rows than the manifest is a `FeedError`.
    """

    manifest: SplitManifest  # of all workers
    rows: Rows | RowStream
    numbers: Sequence[int]  # of the nodes that are fed, in their order
    number: int  # this node's
    report: Callable[[Progress], None]  # takes a `Progress` before each batch
    # the rows of their last epoch that so many steps have taken, if a checkpoint with them was restored
    taken_before: Callable[[int], TakenRows | None] = lambda _: None
    observer: Observer = NOBODY
    index: int = field(init=False)  # this worker's place among those that are fed
    is_training: bool = field(default=True, init=False)  # the rows are not to validate on
    made: str = field(default="", init=False)  # how the rows are made of those of the layout, if they are

    def __post_init__(self) -> None:
        self.index = list(self.numbers).index(self.number)
        if not isinstance(self.rows, RowStream) and self.rows.rows != self.manifest.rows[self.number]:
            raise FeedError(
                f"this node has {self.rows.rows} rows of the feed, and should have {self.manifest.rows[self.number]}"
            )

    @property
    def stream(self) -> RowStream | None:
        """The rows, if they arrive."""
        return self.rows if isinstance(self.rows, RowStream) else None

    @property
    def counts(self) -> list[int] | None:
        """Number of rows of each worker; None as long as rows arrive."""
        manifest = self.manifest_of_all
        return None if manifest is None else self._counts_of(manifest)

    @property
    def layout(self) -> Layout | None:
        """Where the rows of all workers are; None if that is unknown, or a worker is lost."""
        manifest = self.manifest_of_all
        return None if manifest is None or list(manifest.rows) != list(self.numbers) else manifest.layout

    @property
    def is_global(self) -> bool:
        """Whether a step has the same rows on any number of workers."""
        return self.manifest.is_global and self.is_training

    @property
    def mixture(self) -> Mixture | None:
        """The sources of which an epoch has stated shares; None if it has each row once."""
        return self.manifest.mixture if self.is_training else None

    @property
    def manifest_of_all(self) -> SplitManifest | None:
        """What all workers have; None as long as rows arrive."""
        return self.manifest if self.stream is None else self.stream.arrived()

    def _counts_of(self, manifest: SplitManifest) -> list[int]:
        return [manifest.rows.get(each, 0) for each in self.numbers]

    @property
    def parts(self) -> PartStream | None:
        """The rows as they arrive, if they do."""
        return None if self.stream is None else self.stream.parts

    @property
    def is_kept(self) -> bool:
        """Whether the rows can be passed over several times."""
        return self.stream is None or self.stream.wait is not None

    @property
    def first_pass_is_unique(self) -> bool:
        """Whether the first pass takes the rows in the order of their arrival, which no later one repeats."""
        return self.stream is not None and not self.stream.repeatable

    @property
    def fingerprint(self) -> int:
        """That of all workers' rows, on which the order of an epoch depends; wait until all rows have arrived."""
        if self.stream is None or self.stream.repeatable:
            return self.manifest.fingerprint
        return (self.stream.arrived() or self._wait()[0]).fingerprint

    @property
    def in_first_pass(self) -> RowStream | None:
        """The rows, while the program takes them in an order that no later pass repeats."""
        return self.stream if self.stream and self.stream.in_first_pass and self.first_pass_is_unique else None

    def plan(self, counts: Sequence[int], batch_size: int) -> EpochPlan:
        """Return this worker's epoch over rows of these numbers; a pass over them as they arrive has the same steps."""
        if self.is_global:
            rows = sum(counts) if self.mixture is None else sum(self.mixture.counts(sum(counts)))
            return EpochPlan(counts[self.index], self.shares(batch_size), -(-rows // batch_size))
        return plan_epoch(
            counts, batch_size, self.index, in_order=self.stream is not None, equal=self.observer.equal_batches()
        )

    def shares(self, batch_size: int) -> Shares:
        """Return this worker's shares of the rows of all steps; it needs no number of rows."""
        equal = self.observer.equal_batches() and not self.is_global
        return shares_of(batch_size, len(self.numbers), self.index, equal=equal)

    def all_shares(self, batch_size: int) -> list[Shares]:
        """Return the shares of all workers, in their order, in the steps of a plan."""
        counts, in_order, equal = self.counts, self.stream is not None, self.observer.equal_batches()
        assert counts is not None
        workers = range(len(counts))
        return [plan_epoch(counts, batch_size, each, in_order=in_order, equal=equal).shares for each in workers]

    def all_rows(self, selection: Selection, shares: Shares, *, alone: bool) -> tuple[Rows, EpochPlan]:
        """Wait until all rows are there; return them, and the plan of an epoch over them.

        A `FeedError` says that there are none, or that some are not of the kinds of the first ones.
        """
        manifest, rows = self.manifest, self.rows
        if isinstance(rows, RowStream):
            manifest, rows = self._wait()
            if not manifest.schema:
                raise FeedError("the data has no rows to validate on")
            selection.check(manifest)
        if alone:
            return rows, plan_epoch([rows.rows], shares.batch_size, 0)
        counts = self._counts_of(manifest)
        plan = self.plan(counts, shares.batch_size)
        if self.is_training and not self.is_global and self.index == 0:
            text = uneven_rows(counts, shares.batch_size, plan.steps)
            if text:
                _log.warning("%s", text)
        return rows, plan

    def _wait(self) -> tuple[SplitManifest, Rows]:
        assert self.stream is not None
        assert self.stream.wait is not None
        return self.stream.wait()
