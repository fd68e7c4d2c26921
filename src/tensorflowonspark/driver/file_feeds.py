"""The feeds that the workers read from files.

When all workers have read their files, each receives the row counts of the others: from then on it is a cached feed
like any other.
"""

from collections.abc import Callable, Sequence

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rendezvous import Kind, Rendezvous
from tensorflowonspark.driver.sharing.manifest import build_manifests, node_endpoints
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.feed_messages import CacheConfig, FeedComplete, FeedReport, FileFeed, FilesRead, RowsCounted
from tensorflowonspark.messages import Failed


class FileFeeds:
    """The feeds of one cluster that the workers read from files.

    If only reading the files shows their rows, the first epoch takes the steps that are granted meanwhile. Each worker
    reads its own share, so every row that it reports counts. It reads ahead as far as its memory allows, whatever the
    others do, so no step needs padding before the worker with fewer rows has taken all of them.

    With `keeps`, what the workers have read is kept for those that are started again alone; then no rows are moved.
    """

    def __init__(self, send: Callable[[int, object], None], calls: Rendezvous, *, keeps: bool = False) -> None:
        self._send = send
        self._calls = calls
        self._keeps = keeps
        # The files of each, and a function that informs a node.
        self._completed: dict[FileFeed, tuple[int, Callable[[int], None]]] = {}
        self._reads: dict[FileFeed, dict[int, FilesRead]] = {}  # by node
        self._steps: dict[FileFeed, StepScheduler] = {}  # of those whose rows only reading them shows
        self._counted: set[FileFeed] = set()  # of these, those whose workers know the counts

    def receive(self, node: Node, message: FilesRead, workers: Sequence[Node]) -> Failed | None:
        """Note what a worker has read; return a failure if it differs from what others have."""
        feed = message.feed
        failure = self._calls.enter(Kind.FILES, feed.number, node, message.call)
        if failure is not None:
            return failure
        if feed in self._completed:  # for a worker that was started again and has read its share again
            files, inform = self._completed[feed]
            if message.files != files:
                reason = f"{message.call} found other files after the restart of this worker than before"
                return Kind.FILES.failure(reason)
            inform(node.number)
            return None
        reads = self._reads.setdefault(feed, {})
        reads[node.number] = message
        if message.files != next(iter(reads.values())).files:
            return Kind.FILES.failure(f"{message.call} found other files on this worker than on another")
        if self._calls.complete(Kind.FILES, feed.number, workers):
            self._complete(feed, workers)
        return None

    def lose(self, node: Node) -> None:
        """Note that a worker will read no further rows: no other one waits for them, or for their count."""
        for feed, steps in self._steps.items():
            steps.leave(node.number)
            self._grant(feed, steps)

    def report(self, node: Node, message: FeedReport) -> None:
        """Note what a worker reports of a feed whose rows its workers count in the first epoch."""
        feed = message.feed
        if isinstance(feed, FileFeed) and feed in self._steps and self._steps[feed].receive(node.number, message):
            self._grant(feed, self._steps[feed])

    def _grant(self, feed: FileFeed, steps: StepScheduler) -> None:
        """Send the workers the counts and the steps that have become known."""
        if steps.all_received and not steps.finished:
            steps.finish()
        if steps.all_counted and feed not in self._counted:
            self._counted.add(feed)  # sent before the last steps: the counts are known when a pass ends
            for number in [number for number in steps.totals if number in steps]:
                self._send(number, RowsCounted(feed, dict(steps.totals)))
        for number, grant in steps.grants().items():
            self._send(number, grant)

    def _complete(self, feed: FileFeed, workers: Sequence[Node]) -> None:
        reads = self._reads.pop(feed).values()
        if any(read.streams for read in reads):
            self._steps[feed] = StepScheduler([each.number for each in workers], feed)
        parts = [part for read in reads for part in read.parts]
        counts = dict(count for read in reads for count in read.counts)
        listed = next(iter(reads)).files
        manifests = build_manifests(
            parts, node_endpoints(workers), None if self._keeps else CacheConfig(), fingerprint=listed
        )

        def inform(number: int) -> None:
            self._send(number, FeedComplete(feed, manifests[number]))
            if counts:
                self._send(number, RowsCounted(feed, counts))

        if self._keeps:
            self._completed[feed] = listed, inform
        for number in manifests:
            inform(number)

    def node_lost(self, node: Node) -> None:
        """Forget what a worker has read whose new process reads it again."""
        for reads in self._reads.values():
            reads.pop(node.number, None)
