"""Messages about the rows of a feed, between driver, task and node.

A *feed* is the data of one ``cluster.train(...)``. It has two *splits*, rows to train on and rows to validate on. A
split consists of *parts*: the rows that one attempt at one Spark partition has sent to one node. As in `messages`, the
base class of a message is its receiver.
"""

import math
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import ColumnSummary, NodeReady, ToDriver, ToNode
from tensorflowonspark.mixture import Mixture
from tensorflowonspark.run_manifest import Record

# Bytes of a stream that a node buffers by default: some partitions of Spark's usual 128 MB.
_STREAM_BYTES = 512 << 20


class FileFeed(NamedTuple):
    """A feed that the nodes read from files, by the number of the read; one from Spark is its number alone."""

    number: int


FeedId = int | FileFeed


class Split(Enum):
    """The purpose of rows."""

    TRAIN = "train"
    VALIDATION = "validation"


class CacheMode(Enum):
    """The place where a node keeps the rows of a feed; kept rows can be read in several epochs."""

    DISK = "disk"
    MEMORY = "memory"
    NONE = "none"  # each row is read once and then freed


@dataclass(frozen=True)
class CacheConfig:
    """The place of a feed's rows on a node, and their maximum size in bytes; None is unlimited."""

    keep: CacheMode = CacheMode.DISK
    limit_bytes: int | None = None

    @classmethod
    def parse(cls, cache: str | None, limit: int | str | None) -> "CacheConfig":
        """Return the configuration for the arguments `cache` and `cache_limit` of `Cluster.train`.

        Examples
        --------
        >>> CacheConfig.parse("memory", "2g")
        CacheConfig(keep=<CacheMode.MEMORY: 'memory'>, limit_bytes=2147483648)
        >>> CacheConfig.parse("tape", None)
        Traceback (most recent call last):
            ...
        tensorflowonspark.errors.SpecError: cache='tape': expected 'disk', 'memory', or None to pass over the rows once
        """
        if cache is None:
            return cls(CacheMode.NONE, _STREAM_BYTES if limit is None else parse_bytes("cache_limit", limit))
        if cache not in (CacheMode.DISK.value, CacheMode.MEMORY.value):
            raise SpecError(f"cache={cache!r}: expected 'disk', 'memory', or None to pass over the rows once")
        return cls(CacheMode(cache), None if limit is None else parse_bytes("cache_limit", limit))


def parse_bytes(name: str, size: int | str) -> int:
    """Return a number of bytes, given as a number or in Spark's notation (``"512m"``).

    Examples
    --------
    >>> parse_bytes("cache_limit", "512m"), parse_bytes("cache_limit", 1000)
    (536870912, 1000)
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", str(size).strip().lower())
    if isinstance(size, bool) or match is None or not int(match[1]):
        raise SpecError(f"{name}={size!r}: expected a number of bytes above 0, as in 2000000000, '512m' or '2g'")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def is_global(order: str) -> bool:
    """Return whether a step has the same rows on any number of workers, for the argument `order` of a feed.

    Examples
    --------
    >>> is_global("worker")
    False
    >>> is_global("globl")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: order='globl': expected 'worker' or 'global'
    """
    if order not in ("worker", "global"):
        raise SpecError(f"order={order!r}: expected 'worker' or 'global'")
    return order == "global"


# ---- contents of parts


class PartId(NamedTuple):
    """Which rows of a split a part has, whichever attempt at them."""

    partition: int  # of Spark; of files, the number of their split or window
    first_row: int = 0  # of the partition, with which the part begins
    batch: int = 0  # of the DataFrames of a stream, the one that has the partition
    giver: int | None = None  # the node whose own rows these are, whichever partitions they were: they have moved

    @classmethod
    def moved(cls, giver: int) -> "PartId":
        """Return the part as which a node sends rows of its own to another: once."""
        return cls(0, giver=giver)

    @property
    def seed(self) -> tuple[int, ...]:
        """The numbers by which the order of its rows differs from that of other parts."""
        return (self.partition, *(each for each in (self.first_row, self.batch) if each))


StoredPart = tuple[PartId, int]  # and the attempt


class PartitionSlice(NamedTuple):
    """Rows of one partition that a worker has: each `stride`-th of the partition's, from the first on."""

    partition: int
    first: int
    rows: int
    stride: int = 1


class PartitionShare(NamedTuple):
    """The rows of one partition of a DataFrame that a task was dealt: how many, and the first one's place in it."""

    partition: int
    first: int
    rows: int
    checksum: int  # the sum of that over all tasks does not depend on their number


