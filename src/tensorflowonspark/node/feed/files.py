"""Files that the nodes read themselves, each worker its share of the splits.

All workers list the same files and divide them in the same way, by size; each decodes its share, several files at a
time, into its cache. It reports its parts and a fingerprint of the list to the driver. When all workers have reported,
the driver completes the read like a feed, with rebalancing and even steps. Without a cache, the workers read their
shares anew in each epoch (`file_rows.py`), and the driver only compares what they have listed. With a row filter each
worker counts the rows that pass in a share of the row groups, and the driver sends the counts to all. The rows of
TFRecord files are counted in the first epoch, whose steps the driver grants (`uncounted.py`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, count

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, summarize
from tensorflowonspark.config import Job
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import (
    CacheConfig,
    CacheMode,
    FeedComplete,
    FileFeed,
    FilesRead,
    Layout,
    PartHeader,
    PartId,
    PartitionSlice,
    PartSummary,
    Split,
    SplitManifest,
)
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.footers import Combine, ReadFooters, footers, shared_footers
from tensorflowonspark.node.feed.row_groups import RowGroup
from tensorflowonspark.node.feed.source import Listed, Source
from tensorflowonspark.node.feed.tfrecord_source import Records
from tensorflowonspark.node.feed.uncounted import UncountedRows
from tensorflowonspark.node.feed.windows import FileSplit, window_limit
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.storage.file_systems import READS_AT_ONCE

GroupsByNode = Mapping[int, Sequence[RowGroup]]  # row groups by node number
_READERS = 4  # splits read at a time: network and disk wait for each other, and decoding is native code
_BYTES_AT_ONCE = 32 << 20  # of small splits


@dataclass
class FileReader:
    """The feeds of one node that are read from files."""

    setup: NodeSetup
    cache: Cache | None  # None on a node that is not fed
    link: Link
    feeds: Feeds
    # what combines values of all workers, for a call of the program; None if this one is alone
    combine: Callable[[str], Combine | None] = lambda _call: None
    _reads: Iterator[int] = field(default_factory=count)

    def read(
        self,
        call: str,
        listed: Listed,
        cache: str | None,
        *,
        is_global: bool = False,
    ) -> Feed:
        """Read this worker's share; return all workers' rows as a feed. An evaluator reads all rows, for itself.

        `call` is what the program calls, for errors. `is_global` is for rows that are kept.
        """
        config, splits = CacheConfig.parse(cache, listed.source.cache_limit), listed.splits
        if not splits:
            raise SpecError(f"{call}: there are no rows")
        feed = FileFeed(next(self._reads))
        spec, role = self.setup.spec, self.setup.role
        if config.keep is CacheMode.NONE:
            if role not in spec.fed and role.job is not Job.EVALUATOR:
                raise FeedError(f"{role} has no rows: {', '.join(map(str, spec.fed))} read files")
            groups, records = _by_kind(splits)
            if records:
                return self._read_uncounted(feed, call, records, config)
            if role in spec.fed:
                groups = self._agree_on_rows(feed, call, groups)
                return self._open(call, groups, self._divided(groups), config)
            groups = _count(groups)
            return self._open(call, groups, {self.setup.number: groups}, config)
        if self.cache is None:
            raise FeedError(
                f"{role} keeps no rows, {', '.join(map(str, spec.fed))} do: pass cache=None, and the files are read "
                "anew in each epoch"
            )
        share = self._own_share(splits)
        schema = flat_columns(pa.RecordBatch.from_pylist([], listed.schema)).schema
        with ThreadPoolExecutor(_readers([splits[each] for each in share]), thread_name_prefix="read") as readers:
            stored = [readers.submit(self._store, feed, each, splits[each], schema, config) for each in share]
            try:
                parts = tuple(each.result() for each in stored)
            except BaseException:
                readers.shutdown(cancel_futures=True)
                raise
        complete = self._agree(feed, call, splits, parts)
        if not any(complete.train.rows.values()):
            raise SpecError(f"{call}: there are no rows")
        return self.feeds.open(
            replace(complete, train=replace(complete.train, is_global=is_global, mixture=listed.mixture))
        )

    def read_footers(self, call: str) -> ReadFooters:
        """Return what reads the footers of files: each worker its part, or another node all of them."""
        fed, role = self.setup.spec.fed, self.setup.role
        combine = self.combine(call) if role in fed else None
        if combine is None:
            return footers
        return lambda files: shared_footers(files, fed.index(role), len(fed), combine)

    def describe(self, call: str, listed: Listed) -> FeedComplete:
        """Return what files hold, for the chief of a ``ParameterServerStrategy``, whose workers read them.

        The numbers of rows are left out if they are unknown.
        """
        feed = FileFeed(next(self._reads))
        CacheConfig.parse(None, listed.source.cache_limit)  # which refuses a wrong one here
        groups, records = _by_kind(listed.splits)
        if records:
            return FeedComplete(feed, _manifest(call, records, {})[0])
        shares = {node: _count(share) for node, share in self._divided(groups).items()}
        return FeedComplete(feed, _manifest(call, groups, _rows_of(shares))[0])

    def read_for_chief(self, feed: FileFeed, source: Source) -> Feed:
        """Return this worker's share of the files that the chief has described."""
        config, call = CacheConfig.parse(None, source.cache_limit), f"reading {source.kind}"
        groups, records = _by_kind(source.find().splits)
        if records:
            share = [records[each] for each in self._own_share(records)]
            manifest, rows = self._uncounted(call, records, share, config, [self.setup.number])
            return self.feeds.open_files(manifest, rows.alone(feed, self.setup.number), measured=False)
        own = _count(self._divided(groups)[self.setup.number])
        return self._open(call, groups, {self.setup.number: own}, config, measured=False)

    def _store(
        self, feed: FileFeed, number: int, split: FileSplit, schema: pa.Schema, config: CacheConfig
    ) -> PartSummary:
        assert self.cache is not None
        header = PartHeader(feed, Split.TRAIN, PartId(number), 0, config)
        return self.cache.store(header, schema, split.batches(), report=False)  # `FilesRead` reports all of them

    def _agree(
        self,
        feed: FileFeed,
        call: str,
        splits: Sequence[FileSplit],
        parts: tuple[PartSummary, ...] = (),
        counts: tuple[tuple[int, int], ...] = (),
        *,
        streams: bool = False,
    ) -> FeedComplete:
        """Report what was listed, and stored or counted; wait for all workers, of which one with other files fails."""
        self.link.send(FilesRead(feed, call, _fingerprint(splits), parts, counts, streams))
        return self.link.feeds.wait_for_rows(feed)

    def _agree_on_rows(self, feed: FileFeed, call: str, groups: list[RowGroup]) -> list[RowGroup]:
        """Wait until all workers have listed the same row groups; return those with rows that pass the filter."""
        if groups[0].file.filter is None:
            self._agree(feed, call, groups)
            return groups
        share = self._own_share(groups)
        counted = _count([groups[number] for number in share])
        counts = tuple((number, group.rows) for number, group in zip(share, counted, strict=True))
        self._agree(feed, call, groups, counts=counts)
        found = self.link.feeds.wait_for_counts(feed)
        return [replace(group, rows=found[number]) for number, group in enumerate(groups) if found[number]]

    def _own_share(self, splits: Sequence[FileSplit]) -> Sequence[int]:
        """Return the numbers of the splits that this worker reads, by their sizes."""
        fed = self.setup.spec.fed
        return divide([split.size for split in splits], len(fed))[fed.index(self.setup.role)]

    def _divided(self, groups: Sequence[RowGroup]) -> dict[int, list[RowGroup]]:
        """Return each worker's row groups, by its node number."""
        numbers = self.feeds.numbers
        shares = divide([group.rows for group in groups], len(numbers))
        return {number: [groups[each] for each in share] for number, share in zip(numbers, shares, strict=True)}

    def _open(
        self,
        call: str,
        groups: Sequence[RowGroup],
        shares: GroupsByNode,
        config: CacheConfig,
        *,
        measured: bool = True,
    ) -> Feed:
        """Return a feed whose rows are read in each epoch."""
        manifest, row_bytes = _manifest(call, groups, _rows_of(shares))
        places = {group.name: place for place, group in enumerate(groups)}
        slices = (
            tuple(PartitionSlice(places[each.name], 0, each.rows) for each in share if each.rows)
            for share in shares.values()
        )
        manifest = replace(manifest, layout=Layout(tuple(slices)))
        assert config.limit_bytes is not None
        share = [group for group in shares[self.setup.number] if group.rows]
        limit = window_limit(config.limit_bytes, [group.size for group in groups])
        rows = FileRows(share, [group.rows for group in share], row_bytes, limit)
        return self.feeds.open_files(manifest, rows, measured=measured)

    def _read_uncounted(self, feed: FileFeed, call: str, splits: Sequence[Records], config: CacheConfig) -> Feed:
        own = self.setup.number
        if self.setup.role not in self.setup.spec.fed:
            manifest, rows = self._uncounted(call, splits, splits, config, [own])
            return self.feeds.open_files(manifest, rows.alone(feed, own), measured=False)
        # A worker whose peers may be started again alone does not wait for them.
        together = len(self.feeds.numbers) > 1 and not self.setup.config.restarts_nodes
        self._agree(feed, call, splits, streams=together)
        share = [splits[each] for each in self._own_share(splits)]
        manifest, rows = self._uncounted(call, splits, share, config, self.feeds.numbers if together else [own])
        stream = rows.together(feed, self.link) if together else rows.alone(feed, own)
        return self.feeds.open_files(manifest, stream, measured=True)

    def _uncounted(
        self, call: str, splits: Sequence[Records], share: Sequence[Records], config: CacheConfig, numbers: list[int]
    ) -> tuple[SplitManifest, UncountedRows]:
        """Return what is known of splits, and this node's share of them; the workers of `numbers` take equal steps."""
        assert config.limit_bytes is not None
        manifest, row_bytes = _manifest(call, splits, dict.fromkeys(numbers, 0))
        limit = window_limit(config.limit_bytes, [split.size for split in splits])
        return manifest, UncountedRows(share, manifest, row_bytes, limit)


