"""The rows that a node was fed: Arrow batches in memory, or in memory-mapped files.

The files have no name: they are gone with the process, whatever it dies of.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Condition
from typing import IO, Any

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, merge, summarize
from tensorflowonspark.columns.summary import ColumnSummary
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    Backpressure,
    CacheConfig,
    CacheMode,
    PartHeader,
    PartsStored,
    PartSummary,
    RowsReceived,
    Split,
)
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.transport import Mapped
from tensorflowonspark.transport.shared_file import disk_errors, map_file

__all__ = ["Cache"]

_REPORT_SECONDS = 0.3  # between two counts of what has come
_PRESSED_SECONDS = 0.5  # that a sender waits before the driver is told; other workers' rows are likely to come first

PartKey = tuple[int, Split, int, int]  # feed, split, partition, attempt


class Cache:
    """The parts that were stored, each one attempt at one partition; which of them count is said later.

    Parameters
    ----------
    directory : str
        Where its files are, on a disk with room for the rows.
    number : int
        This node's number.
    tell : callable
        Takes messages to the driver.
    """

    def __init__(self, directory: str, number: int, tell: Callable[[object], None]) -> None:
        self._directory = directory
        self._number = number
        self._tell = tell
        self._changed = Condition()
        self._parts: dict[PartKey, _Part] = {}
        self._rooms: dict[int, _Room] = {}
        self._over = -1  # feeds up to this one are no longer wanted

    def store(
        self, header: PartHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | Mapped], *, report: bool = True
    ) -> PartSummary:
        """Keep a part, sent or handed over; it counts as stored only when all of it came.

        Parameters
        ----------
        header : PartHeader
            Which part it is.
        schema : pa.Schema
            Its columns.
        items : iterator of pa.RecordBatch or Mapped
            Its rows.
        report : bool
            Whether the driver learns of it by a `PartsStored`.
        """
        if header.feed <= self._over:
            drained = self._drained(header, schema, items)
            if report and not header.streams:
                self._tell(PartsStored(header.feed, (drained,)))
            return drained
        streams = header.streams
        room = self._room(header)
        if streams:
            self._wait_for_room(header.feed, room)
        part = _Part(self._directory, header.storage, room)
        rows = 0
        summary: dict[str, ColumnSummary] = {}
        try:
            for item in items:
                batches = [flat_columns(batch) for batch in (item.batches if isinstance(item, Mapped) else [item])]
                summary = merge((summary, *_summaries(batches, header.partition, rows)))
                schema = batches[0].schema
                came = sum(batch.num_rows for batch in batches)
                rows += came
                part.add(batches, item.size if isinstance(item, Mapped) else None)
                self._count(header.feed, room, came)
                del item, batches  # what went to disk is to leave memory while the next is waited for
            part.complete()
        except BaseException:
            part.release()
            raise
        told = PartSummary(
            header.split, header.partition, header.attempt, self._number, rows, summary, schema.serialize().to_pybytes()
        )
        part.summary = told
        with self._changed:
            if header.feed <= self._over:
                part.release()
            else:
                self._parts[header.feed, header.split, header.partition, header.attempt] = part
                self._changed.notify_all()
            wanted = header.feed > self._over
        if report and (wanted or not streams):
            self._tell(PartsStored(header.feed, (told,)))
        return told

    def _drained(self, header: PartHeader, schema: pa.Schema, items: Iterator[pa.RecordBatch | Mapped]) -> PartSummary:
        """Let rows go that the program no longer wants: other nodes may still want those of the same Spark job."""
        rows = 0
        for item in items:
            rows += sum(batch.num_rows for batch in (item.batches if isinstance(item, Mapped) else [item]))
        return PartSummary(
            header.split, header.partition, header.attempt, self._number, rows, {}, schema.serialize().to_pybytes()
        )

    def _room(self, header: PartHeader) -> "_Room":
        with self._changed:
            return self._rooms.setdefault(header.feed, _Room(header.storage, self._changed))

    def _wait_for_room(self, feed: int, room: "_Room") -> None:
        """Let a sender wait until the program has taken some of what is here: so memory is bounded on both sides."""
        with self._changed:
            end = time.monotonic() + _PRESSED_SECONDS
            while room.is_full and feed > self._over:
                if time.monotonic() > end:
                    if room.program_waits:
                        self._tell(Backpressure(feed))
                    end = time.monotonic() + _PRESSED_SECONDS
                self._changed.wait(_PRESSED_SECONDS)

    def program_waits(self, feed: int, waits: bool) -> None:
        """Note whether the program has taken all rows of a stream that it may."""
        with self._changed:
            if feed in self._rooms:
                self._rooms[feed].program_waits = waits

    def _count(self, feed: int, room: "_Room", rows: int) -> None:
        room.received += rows
        now = time.monotonic()
        if now - room.reported > _REPORT_SECONDS:
            room.reported = now
            self._tell(RowsReceived(feed, room.received))

    def shard(self, feed: int, split: Split, parts: Iterable[tuple[int, int]]) -> Shard:
        """Return the rows of the parts that count, in the order given, and drop all other parts of that split."""
        counted = [(feed, split, *part) for part in parts]
        with self._changed:
            for key in [key for key in self._parts if key[:2] == (feed, split) and key not in counted]:
                self._parts.pop(key).release()
            return Shard(self._parts[key].batches for key in counted if key in self._parts)

    def wait_for_part(self, feed: int, split: Split, partition: int) -> None:
        """Wait until a part of that number has come from wherever it comes from."""
        with self._changed:
            self._changed.wait_for(lambda: (feed, split, partition, 0) in self._parts)

    def take_part(self, feed: int, part: tuple[int, int]) -> tuple[Shard, PartSummary, Callable[[], None]]:
        """Return a stream's part that counts, and what to call when all its rows have been handed out."""
        with self._changed:
            stored = self._parts.pop((feed, Split.TRAIN, *part))
        assert stored.summary is not None
        return Shard([stored.batches]), stored.summary, stored.release

    def drop_part(self, feed: int, part: tuple[int, int]) -> None:
        """Forget a stream's part that does not count."""
        with self._changed:
            self._parts.pop((feed, Split.TRAIN, *part)).release()

    def drop(self, feed: int) -> None:
        """Forget a feed's rows, and let go those that still come; views that are in use stay valid."""
        with self._changed:
            self._over = max(self._over, feed)
            for key in [key for key in self._parts if key[0] <= feed]:
                self._parts.pop(key).release()
            self._rooms.pop(feed, None)
            self._changed.notify_all()


