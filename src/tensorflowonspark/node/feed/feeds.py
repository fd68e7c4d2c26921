"""The sequence of a node's feeds, and the rebalancing of each before training starts.

Otherwise each epoch would have as many steps as the fullest worker needs, and the others would fill up with rows that
count for nothing. Who gives how much to whom is the driver's plan (`driver/feed/manifest.py`); the rows go from node to
node, and a giver's last rows are those that go. It gives as soon as it learns the plan, whatever its program does.
"""

import time
from functools import partial
from threading import Condition

from tensorflowonspark import transport
from tensorflowonspark.errors import FailureKind, FeedError
from tensorflowonspark.feed_messages import FeedComplete, Move, PartHeader, Split, SplitManifest
from tensorflowonspark.messages import Failed, FeedWanted, Progress
from tensorflowonspark.node.driver_link import Link, NodeSetup
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.server import FeedServer
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.stream import Stream
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed
from tensorflowonspark.transport import ConnectionLost, Credentials

__all__ = ["Feeds", "give", "own_rows"]

_PROGRESS_SECONDS = 0.2  # between two reports: often enough for a bar, too seldom to cost anything


class Feeds:
    """The feeds of one node.

    Parameters
    ----------
    setup : NodeSetup
        Which node it is.
    link : Link
        To the supervisor, and through it to the driver.
    receiver : Receiver or None
        Takes the rows; None on a node that is not fed.
    """

    def __init__(self, setup: NodeSetup, link: Link, receiver: FeedServer | None) -> None:
        self._setup = setup
        self._link = link
        self._receiver = receiver
        numbers = {role: number for number, role in enumerate(setup.spec.roles)}
        self._numbers = [numbers[role] for role in setup.spec.fed]
        self._asked = setup.config.first_feed
        self._open: Feed | None = None  # the last one that the program was given
        self._reported = 0.0
        self._giving = Condition()
        self._given: set[int] = set()  # feeds of which this node's rows for others have gone
        if receiver is not None:
            link.follow_feeds(self._give)

    def _give(self, seal: FeedComplete) -> None:
        """Send what other nodes are to have of this one's rows (in a thread of its own)."""
        assert self._receiver is not None
        try:
            for split, contents in ((Split.TRAIN, seal.train), (Split.VALIDATION, seal.validation)):
                if contents is not None:
                    give(self._receiver.cache, seal.feed, split, contents, self._setup.number, self._setup.credentials)
        except Exception as error:
            # The taker waits for these rows: nobody must learn of this later, or never.
            kind = FailureKind.PEER_LOST if isinstance(error, ConnectionLost) else FailureKind.RAISED
            self._link.send(Failed(kind, f"it could not hand rows to another worker ({error})"))
        finally:
            with self._giving:
                self._given.add(seal.feed)
                self._giving.notify_all()

    def next(self) -> Feed | CoordinatedFeed | None:
        """Return the next feed; the program is done with those before. None if no further one comes."""
        spec = self._setup.spec
        if self._setup.role not in (*spec.fed, spec.chief_role):
            raise FeedError(f"{self._setup.role} is not fed: rows go to {', '.join(map(str, spec.fed))}")
        if self._asked > self._setup.config.first_feed and self._receiver is not None:
            self._receiver.cache.drop(self._asked - 1)
        number, self._asked = self._asked, self._asked + 1
        self._link.in_epoch = False
        self._link.send(FeedWanted(number))
        seal = self._link.wait_for_feed(number)
        if seal is None:
            return None
        return CoordinatedFeed(seal, self._link.passes) if self._receiver is None else self.open(seal)

    @property
    def first(self) -> int:
        """The number of the first feed that the program gets: after a restart, the one of the last checkpoint."""
        return self._setup.config.first_feed

    @property
    def current(self) -> int:
        """The number of the feed that the program has; before the first one, that of this."""
        return max(self._asked - 1, self._setup.config.first_feed)

    def begin_at(self, epoch: int, step: int) -> bool:
        """Have the passes over the current feed begin in the midst; return whether that can be."""
        return self._open is not None and self._open.begin_at(epoch, step)

    def find(self, number: int) -> Feed:
        """Return the rows that this node has of a feed that another node reads: those before are dropped."""
        assert self._receiver is not None
        if number:
            self._receiver.cache.drop(number - 1)
        seal = self._link.wait_for_feed(number)
        if seal is None:
            raise FeedError(f"there is no feed {number}")
        return self.open(seal)

    def open(self, seal: FeedComplete) -> Feed:
        """Return what a seal describes."""
        # A program that is through with its rows drops them, and those for others with them.
        with self._giving:
            self._giving.wait_for(lambda: seal.feed in self._given)
        validation = None
        if seal.validation is not None:
            validation = self._kept(seal.feed, Split.VALIDATION, seal.validation)
        if not seal.streams:
            self._open = self._kept(seal.feed, Split.TRAIN, seal.train, validation)
            return self._open
        assert self._receiver is not None
        rows = Stream(
            seal.feed,
            self._receiver.cache,
            partial(self._link.wait_for_grant, seal.feed),
            self._link.send,
            self._report,
        )
        return Feed(seal.train, rows, self._numbers, self._setup.number, self._report, validation)

    def _kept(self, feed: int, split: Split, contents: SplitManifest, validation: Feed | None = None) -> Feed:
        assert self._receiver is not None
        shard = own_rows(self._receiver.cache, feed, split, contents, self._setup.number)
        report = self._report if split is Split.TRAIN else _unreported
        return Feed(contents, shard, self._numbers, self._setup.number, report, validation)

    def _report(self, progress: Progress) -> None:
        self._link.in_epoch = progress.step < progress.steps
        now = time.monotonic()
        if now - self._reported > _PROGRESS_SECONDS or progress.step == progress.steps:
            self._reported = now
            self._link.send(progress)


def _unreported(_progress: Progress) -> None:
    """Take no notice: the bar is that of training."""


def give(cache: Cache, feed: int, split: Split, contents: SplitManifest, number: int, credentials: Credentials) -> None:
    """Send the rows that this node is to give.

    Raises
    ------
    ConnectionLost
        If a taker is gone.
    """
    start = contents.rows[number]
    for move in contents.moves:
        if move.giver == number:
            shard = cache.shard(feed, split, contents.parts)
            _send(shard, start, move, PartHeader(feed, split, _moved(number), 0, move.storage), credentials)
            start += move.rows


def own_rows(cache: Cache, feed: int, split: Split, contents: SplitManifest, number: int) -> Shard:
    """Return this node's rows after all moves; waits for those that it is given."""
    parts = list(contents.parts)
    for move in contents.moves:
        if move.taker == number:
            cache.wait_for_part(feed, split, _moved(move.giver))
            parts.append((_moved(move.giver), 0))
    shard = cache.shard(feed, split, parts)
    gives = any(move.giver == number for move in contents.moves)
    return Shard([list(shard.slices(0, contents.rows[number]))]) if gives else shard


def _moved(giver: int) -> int:
    """Return the number of the part that a node gives: below those of all partitions."""
    return -1 - giver


def _send(shard: Shard, start: int, move: Move, header: PartHeader, credentials: Credentials) -> None:
    batches = list(shard.slices(start, start + move.rows))
    connection = transport.connect_local(move.feed_socket, move.host, move.feed_port, credentials)
    try:
        stream = connection.put(header, batches[0].schema)
        for batch in batches:
            stream.write(batch)
        stream.finish()
    finally:
        connection.close()