def divide(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Return the numbers of each worker's splits: the largest first, each to the worker with the least load.

    Examples
    --------
    >>> divide([1, 5, 2, 3], 2)
    [[0, 1], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        least = load.index(min(load))
        shares[least].append(number)
        load[least] += sizes[number]
    return [sorted(each) for each in shares]


def _by_kind(splits: Sequence[FileSplit]) -> tuple[list[RowGroup], list[Records]]:
    """Return the splits whose numbers of rows are known, or those of which they are not: all are of one kind."""
    groups = [split for split in splits if isinstance(split, RowGroup)]
    return groups, [split for split in splits if isinstance(split, Records)]


def _readers(splits: Sequence[FileSplit]) -> int:
    """Return how many splits to read at a time: the more, the smaller they are."""
    largest = max((split.size for split in splits), default=1)
    return max(_READERS, min(READS_AT_ONCE, _BYTES_AT_ONCE // max(1, largest)))


def _count(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """Return row groups with the numbers of their rows that pass the filter."""
    with ThreadPoolExecutor(_readers(groups), thread_name_prefix="count") as readers:
        counts = list(readers.map(RowGroup.count, groups))
    return [replace(group, rows=rows) for group, rows in zip(groups, counts, strict=True)]


def _fingerprint(splits: Sequence[FileSplit]) -> int:
    """Return a hash of the files' names and sizes."""
    listed = "\n".join(f"{split.name} {split.size}" for split in splits)
    return int.from_bytes(hashlib.sha256(listed.encode()).digest()[:8], "big")


def _rows_of(shares: GroupsByNode) -> dict[int, int]:
    return {number: sum(group.rows for group in share) for number, share in shares.items()}


def _manifest(call: str, splits: Sequence[FileSplit], rows: dict[int, int]) -> tuple[SplitManifest, float]:
    """Return what the rows are, and the bytes of a row in memory.

    What kind the rows are, the first ones of all files show, which every node reads.
    """
    batches = chain.from_iterable(split.batches() for split in splits)
    first = next(batches, None)
    if first is None:
        raise SpecError(f"{call}: there are no rows")
    first = flat_columns(first)
    manifest = SplitManifest(
        rows,
        columns=summarize(first, 0, 0),
        schema=first.schema.serialize().to_pybytes(),
        fingerprint=_fingerprint(splits),
    )
    return manifest, first.nbytes / first.num_rows
