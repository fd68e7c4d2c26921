"""Rows of files whose number is unknown: the first epoch by granted steps, in which they are counted, and all others.

The workers that train together report to the driver what they have read (`RowsRead`), which grants them as many
steps; and at the end their number of rows (`FilesCounted`), which it sends to all. A worker whose steps depend on no
other one takes whatever it has read.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tensorflowonspark.feed_messages import (
    FileFeed,
    FilesCounted,
    PartSummary,
    RowsRead,
    SplitManifest,
    StepGrant,
)
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed import kept
from tensorflowonspark.node.feed.counting import CountingPass, ReadReports
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.streams import PartStream, RowStream
from tensorflowonspark.node.feed.tfrecord_source import Records
from tensorflowonspark.node.feed.windows import check_rows
from tensorflowonspark.storage.listing import File

_KIND = "tfrecord"  # of the counts that are kept


class UncountedRows:
    """One worker's share of the files of one call.

    `manifest` and `row_bytes`, the mean size of a row in memory, are as the first rows show them.
    """

    def __init__(self, splits: Sequence[Records], manifest: SplitManifest, row_bytes: float, limit_bytes: int) -> None:
        self._splits = splits
        self._manifest = manifest
        self._row_bytes = row_bytes
        self._limit_bytes = limit_bytes

    def together(self, feed: FileFeed, link: Link) -> RowStream:
        """Return the rows of a worker that takes as many steps as the others."""

        def send_rows(rows: int) -> None:
            link.send(RowsRead(feed, rows))

        def send_count(rows: int) -> None:
            link.send(FilesCounted(feed, rows))

        def ended(rows: int) -> None:
            send_count(rows)
            self._keep(counting)

        report = ReadReports(send_rows, ended, partial(link.feeds.break_off, feed))
        counting = CountingPass(self._splits, self._row_bytes, self._limit_bytes, report)

        def next_grant(seconds: float | None = None) -> StepGrant | None:
            grant = link.feeds.wait_for_grant(feed, seconds)
            return None if grant is None else replace(grant, parts=counting.arrived())

        def arrived() -> SplitManifest | None:
            counts = link.feeds.counts(feed)
            return None if counts is None else replace(self._manifest, rows=counts)

        def wait() -> tuple[SplitManifest, FileRows]:
            rows = self._counted(counting)
            send_count(rows.rows)
            return replace(self._manifest, rows=link.feeds.wait_for_counts(feed)), rows

        parts = self._parts(feed, counting, next_grant, partial(link.feeds.wait_for_step, feed), link.send)
        return RowStream(parts, arrived, wait, repeatable=True)

    def alone(self, feed: FileFeed, number: int) -> RowStream:
        """Return the rows of a node whose steps depend on no other's."""

        def ended(_rows: int) -> None:
            self._keep(counting)

        counting = CountingPass(self._splits, self._row_bytes, self._limit_bytes, ReadReports(end=ended))

        def arrived() -> SplitManifest | None:
            counts = counting.counts
            return None if counts is None else replace(self._manifest, rows={number: sum(counts)})

        def wait() -> tuple[SplitManifest, FileRows]:
            rows = self._counted(counting)
            return replace(self._manifest, rows={number: rows.rows}), rows

        parts = self._parts(feed, counting, partial(counting.next_grant, feed), counting.wait_for_step, _ignore)
        return RowStream(parts, arrived, wait, repeatable=True)

    def _parts(
        self,
        feed: FileFeed,
        counting: CountingPass,
        next_grant: Callable[..., StepGrant | None],
        granted: Callable[[int | None], int | None],
        send: Callable[[object], None],
    ) -> PartStream:
        """Return the rows of the first pass, which are read as long as it goes on."""

        def check(selection: Selection, summary: PartSummary) -> None:
            split = summary.part.partition
            check_rows(selection, summary.columns, split, self._splits[split].name)

        return PartStream(feed, counting, next_grant, granted, send, check, counting.start, counting.close)

    def _counted(self, counting: CountingPass) -> FileRows:
        if self._keeps_counts:
            files = self._files
            known = kept.load(_KIND, files)
            places = {file.path: number for number, file in enumerate(files)}
            counting.learn({places[path]: rows for path, rows in known.items() if type(rows) is int and rows >= 0})
        is_known = counting.counts is not None
        rows = counting.count()
        if not is_known:
            self._keep(counting)
        return FileRows(self._splits, rows, self._row_bytes, self._limit_bytes)

    @property
    def _keeps_counts(self) -> bool:
        """Whether the numbers of rows are those of records, whatever can be read of them."""
        return all(each.counts_records for each in self._splits)

    @property
    def _files(self) -> list[File]:
        """The splits as files of their own, for `kept`."""
        found = [(each.split, each.split.file) for each in self._splits]
        return [replace(file, path=f"{file.path}#{split.begin}-{split.end}") for split, file in found]

    def _keep(self, counting: CountingPass) -> None:
        """Keep the numbers of rows for later runs, if all splits have been counted."""
        if counting.counts is not None and self._keeps_counts:
            files = self._files
            kept.keep(_KIND, files, {file.path: rows for file, rows in zip(files, counting.counts, strict=True)})


def _ignore(_message: object) -> None:
    """Send nothing: no other process waits for this one."""
