"""What the nodes get to know of a feed: that its rows arrive, and what all nodes have when it is complete."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorflowonspark.driver.feed.contents import ContentCheck
from tensorflowonspark.driver.feed.feed_progress import describe_rows
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.sharing.manifest import build_manifests, node_endpoints
from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, PartSummary, Split, SplitManifest

if TYPE_CHECKING:
    from tensorflowonspark.driver.monitor import Monitor


class Announcer:
    """Sends `FeedBegins` and `FeedComplete` to the nodes that read one feed; called under the monitor's lock.

    It is `outdated` while a node may not know what it holds.
    """

    def __init__(self, feed: int, request: FeedRequest, monitor: "Monitor") -> None:
        self._feed = feed
        self._request = request
        self._monitor = monitor
        self._contents = ContentCheck(feed, request)
        self._validation: dict[int, SplitManifest] = {}  # by node; empty if there are no rows to validate on
        self._begun = False
        self.informed: dict[int, int] = {}  # nodes that know what they hold, and how often they had been restarted
        self.outdated = True
        self.rows = 0  # that the nodes keep to train on

    def validate_on(self, parts: Sequence[PartSummary]) -> None:
        """Take the rows to validate on, which have arrived."""
        self._validation = self._manifests(parts, Split.VALIDATION)

    def begin(self, first: PartSummary | None) -> None:
        """Send once that rows arrive, with the columns of the first part; None: there are no rows."""
        if self._begun:
            return
        self._begun = True
        rows = dict.fromkeys((node.number for node in self._monitor.roster.fed()), 0)
        train = SplitManifest(rows, columns=first.columns, schema=first.schema) if first else SplitManifest(rows)
        kept, arrives = self._request.keeps_rows, bool(self._request.validation_column)
        for node in self._readers():
            validation = self._validation.get(node.number)
            begins = FeedBegins(self._feed, train, validation, kept, arrives, self._request.given)
            self._monitor.roster.send(node.number, begins)

    def complete(self, summaries: Sequence[PartSummary]) -> None:
        """Send what has arrived, which is all, to the programs that do not know it yet."""
        if self._request.validation is not None:
            self.validate_on(summaries)
        manifests = self._manifests(summaries, Split.TRAIN)
        self.rows = sum(next(iter(manifests.values())).rows.values()) if manifests else 0
        mixture = self._request.mixture
        self._monitor.run.metrics.sources = {} if mixture is None else mixture.rows_of_sources(self.rows)
        for node in self._readers():
            number = node.number
            if self.informed.get(number) != node.restarts:
                self.informed[number] = node.restarts
                train = manifests[number]
                parts = [part for part, _ in train.parts]
                node.feed.holds = describe_rows(parts, self._feed, train.rows.get(number, 0))
                complete = FeedComplete(self._feed, train, self._validation.get(number), self._request.given)
                self._monitor.roster.send(number, complete)
        self.outdated = False

    def _readers(self) -> list[Node]:
        """Return the nodes that are fed, and a chief that reads for workers that serve."""
        fed, chief = self._monitor.roster.fed(), self._monitor.roster.chief
        return fed if chief in fed else [*fed, chief]

    def _manifests(self, parts: Sequence[PartSummary], split: Split) -> dict[int, SplitManifest]:
        """Return the manifest of a split for each node that reads it."""
        monitor, request = self._monitor, self._request
        fed = monitor.roster.fed()
        # Workers of parameter servers train asynchronously and need no even shards; when one of them dies the others
        # go on, which they could not in the midst of a move. So do nodes that are started again alone.
        alone = monitor.roster.spec.num_ps or monitor.restarts_nodes
        own = [part for part in parts if part.split is split]
        lost = any(node.lost for node in monitor.roster.nodes)  # and some partitions with them
        manifests = build_manifests(
            own,
            node_endpoints(fed),
            request.cache if request.rebalance and not alone else None,
            [node.number for node in self._readers() if node not in fed],
            self._contents.take(split, own, lost=lost),
        )
        return {
            number: replace(each, is_global=request.is_global, mixture=request.mixture)
            for number, each in manifests.items()
        }