@dataclass(frozen=True)
class Layout:
    """Where each row of a split is: the rows of each worker, in their order."""

    slices: tuple[tuple[PartitionSlice, ...], ...] = ()  # the rows of each worker before the moves
    # Giver, taker and rows, workers by their places in `slices`: the giver's last rows are appended to the taker's, one
    # move after another.
    moves: tuple[tuple[int, int, int], ...] = ()
    # Whether the rows of `slices` are in the order of a hash of their places (`columns/places.py`), and not as listed.
    mixed: bool = False


@dataclass(frozen=True)
class PartHeader:
    """Sent by a task before the rows of a part."""

    feed: FeedId
    split: Split
    part: PartId
    attempt: int
    storage: CacheConfig = field(default_factory=CacheConfig)

    @property
    def streams(self) -> bool:
        """Whether the program takes the rows as they arrive, once."""
        return self.storage.keep is CacheMode.NONE and self.split is Split.TRAIN


@dataclass(frozen=True)
class PartRef:
    """A reference to a part: the attempt at it, and the node that stores it."""

    split: Split
    part: PartId
    attempt: int
    number: int  # of the node
    checksum: int = field(default=0, compare=False)  # of the rows as Spark computed them (`columns.checksum`)
    shares: tuple[PartitionShare, ...] = field(default=(), compare=False)  # its rows, if they are of several partitions


@dataclass(frozen=True)
class PartSummary:
    """The rows that one attempt at one part has stored on a node."""

    split: Split
    part: PartId
    attempt: int
    number: int  # of the node
    rows: int
    columns: dict[str, ColumnSummary] = field(default_factory=dict)
    schema: bytes = b""  # the Arrow schema, serialized; empty for a partition without rows
    checksum: int = 0  # as in the `PartRef`, once its task has ended
    shares: tuple[PartitionShare, ...] = ()  # likewise

    def sent_as(self, part: "PartRef | PartSummary") -> "PartSummary":
        """Return the summary with what the task knows that has sent the rows."""
        return replace(self, checksum=part.checksum, shares=part.shares)

    @property
    def contents(self) -> tuple[PartitionShare, ...]:
        """Its rows, by the partitions of the DataFrame."""
        return self.shares or (PartitionShare(self.part.partition, self.part.first_row, self.rows, self.checksum),)

    @property
    def ref(self) -> PartRef:
        """The part that this summarizes."""
        return PartRef(self.split, self.part, self.attempt, self.number)


@dataclass(frozen=True)
class InferenceHeader:
    """Sent by a task before rows for inference."""

    partition: int
    schema: bytes  # of the results, serialized


# ---- from the node to the driver


@dataclass(frozen=True)
class FeedReport(ToDriver):
    """Base of the messages that the session of a running feed handles (`driver/feed/session.py`)."""

    feed: FeedId


@dataclass(frozen=True)
class RowsReceived(FeedReport):
    """The rows of the feed that this node has received so far, including those of attempts that will not count."""

    rows: int


@dataclass(frozen=True)
class PartsStored(FeedReport):
    """Parts are complete on their node; the driver decides which of them count."""

    parts: tuple[PartSummary, ...]


