"""Files that the nodes read themselves, past Spark: each worker its share, which it keeps as it keeps rows it was fed.

All workers list the same files and divide them in the same way, by size; each decodes its share, several files at a
time, into its cache. It tells the driver what it has and a fingerprint of the list; when all have, the driver seals the
read like a feed, and all that a feed can do follows from there.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.cache import Cache
from tensorflowonspark.node.feed import Feed
from tensorflowonspark.node.feeds import Feeds
from tensorflowonspark.node.link import Link
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.parts import OwnRead, PartHeader, PartSummary, Split, Storage

__all__ = ["OwnReads", "Piece", "shares"]

FIRST_FEED = 1 << 30  # the numbers of such reads; feeds are numbered from 0
_READERS = 4  # pieces read at a time: network and disk wait for each other, and decoding is native code


class Piece(Protocol):
    """A part of some files that one worker reads."""

    @property
    def name(self) -> str:
        """Which part of which file it is."""

    @property
    def size(self) -> int:
        """In bytes, on which the division rests."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""


@dataclass
class OwnReads:
    """The reads of one node.

    Attributes
    ----------
    setup : NodeSetup
        Which node it is.
    cache : Cache
        Keeps the rows.
    link : Link
        To the driver.
    feeds : Feeds
        Opens what the driver has sealed.
    """

    setup: NodeSetup
    cache: Cache
    link: Link
    feeds: Feeds
    _next: int = FIRST_FEED

    def read(self, call: str, pieces: Sequence[Piece], schema: pa.Schema, storage: Storage) -> Feed:
        """Read this worker's share; return all workers' rows as a feed.

        Parameters
        ----------
        call : str
            What the program called, for errors.
        pieces : sequence of Piece
            All there is to read, in the same order on all workers.
        schema : pa.Schema
            The rows' columns.
        storage : Storage
            Where the rows are kept.

        Raises
        ------
        SpecError
            If there is nothing to read.
        """
        if not pieces:
            raise SpecError(f"{call}: there is nothing in these files")
        feed, self._next = self._next, self._next + 1
        workers = self.setup.spec.fed
        own = shares([piece.size for piece in pieces], len(workers))[workers.index(self.setup.role)]
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as readers:
            stored = [readers.submit(self._store, feed, number, pieces[number], schema, storage) for number in own]
            try:
                parts = tuple(each.result() for each in stored)
            except BaseException:
                readers.shutdown(cancel_futures=True)
                raise
        listed = "\n".join(f"{piece.name} {piece.size}" for piece in pieces)
        self.link.send(OwnRead(feed, call, hashlib.sha256(listed.encode()).hexdigest(), parts))
        return self.feeds.open(self.link.wait_for_own(feed))

    def _store(self, feed: int, number: int, piece: Piece, schema: pa.Schema, storage: Storage) -> PartSummary:
        return self.cache.store(PartHeader(feed, Split.TRAIN, number, 0, storage), schema, piece.batches())


def shares(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Return the numbers of the pieces that each worker reads: the largest first, each to who has least so far.

    Examples
    --------
    >>> shares([1, 5, 2, 3], 2)
    [[0, 1], [2, 3]]
    """
    given: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        least = load.index(min(load))
        given[least].append(number)
        load[least] += sizes[number]
    return [sorted(each) for each in given]
