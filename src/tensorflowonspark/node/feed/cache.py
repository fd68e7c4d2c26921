"""The cache of the rows fed to a node: Arrow batches in memory, or in memory-mapped files.

The files have no name, so the kernel removes them with the process, however it ends.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Condition
from typing import IO, Any

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, merge, summarize
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    Backpressure,
    CacheConfig,
    CacheMode,
    FeedId,
    FileFeed,
    PartHeader,
    PartId,
    PartsStored,
    PartSummary,
    RowsReceived,
    Split,
    StoredPart,
)
from tensorflowonspark.messages import ColumnSummary
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.transport import Mapped
from tensorflowonspark.transport.shared_file import disk_errors, map_file

_REPORT_SECONDS = 0.3  # between two counts of the rows received
_BACKPRESSURE_SECONDS = 0.5  # that a sender waits before the driver learns of it; other workers' rows may come first

StoredKey = tuple[FeedId, Split, PartId, int]  # and the attempt


class Cache:
    """The stored parts: the rows of one attempt at one partition each. The driver decides later which of them count."""

    def __init__(self, directory: str, number: int, send: Callable[[object], None]) -> None:
        self._directory = directory
        self._number = number
        self._send = send
        self._changed = Condition()
        self._parts: dict[StoredKey, _Part] = {}
        self._usage: dict[FeedId, _Usage] = {}
        self._first = 0  # feeds of Spark before this one are dropped

    def store(
        self, header: PartHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | Mapped], *, report: bool = True
    ) -> PartSummary:
        """Store a part, from a connection or a shared file, and return its summary when it is complete.

        With `report` the driver learns of it by a `PartsStored`.
        """
        if self._is_dropped(header.feed):
            discarded = self._discard(header, schema, items)
            if report and not header.streams:
                self._send(PartsStored(header.feed, (discarded,)))
            return discarded
        streams = header.streams
        usage = self._usage_of(header)
        if streams:
            self._wait_for_space(header.feed, usage)
        part = _Part(self._directory, header.storage, usage)
        rows = 0
        summary: dict[str, ColumnSummary] = {}
        try:
            for item in items:
                batches = [flat_columns(batch) for batch in (item.batches if isinstance(item, Mapped) else [item])]
                summary = merge((summary, *_summaries(batches, header.part, rows)))
                schema = batches[0].schema
                received = sum(batch.num_rows for batch in batches)
                rows += received
                part.add(batches, item.size if isinstance(item, Mapped) else None)
                self._count(header.feed, usage, received)
                del item, batches  # frees batches that are on disk before the next one arrives
            part.complete()
        except BaseException:
            part.release()
            raise
        stored = PartSummary(
            header.split, header.part, header.attempt, self._number, rows, summary, schema.serialize().to_pybytes()
        )
        part.summary = stored
        with self._changed:
            is_used = not self._is_dropped(header.feed)
            if is_used:
                self._parts[header.feed, header.split, header.part, header.attempt] = part
                self._changed.notify_all()
            else:
                part.release()
        if report and (is_used or not streams):
            self._send(PartsStored(header.feed, (stored,)))
        return stored

    def _discard(self, header: PartHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | Mapped]) -> PartSummary:
        """Discard rows of a dropped feed, without an error: other nodes may still need the same Spark job."""
        rows = 0
        for item in items:
            rows += sum(batch.num_rows for batch in (item.batches if isinstance(item, Mapped) else [item]))
        return PartSummary(
            header.split, header.part, header.attempt, self._number, rows, {}, schema.serialize().to_pybytes()
        )

    def _usage_of(self, header: PartHeader) -> "_Usage":
        with self._changed:
            return self._usage.setdefault(header.feed, _Usage(header.storage, self._changed))

    def _wait_for_space(self, feed: FeedId, usage: "_Usage") -> None:
        """Block a sender until the program has consumed rows, which bounds the memory of both."""
        with self._changed:
            end = time.monotonic() + _BACKPRESSURE_SECONDS
            while usage.is_full and not self._is_dropped(feed):
                if time.monotonic() > end:
                    if usage.program_waits:
                        self._send(Backpressure(feed))
                    end = time.monotonic() + _BACKPRESSURE_SECONDS
                self._changed.wait(_BACKPRESSURE_SECONDS)

    def program_waits(self, feed: FeedId, waits: bool) -> None:
        """Record whether the program waits for rows of a stream, having consumed all that were granted."""
        with self._changed:
            if feed in self._usage:
                self._usage[feed].program_waits = waits

    def _count(self, feed: FeedId, usage: "_Usage", rows: int) -> None:
        usage.received += rows
        now = time.monotonic()
        if now - usage.reported > _REPORT_SECONDS:
            usage.reported = now
            self._send(RowsReceived(feed, usage.received))

    def shard(self, feed: FeedId, split: Split, parts: Iterable[StoredPart]) -> Shard:
        """Return the rows of the parts that count, in the given order, and drop all other parts of that split."""
        counted = [(feed, split, *part) for part in parts]
        wanted = set(counted)
        with self._changed:
            for key in [key for key in self._parts if key[:2] == (feed, split) and key not in wanted]:
                self._parts.pop(key).release()
            return Shard(self._parts[key].batches for key in counted if key in self._parts)

    def wait_for_part(self, feed: FeedId, split: Split, part: StoredPart) -> None:
        """Wait until a part is stored."""
        with self._changed:
            self._changed.wait_for(lambda: (feed, split, *part) in self._parts)

    def take_part(self, feed: FeedId, part: StoredPart) -> tuple[Shard, Sequence[PartSummary], Callable[[], None]]:
        """Return a part of a stream, its summary, and a function to call when all its rows have been handed out.

        The part then leaves the cache, unless the rows are kept for further epochs.
        """
        key = feed, Split.TRAIN, *part
        with self._changed:
            stored = self._parts[key]
            keeps = stored.keeps
            if not keeps:
                del self._parts[key]
        assert stored.summary is not None
        return Shard([stored.batches]), [stored.summary], _nothing if keeps else stored.release

    def drop_part(self, feed: FeedId, part: StoredPart) -> None:
        """Drop a part of a stream that does not count."""
        with self._changed:
            stored = self._parts.pop((feed, Split.TRAIN, *part), None)  # None: `shard` was faster
            if stored is not None:
                stored.release()

    def drop_before(self, feed: int) -> None:
        """Drop the rows of Spark's feeds before one; discard what still arrives of them. Views in use stay valid."""
        with self._changed:
            self._first = max(self._first, feed)
            for key in [key for key in self._parts if self._is_dropped(key[0])]:
                self._parts.pop(key).release()
            self._usage.pop(feed - 1, None)
            self._changed.notify_all()

    def _is_dropped(self, feed: FeedId) -> bool:
        return not isinstance(feed, FileFeed) and feed < self._first


