"""The sequence of a node's feeds, and the rebalancing of their rows before training starts.

Without rebalancing, an epoch would have as many steps as the fullest worker needs, and the others would pad with rows
of weight zero. The driver plans the moves (`driver/sharing/manifest.py`), and each node sends its last rows to others
as soon as it receives the plan, independent of its program.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Condition

from tensorflowonspark import transport
from tensorflowonspark.config import Job
from tensorflowonspark.errors import FailureKind, FeedError
from tensorflowonspark.feed_messages import (
    FeedBegins,
    FeedComplete,
    FeedId,
    Move,
    PartHeader,
    PartId,
    Split,
    SplitManifest,
)
from tensorflowonspark.messages import Failed, FeedWanted, Progress, RowSource
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.footers import Combine
from tensorflowonspark.node.feed.observer import Observer
from tensorflowonspark.node.feed.pace import measuring
from tensorflowonspark.node.feed.rows import Rows
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.node.feed.streams import PartStream, RowStream
from tensorflowonspark.node.feed.taken import TakenRows
from tensorflowonspark.node.meter import TrainingMeter
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.transport import ConnectionLost, Credentials


class Feeds:
    """The feeds of one node.

    A node that is not fed has no `server`.
    """

    def __init__(
        self,
        setup: NodeSetup,
        link: Link,
        server: FeedServer | None,
        meter: TrainingMeter,
        observer: Observer,
        combine: Callable[[str], Combine | None],
    ) -> None:
        self._combine = combine
        self._meter = meter
        self._observer = observer
        self._setup = setup
        self._link = link
        self._server = server
        numbers = {role: number for number, role in enumerate(setup.spec.roles)}
        self.numbers = [numbers[role] for role in setup.spec.fed]
        self._next = setup.config.first_feed
        self._opened: Feed | None = None  # the program's last feed, if its rows are for several epochs
        self.taken_before: Callable[[int], TakenRows | None] = lambda _: None  # as of a `Share`
        self._changed = Condition()
        self._rebalanced: set[FeedId] = set()  # feeds of which this node has sent the rows for others
        if server is not None:
            link.feeds.follow(self._rebalance)

    def _rebalance(self, feed: FeedBegins | FeedComplete) -> None:
        """Send the rows of this node that the plan moves to others (in a separate thread)."""
        assert self._server is not None
        try:
            for split, manifest in ((Split.TRAIN, feed.train), (Split.VALIDATION, feed.validation)):
                if manifest is not None:
                    self._send_moves(self._server.cache, feed.feed, split, manifest)
        except Exception as error:
            # The receiver waits for these rows, so the failure is reported before the program asks for its own.
            kind = FailureKind.PEER_LOST if isinstance(error, ConnectionLost) else FailureKind.RAISED
            self._link.send(Failed(kind, f"it could not send rows to another worker ({error})"))
        finally:
            with self._changed:
                self._rebalanced.add(feed.feed)
                self._changed.notify_all()

    def _send_moves(self, cache: Cache, feed: FeedId, split: Split, manifest: SplitManifest) -> None:
        """Send the moved rows of one split; they are the last ones of this node."""
        number = self._setup.number
        start = manifest.rows[number]
        for move in manifest.moves:
            if move.giver == number:
                header = PartHeader(feed, split, PartId.moved(move.giver), 0, move.storage)
                _send(cache.shard(feed, split, manifest.parts), start, move, header, self._setup.credentials)
                start += move.rows

    def next(self) -> FeedBegins | FeedComplete | None:
        """Return the next feed once it begins or is complete, and drop those before; None if no other one comes."""
        spec = self._setup.spec
        if self._setup.role not in (*spec.fed, spec.chief_role):
            reads = ": it reads rows of its own, as by ctx.read_parquet(..., cache=None)"
            advice = reads if self._setup.role.job is Job.EVALUATOR else ""
            raise FeedError(f"{self._setup.role} is not fed: rows go to {', '.join(map(str, spec.fed))}{advice}")
        if self._server is not None:
            self._server.cache.drop_before(self._next)
        self._meter.flush()  # before the driver learns that the program is done with the feed
        number, self._next = self._next, self._next + 1
        self._link.waits.in_epoch = False
        self._link.send(FeedWanted(number))
        with self._meter.waiting_for_feed():
            return self._link.feeds.wait_for_feed(number)

    @property
    def first(self) -> int:
        """Number of the first feed that the program receives: after a restart, the feed of the last checkpoint."""
        return self._setup.config.first_feed

    @property
    def saved_to(self) -> tuple[str, ...]:
        """The directories of the checkpoints that the attempts before this one have written."""
        return self._setup.config.saved_to

    @property
    def current(self) -> int:
        """Number of the feed that the program received last, or the first one's before that."""
        return max(self._next - 1, self._setup.config.first_feed)

    def resume_at(self, epoch: int, step: int) -> bool:
        """Start the passes over the current feed in the middle of an epoch; return whether that is possible."""
        return self._opened is not None and self._opened._share.resume_at(epoch, step)

    def resume_from(self, taken: TakenRows) -> tuple[int, int] | None:
        """Start the passes over the current feed where its steps have taken these rows (`Share.resume_from`)."""
        return None if self._opened is None else self._opened._share.resume_from(taken)

    def taken(self, step: int, batch: int) -> TakenRows | None:
        """Return the rows that the steps of the current epoch have taken, if these are known (`Passes.taken`)."""
        latest = None if self._opened is None else self._opened._share.latest
        found = None if latest is None else latest.taken(step, batch)
        return None if found is None else replace(found, fingerprint=self.fingerprint)

    @property
    def fingerprint(self) -> int:
        """That of the current feed's rows; 0 if there are none that can be passed over again."""
        return 0 if self._opened is None else self._opened._share.fingerprint

    def find(self, number: int) -> Feed:
        """Return this node's rows of a feed that another node reads, and drop those of the feeds before."""
        assert self._server is not None
        self._server.cache.drop_before(number)
        feed = self._link.feeds.wait_for_feed(number)
        if feed is None:
            raise FeedError(f"feed {number} does not exist")
        return self.open(feed)

    def open(self, feed: FeedBegins | FeedComplete) -> Feed:
        """Return this node's rows of a feed."""
        # A program that has finished a feed drops its rows, including those for others.
        with self._changed:
            self._changed.wait_for(lambda: feed.feed in self._rebalanced)
        assert self._server is not None
        rows: Rows | RowStream
        validation = self._kept_validation(feed)
        if isinstance(feed, FeedComplete):
            rows = _cached_rows(self._server.cache, feed.feed, Split.TRAIN, feed.train, self._setup.number)
        else:
            parts = PartStream(
                feed.feed,
                self._server.cache,
                partial(self._link.feeds.wait_for_grant, feed.feed),
                partial(self._link.feeds.wait_for_step, feed.feed),
                self._link.send,
            )
            rows = self._arriving_rows(feed.feed, Split.TRAIN, parts) if feed.kept else RowStream(parts)
            if feed.validation_arrives:
                later = self._arriving_rows(feed.feed, Split.VALIDATION, None)
                validation = Feed(self._share(feed.train, later, self.numbers, _ignore))
        source = RowSource.CACHE if isinstance(feed, FeedComplete) else RowSource.SPARK
        share = self._share(feed.train, rows, self.numbers, self._report)
        opened = Feed(share, validation, measuring(self._meter, source))
        self._opened = opened if share.is_kept else None
        return opened

    def _share(
        self,
        manifest: SplitManifest,
        rows: Rows | RowStream,
        numbers: Sequence[int],
        report: Callable[[Progress], None],
    ) -> Share:
        def taken_before(step: int) -> TakenRows | None:
            return self.taken_before(step)  # which a checkpoint may set later

        return Share(manifest, rows, numbers, self._setup.number, report, taken_before, self._observer, self._combine)

    def _arriving_rows(self, feed: FeedId, split: Split, parts: PartStream | None) -> RowStream:
        """Return the rows of a split of a feed that starts early."""

        def arrived() -> SplitManifest | None:
            complete = self._link.feeds.arrived(feed)
            return None if complete is None else _manifest_of(complete, split)

        def wait() -> tuple[SplitManifest, Shard]:
            assert self._server is not None
            manifest = _manifest_of(self._link.feeds.wait_for_rows(feed), split)
            return manifest, _cached_rows(self._server.cache, feed, split, manifest, self._setup.number)

        return RowStream(parts, arrived, wait)

    @property
    def arriving(self) -> RowStream | None:
        """The current feed's rows, if the program is in its first epoch and that takes the rows as they arrive."""
        return None if self._opened is None else self._opened._share.in_first_pass

    def open_files(self, manifest: SplitManifest, rows: FileRows | RowStream, *, measured: bool) -> Feed:
        """Return this node's rows of files that are read in each epoch; the training on them may be measured."""
        trains = self._setup.role in self._setup.spec.fed
        measure = measuring(self._meter, RowSource.FILES) if trains and measured else None
        self._opened = Feed(self._share(manifest, rows, list(manifest.rows), self.report_files), measure=measure)
        return self._opened

    def report_files(self, progress: Progress) -> None:
        """Report the progress of a pass over files, unless it is an evaluator's."""
        if self._setup.role in self._setup.spec.fed:
            self._report(progress)

    def _kept_validation(self, feed: FeedBegins | FeedComplete) -> Feed | None:
        """Return the rows to validate on, if the nodes have them."""
        if feed.validation is None:
            return None
        assert self._server is not None
        rows = _cached_rows(self._server.cache, feed.feed, Split.VALIDATION, feed.validation, self._setup.number)
        return Feed(self._share(feed.validation, rows, self.numbers, _ignore))

    def _report(self, progress: Progress) -> None:
        self._link.waits.in_epoch = progress.step < progress.steps
        self._meter.rows_taken(progress)


def _ignore(_progress: Progress) -> None:
    """Report nothing: the progress bar shows training."""


def _manifest_of(complete: FeedComplete, split: Split) -> SplitManifest:
    manifest = complete.train if split is Split.TRAIN else complete.validation
    assert manifest is not None
    return manifest


def _cached_rows(cache: Cache, feed: FeedId, split: Split, manifest: SplitManifest, number: int) -> Shard:
    """Return this node's rows after all moves; wait for those that other nodes send."""
    parts = list(manifest.parts)
    for move in manifest.moves:
        if move.taker == number:
            parts.append((PartId.moved(move.giver), 0))
            cache.wait_for_part(feed, split, parts[-1])
    shard = cache.shard(feed, split, parts)
    sends = any(move.giver == number for move in manifest.moves)
    return Shard([list(shard.slices(0, manifest.rows[number]))]) if sends else shard


def _send(shard: Shard, start: int, move: Move, header: PartHeader, credentials: Credentials) -> None:
    batches = list(shard.slices(start, start + move.rows))
    with transport.connect_local(move.ready, move.host, credentials) as connection:
        stream = connection.put(header, batches[0].schema)
        for batch in batches:
            stream.write(batch)
        stream.finish()