@dataclass(frozen=True)
class Shares:
    """One worker's rows of each batch of all workers, which are dealt to them in turn, from one batch to the next.

    So a worker's shares differ by at most one row, and equal numbers of rows last for equally many batches.

    Examples
    --------
    >>> [[Shares(8, 3, place).rows(step) for place in range(3)] for step in range(3)]
    [[3, 3, 2], [3, 2, 3], [2, 3, 3]]
    """

    batch_size: int
    workers: int
    place: int  # of this worker, in the order of the deal

    @property
    def most(self) -> int:
        """The rows of the largest share."""
        return -(-self.batch_size // self.workers)

    @property
    def cycle(self) -> int:
        """The worker's rows of the batches after which the deal begins at the first worker again."""
        return self.batch_size // math.gcd(self.batch_size, self.workers)

    def before(self, step: int) -> int:
        """Return the worker's rows of all steps before one."""
        return -((self.place - step * self.batch_size) // self.workers)

    def rows(self, step: int) -> int:
        """Return the worker's rows of a step."""
        return self.before(step + 1) - self.before(step)

    def full_steps(self, rows: int) -> int:
        """Return how many steps so many rows of the worker fill."""
        return (rows * self.workers + self.place) // self.batch_size

    def steps(self, rows: int) -> int:
        """Return in how many steps so many rows of the worker are used."""
        return ((rows - 1) * self.workers + self.place) // self.batch_size + 1


@dataclass(frozen=True)
class StreamOpened(FeedReport):
    """The program has begun to read a stream in steps with these shares of this worker, or without steps (None)."""

    shares: Shares | None


@dataclass(frozen=True)
class Backpressure(FeedReport):
    """The cache of this node is full, and a task waits to send, while the program waits for a full batch."""


@dataclass(frozen=True)
class InputStarved(FeedReport):
    """A step of asynchronous training has been waiting for rows for some time."""


@dataclass(frozen=True)
class RowsConsumed(FeedReport):
    """The rows of a stream that the program has taken so far."""

    rows: int


@dataclass(frozen=True)
class RowsRead(FeedReport):
    """The rows of its share of some files that this worker has read so far, all of which count."""

    rows: int


@dataclass(frozen=True)
class FilesCounted(FeedReport):
    """The rows of this worker's share of some files, which only reading them has shown."""

    rows: int


@dataclass(frozen=True)
class PassEnded(FeedReport):
    """A worker of asynchronous training has trained on all its rows of a split once more."""

    split: Split


@dataclass(frozen=True)
class PartitionFed(ToDriver):
    """A held task has fed its partition to its node: the parts that count, as in the result of a feeding job."""

    feed: int
    parts: tuple[PartRef, ...]


@dataclass(frozen=True)
class FeedFailed(ToDriver):
    """A held task could not feed its node."""

    feed: int
    reason: str


@dataclass(frozen=True)
class FilesRead(ToDriver):
    """The program has read its share of some files (`node/feed/files.py`): a feed without a Spark job.

    `files` is a fingerprint of all files, and `call` the function that the program called, for errors. `counts` has the
    splits that this worker has counted, and their rows that pass a filter. If it `streams`, the rows are not
    known: the workers take those of the first epoch in the steps that the driver grants, and count them
    (`FilesCounted`).
    """

    feed: FileFeed
    call: str
    files: int
    parts: tuple[PartSummary, ...]
    counts: tuple[tuple[int, int], ...] = ()
    streams: bool = False


# ---- from the driver to the node


@dataclass(frozen=True)
class PassesEnded(ToNode):
    """The number of passes over a split that every remaining worker has ended."""

    feed: FeedId
    split: Split
    count: int


@dataclass(frozen=True)
class Move:
    """Rows that one node sends to another, so that all have equally many."""

    giver: int
    taker: int
    rows: int
    host: str  # of the taker
    ready: NodeReady  # of the taker
    storage: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True)
class SplitManifest:
    """The contents of one split of a feed, with the parts and moves of one node."""

    rows: dict[int, int]  # by number of each fed node, after all moves
    parts: tuple[StoredPart, ...] = ()  # on this node that count
    columns: dict[str, ColumnSummary] = field(default_factory=dict)  # over all nodes
    schema: bytes = b""
    moves: tuple[Move, ...] = ()  # from or to this node
    fingerprint: int = 0  # of all rows and their partitions, wherever they are; 0: unknown
    layout: Layout | None = None  # of the fed nodes, in the order of `rows`; None: unknown
    is_global: bool = False  # an epoch's steps have the same rows on any number of nodes (`order="global"`)
    mixture: Mixture | None = None  # of which the rows are; its epochs are global too


@dataclass(frozen=True)
class FeedBegins(ToNode):
    """The rows of a feed arrive, and the program takes them meanwhile, in the steps that are granted (`StepGrant`).

    That is its only pass over them, unless they are `kept`: then `FeedComplete` follows, with which the others begin.
    """

    feed: int
    train: SplitManifest  # the columns, as the first rows have them
    validation: SplitManifest | None = None
    kept: bool = False
    validation_arrives: bool = False  # the rows to validate on come among those to train on: they are kept
    given: Record = field(default_factory=dict)  # how they are fed, as a run's manifest has it


@dataclass(frozen=True)
class FeedComplete(ToNode):
    """All rows of a feed are in the caches; or, of files that are read in each epoch, all workers have listed them."""

    feed: FeedId
    train: SplitManifest
    validation: SplitManifest | None = None
    given: Record = field(default_factory=dict)  # how they were fed, as a run's manifest has it


@dataclass(frozen=True)
class RowsCounted(ToNode):
    """The rows of files, which the workers have counted (`FilesRead.counts`, `FilesCounted`)."""

    feed: FileFeed
    rows: dict[int, int]  # by number of the split if they pass a filter; else by number of the worker that reads them


@dataclass(frozen=True)
class StepGrant(ToNode):
    """The next rows of a stream that count: each partition once, whatever number of attempts Spark made.

    `steps` has pairs of a number of steps and the rows of this worker for them, with which it fills its shares as far
    as they go; it pads the rest, so that all workers take the same number of steps. A single worker, or one that trains
    asynchronously, gets None and takes its rows in full batches, and with `flush` the remainder too. With `fill` it
    takes a batch of padding if it has no rows.
    """

    feed: FeedId
    parts: tuple[StoredPart, ...] = ()
    dropped: tuple[StoredPart, ...] = ()
    steps: tuple[tuple[int, int], ...] | None = None
    flush: bool = False
    fill: bool = False
    end: bool = False
    failed: str = ""  # the reason, if the stream ended with a failure