class _Usage:
    """Bytes of a feed in this node, in memory and on disk."""

    def __init__(self, storage: CacheConfig, changed: Condition) -> None:
        self.storage = storage
        self.received = 0  # rows
        self.reported = 0.0
        self.program_waits = False
        self._changed = changed
        self._bytes = {False: 0, True: 0}  # in memory, on disk

    @property
    def is_full(self) -> bool:
        limit = self.storage.limit_bytes
        return limit is not None and sum(self._bytes.values()) >= limit

    def add(self, size: int, on_disk: bool) -> bool:
        """Add bytes, unless they exceed the limit; return whether they were added."""
        limit = self.storage.limit_bytes
        with self._changed:
            counted = self._bytes[False] if self.storage.keep is CacheMode.NONE else sum(self._bytes.values())
            if limit is not None and counted + size > limit and not (self.storage.keep is CacheMode.NONE and on_disk):
                return False
            self._bytes[on_disk] += size
        return True

    def remove(self, size: int, on_disk: bool) -> None:
        with self._changed:
            self._bytes[on_disk] -= size
            self._changed.notify_all()


class _Part:
    """The batches of one attempt at a partition, in memory or in a file; a stream's overflow goes to a file too."""

    def __init__(self, directory: str, storage: CacheConfig, usage: _Usage) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.summary: PartSummary | None = None
        self._directory = directory
        self._storage = storage
        self._usage = usage
        self._bytes = {False: 0, True: 0}  # in memory, on disk
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    @property
    def keeps(self) -> bool:
        """Whether the rows stay for further epochs."""
        return self._storage.keep is not CacheMode.NONE

    def add(self, batches: list[pa.RecordBatch], mapped: int | None) -> None:
        """Append batches; `mapped` is the size of the shared file in which they arrived, if they did."""
        on_disk = self._storage.keep is CacheMode.DISK or self._writer is not None
        size = sum(batch.get_total_buffer_size() for batch in batches) if mapped is None else mapped
        if not self._usage.add(size, on_disk):
            if self._storage.keep is not CacheMode.NONE:
                raise FeedError(self._limit_error())
            self._spill(batches[0].schema)
            on_disk = self._usage.add(size, True)
        self._bytes[on_disk] += size
        if on_disk and (mapped is None or self._storage.keep is CacheMode.NONE):
            self._write(batches)
        else:
            self.batches += batches

    def _limit_error(self) -> str:
        limit = self._storage.limit_bytes
        other = "cache='disk'" if self._storage.keep is CacheMode.MEMORY else "a disk with more room in spark.local.dir"
        return (
            f"the rows that this node was fed are more than cache_limit allows ({limit:,} bytes): raise it, use "
            f"{other} or more workers, feed fewer columns, or pass over the rows once with cache=None"
        )

    def _spill(self, schema: pa.Schema) -> None:
        """Move the batches from memory to a file, which takes all later ones too."""
        held, self.batches = self.batches, []
        self._open(schema)
        self._write(held)
        size = self._bytes[False]
        self._usage.remove(size, on_disk=False)
        self._usage.add(size, on_disk=True)
        self._bytes = {False: 0, True: size}

    def _open(self, schema: pa.Schema) -> None:
        with disk_errors(self._directory):
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - stays open until it is mapped
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        with disk_errors(self._directory):
            for batch in batches:
                if self._writer is None:
                    self._open(batch.schema)
                self._writer.write_batch(batch)

    def complete(self) -> None:
        """Map the written file into memory."""
        if self._file is None:
            return
        with disk_errors(self._directory):
            self._writer.close()
            self._file.flush()
        mapped = map_file(self._file)
        self._file.close()
        self.batches += pa.ipc.open_stream(mapped)

    def release(self) -> None:
        """Drop the rows; views in use stay valid."""
        for on_disk, size in self._bytes.items():
            self._usage.remove(size, on_disk)
        self._bytes = {False: 0, True: 0}
        self.batches = []
        if self._file is not None:
            with suppress(OSError):  # the file is closed even if flushing fails
                self._file.close()


def _nothing() -> None:
    """Keep the rows."""


def _summaries(batches: list[pa.RecordBatch], part: PartId, rows: int) -> Iterator[dict[str, ColumnSummary]]:
    """Yield the summaries of batches of a part, after so many rows of it."""
    for batch in batches:
        yield summarize(batch, part.partition, part.first_row + rows)
        rows += batch.num_rows