class _Room:
    """How many bytes of a feed are here, in memory and in all."""

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
        """Count bytes in; return whether all that is in memory, or all in all, is still within the bound."""
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
    """The batches of one attempt at a partition, in memory or in files; a stream's overflow goes to a file too."""

    def __init__(self, directory: str, storage: CacheConfig, room: _Room) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.summary: PartSummary | None = None
        self._directory = directory
        self._storage = storage
        self._room = room
        self._bytes = {False: 0, True: 0}  # in memory, on disk
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, batches: list[pa.RecordBatch], mapped: int | None) -> None:
        """Take some more batches; `mapped` is the size of the file that they were handed over in, if they were."""
        on_disk = self._storage.keep is CacheMode.DISK or self._writer is not None
        size = sum(batch.get_total_buffer_size() for batch in batches) if mapped is None else mapped
        if not self._room.add(size, on_disk):
            if self._storage.keep is not CacheMode.NONE:
                raise FeedError(self._over_the_bound())
            self._spill(batches[0].schema)
            on_disk = self._room.add(size, True)
        self._bytes[on_disk] += size
        if on_disk and (mapped is None or self._storage.keep is CacheMode.NONE):
            self._write(batches)
        else:
            self.batches += batches

    def _over_the_bound(self) -> str:
        limit = self._storage.limit_bytes
        other = "cache='disk'" if self._storage.keep is CacheMode.MEMORY else "a disk with more room in spark.local.dir"
        return (
            f"the rows that this node was fed are more than cache_limit allows ({limit:,} bytes): raise it, use "
            f"{other} or more workers, feed fewer columns, or pass over the rows once with cache=None"
        )

    def _spill(self, schema: pa.Schema) -> None:
        """Go on in a file, and put there what was in memory."""
        held, self.batches = self.batches, []
        self._open(schema)
        self._write(held)
        size = self._bytes[False]
        self._room.remove(size, on_disk=False)
        self._room.add(size, on_disk=True)
        self._bytes = {False: 0, True: size}

    def _open(self, schema: pa.Schema) -> None:
        with disk_errors(self._directory):
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - lives until it is mapped
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        with disk_errors(self._directory):
            for batch in batches:
                if self._writer is None:
                    self._open(batch.schema)
                self._writer.write_batch(batch)

    def complete(self) -> None:
        """Map what was written."""
        if self._file is None:
            return
        with disk_errors(self._directory):
            self._writer.close()
            self._file.flush()
        mapped = map_file(self._file)
        self._file.close()
        self.batches += pa.ipc.open_stream(mapped)

    def release(self) -> None:
        """Forget the rows; views that are in use keep theirs."""
        for on_disk, size in self._bytes.items():
            self._room.remove(size, on_disk)
        self._bytes = {False: 0, True: 0}
        self.batches = []
        if self._file is not None:
            with suppress(OSError):  # it is closed all the same
                self._file.close()


def _summaries(batches: list[pa.RecordBatch], partition: int, first_row: int) -> Iterator[dict[str, ColumnSummary]]:
    for batch in batches:
        yield summarize(batch, partition, first_row)
        first_row += batch.num_rows
