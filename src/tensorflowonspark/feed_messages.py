"""Messages about the rows of a feed, between driver, task and node.

A *feed* is what one ``cluster.train(...)`` brings. It has two *splits*, rows to train on and rows to validate on; each
consists of *parts*, and a part is what one attempt at one Spark partition has sent to one node.
"""

import re
from dataclasses import dataclass, field
from enum import Enum

from tensorflowonspark.columns.summary import ColumnSummary
from tensorflowonspark.errors import SpecError

__all__ = [
    "Backpressure",
    "CacheConfig",
    "CacheMode",
    "FeedComplete",
    "FeedFailed",
    "FilesRead",
    "InferenceHeader",
    "InputStarved",
    "Move",
    "PartHeader",
    "PartSummary",
    "PartsStored",
    "PassEnded",
    "PassesEnded",
    "RowsConsumed",
    "RowsReceived",
    "Split",
    "SplitManifest",
    "StepGrant",
    "StreamOpened",
    "parse_bytes",
]

# How much of a stream waits in a node, where nothing else is asked for: some partitions of Spark's usual 128 MB.
_STREAM_BYTES = 512 << 20


class Split(Enum):
    """What rows are for."""

    TRAIN = "train"
    VALIDATION = "validation"


class CacheMode(Enum):
    """Where a node keeps the rows that it was fed; what is kept can be passed over again."""

    DISK = "disk"
    MEMORY = "memory"
    NONE = "none"  # each row is handed out once, and forgotten


@dataclass(frozen=True)
class CacheConfig:
    """How a node keeps a feed's rows, and how many bytes of them at the most; None is without a bound."""

    keep: CacheMode = CacheMode.DISK
    limit_bytes: int | None = None

    @classmethod
    def parse(cls, cache: str | None, limit: int | str | None) -> "CacheConfig":
        """Return what a user asked for.

        Examples
        --------
        >>> CacheConfig.parse("memory", "2g")
        CacheConfig(keep=<CacheMode.MEMORY: 'memory'>, limit_bytes=2147483648)
        >>> CacheConfig.parse("tape", None)
        Traceback (most recent call last):
            ...
        tensorflowonspark.errors.SpecError: cache='tape': expected 'disk', 'memory', or 'none' (or None) to pass \
over the rows just once
        """
        try:
            keep = CacheMode(cache or "none")
        except ValueError:
            raise SpecError(
                f"cache={cache!r}: expected 'disk', 'memory', or 'none' (or None) to pass over the rows just once"
            ) from None
        if limit is None:
            return cls(keep, _STREAM_BYTES if keep is CacheMode.NONE else None)
        return cls(keep, parse_bytes("cache_limit", limit))


def parse_bytes(name: str, size: int | str) -> int:
    """Return a number of bytes, given as one or in Spark's way of writing it (``"512m"``).

    Examples
    --------
    >>> parse_bytes("cache_limit", "512m"), parse_bytes("cache_limit", 1000)
    (536870912, 1000)
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", str(size).strip().lower())
    if isinstance(size, bool) or match is None or not int(match[1]):
        raise SpecError(f"{name}={size!r}: expected a number of bytes above 0, as in 2000000000, '512m' or '2g'")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


# ---- what is in a part


@dataclass(frozen=True)
class PartHeader:
    """What a sender says before it sends a part."""

    feed: int
    split: Split
    partition: int
    attempt: int
    storage: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True)
class PartSummary:
    """What one attempt to feed one partition left on a node."""

    split: Split
    partition: int
    attempt: int
    number: int  # of the node
    rows: int
    columns: dict[str, ColumnSummary] = field(default_factory=dict)
    schema: bytes = b""  # the Arrow schema, serialized; empty for a partition without rows


@dataclass(frozen=True)
class InferenceHeader:
    """What a task says before it sends rows to be answered."""

    partition: int
    schema: bytes  # of the results, serialized


# ---- from the node to the driver


@dataclass(frozen=True)
class RowsReceived:
    """How many rows of a feed have come to this node so far, those of attempts that won't count included."""

    feed: int
    rows: int


@dataclass(frozen=True)
class PartsStored:
    """Parts are whole on their node: those of a held task, or one of a feed that streams."""

    feed: int
    parts: tuple[PartSummary, ...]


@dataclass(frozen=True)
class FeedFailed:
    """A held task could not feed its node."""

    feed: int
    reason: str


@dataclass(frozen=True)
class StreamOpened:
    """The program has begun to read a stream, so many rows per step on this worker; or as it comes, without steps."""

    feed: int
    batch_rows: int | None


@dataclass(frozen=True)
class Backpressure:
    """A task waits to send to this node, which holds as much as it may, while the program waits for a full batch."""

    feed: int


@dataclass(frozen=True)
class InputStarved:
    """A step of asynchronous training has been waiting for rows for a while."""

    feed: int


@dataclass(frozen=True)
class RowsConsumed:
    """How many rows of a stream the program has taken so far."""

    feed: int
    rows: int


@dataclass(frozen=True)
class PassEnded:
    """Of a worker of asynchronous training: all rows of one pass over a split have been trained on."""

    feed: int
    split: Split


@dataclass(frozen=True)
class FilesRead:
    """The program has read its share of some files (`node/feed/files.py`): a feed that no Spark job brings.

    `files` is a fingerprint of all of them, and `call` what the program called, for errors.
    """

    feed: int
    call: str
    files: str
    parts: tuple[PartSummary, ...]


# ---- from the driver to the node


@dataclass(frozen=True)
class PassesEnded:
    """Over a split of a feed, every worker that is left has ended so many passes."""

    feed: int
    split: Split
    count: int


@dataclass(frozen=True)
class Move:
    """Rows that one node hands to another, so that all have as many."""

    giver: int
    taker: int
    rows: int
    host: str  # of the taker
    feed_socket: str
    feed_port: int
    storage: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True)
class SplitManifest:
    """One split of a feed, as far as one node is concerned."""

    rows: dict[int, int]  # by node number, of all that are fed, after all moves
    parts: tuple[tuple[int, int], ...] = ()  # (partition, attempt) of the parts on this node that count
    columns: dict[str, ColumnSummary] = field(default_factory=dict)  # over all nodes
    schema: bytes = b""
    moves: tuple[Move, ...] = ()  # those from or to this node


@dataclass(frozen=True)
class FeedComplete:
    """A feed is complete, or begins to stream: what is in it."""

    feed: int
    train: SplitManifest
    validation: SplitManifest | None = None
    streams: bool = False  # the rows to train on come by and by; `train` describes the first of them


@dataclass(frozen=True)
class StepGrant:
    """The next rows of a stream that count: each partition once, however often Spark computed it.

    `steps` has pairs of how many steps there are next, and how many rows this worker has for each; where it has fewer
    than a batch it fills up, so that all workers take as many steps. A worker on its own, or one that trains
    asynchronously, gets None, and takes its rows as they are: in full batches, and with `flush` the rest too. With
    `fill` it takes a batch without any real row if it has none.
    """

    feed: int
    parts: tuple[tuple[int, int], ...] = ()  # (partition, attempt)
    dropped: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] | None = None
    flush: bool = False
    fill: bool = False
    end: bool = False
    failed: str = ""  # why nothing more comes, if that is no good end
