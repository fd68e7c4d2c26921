"""Files that the nodes read themselves, each worker its share of the splits.

All workers list the same files and divide them in the same way, by size; each decodes its share, several files at a
time, into its cache. It reports its parts and a fingerprint of the list to the driver. When all workers have reported,
the driver completes the read like a feed, with rebalancing and even steps. Without a cache, the workers read their
shares anew in each epoch (`file_rows.py`), and the driver only compares what they have listed.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, summarize
from tensorflowonspark.config import Job
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import (
    FIRST_FILE_FEED,
    CacheConfig,
    CacheMode,
    FeedComplete,
    FilesRead,
    PartHeader,
    PartSummary,
    Split,
    SplitManifest,
)
from tensorflowonspark.node.driver_link import Link, NodeSetup
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.file_splits import FileSplit, RowGroup, divide, parquet_splits

__all__ = ["FileFeeds"]

_READERS = 4  # splits read at a time: network and disk wait for each other, and decoding is native code


@dataclass
class FileFeeds:
    """The feeds of one node that are read from files.

    Attributes
    ----------
    setup : NodeSetup
        Identity of the node.
    cache : Cache or None
        Stores the rows; None on a node that is not fed.
    link : Link
        To the driver.
    feeds : Feeds
        Opens the feeds that the driver has completed.
    """

    setup: NodeSetup
    cache: Cache | None
    link: Link
    feeds: Feeds
    _next: int = FIRST_FILE_FEED

    def read(
        self,
        call: str,
        splits: Sequence[FileSplit],
        schema: pa.Schema,
        cache: str | None,
        cache_limit: int | str | None,
    ) -> Feed:
        """Read this worker's share; return all workers' rows as a feed. An evaluator reads all rows, for itself.

        Parameters
        ----------
        call : str
            The program's call, for errors.
        splits : sequence of FileSplit
            All splits, in the same order on all workers.
        schema : pa.Schema
            The rows' columns.
        cache, cache_limit
            As for `Context.read_parquet`.

        Raises
        ------
        SpecError
            If the files are empty, or `cache` or `cache_limit` is invalid.
        FeedError
            If this node can't read files in this way.
        """
        config = CacheConfig.parse(cache, cache_limit)
        if not splits:
            raise SpecError(f"{call}: the files are empty")
        number, self._next = self._next, self._next + 1
        spec, role = self.setup.spec, self.setup.role
        if config.keep is CacheMode.NONE:
            groups = _row_groups(call, splits)
            if role in spec.fed:
                self._agree(number, call, splits)
            elif role.job is not Job.EVALUATOR:
                raise FeedError(f"{role} has no rows: {', '.join(map(str, spec.fed))} read files")
            return self._open(groups, config)
        if self.cache is None:
            raise FeedError(
                f"{role} keeps no rows, {', '.join(map(str, spec.fed))} do: pass cache=None (Parquet only), and the "
                "files are read anew in each epoch"
            )
        share = divide([split.size for split in splits], len(spec.fed))[spec.fed.index(role)]
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as readers:
            stored = [readers.submit(self._store, number, each, splits[each], schema, config) for each in share]
            try:
                parts = tuple(each.result() for each in stored)
            except BaseException:
                readers.shutdown(cancel_futures=True)
                raise
        return self.feeds.open(self._agree(number, call, splits, parts))

    def find_for_workers(
        self, paths: Sequence[str], columns: Sequence[str] | None, cache_limit: int | str | None
    ) -> FeedComplete:
        """Return what Parquet files hold, for the chief of a ``ParameterServerStrategy``: its workers read them."""
        number, self._next = self._next, self._next + 1
        CacheConfig.parse(None, cache_limit)  # which refuses a wrong one here
        splits, _ = parquet_splits(paths, columns)
        return FeedComplete(number, self._manifest(_row_groups("ctx.read_parquet", splits))[0])

    def read_for_chief(self, paths: Sequence[str], columns: Sequence[str] | None, limit: int | str | None) -> Feed:
        """Return this worker's share of the files of `find_for_workers`."""
        splits, _ = parquet_splits(paths, columns)
        return self._open(_row_groups("ctx.read_parquet", splits), CacheConfig.parse(None, limit))

    def _store(self, feed: int, number: int, split: FileSplit, schema: pa.Schema, config: CacheConfig) -> PartSummary:
        assert self.cache is not None
        header = PartHeader(feed, Split.TRAIN, number, 0, config)
        return self.cache.store(header, schema, split.batches(), report=False)  # `FilesRead` reports all of them

    def _agree(
        self, feed: int, call: str, splits: Sequence[FileSplit], parts: tuple[PartSummary, ...] = ()
    ) -> FeedComplete:
        """Report what was listed and stored; wait until all workers have."""
        listed = "\n".join(f"{split.name} {split.size}" for split in splits)
        self.link.send(FilesRead(feed, call, hashlib.sha256(listed.encode()).hexdigest(), parts))
        return self.link.wait_for_file_feed(feed)

    def _manifest(self, groups: Sequence[RowGroup]) -> tuple[SplitManifest, dict[int, list[RowGroup]], float]:
        """Return what the rows are, each reader's row groups by node number, and the bytes of a row in memory.

        What kind the rows are, the first ones of all files show, which every node reads.
        """
        readers = [self.setup.number] if self.setup.role.job is Job.EVALUATOR else self.feeds.numbers
        divided = divide([group.rows for group in groups], len(readers))
        shares = {number: [groups[each] for each in share] for number, share in zip(readers, divided, strict=True)}
        with closing(groups[0].batches()) as batches:
            first = flat_columns(next(batches))
        manifest = SplitManifest(
            {number: sum(group.rows for group in share) for number, share in shares.items()},
            columns=summarize(first, 0, 0),
            schema=first.schema.serialize().to_pybytes(),
        )
        return manifest, shares, first.nbytes / first.num_rows

    def _open(self, groups: Sequence[RowGroup], config: CacheConfig) -> Feed:
        """Return a feed whose rows are read in each epoch."""
        manifest, shares, row_bytes = self._manifest(groups)
        assert config.limit_bytes is not None
        return self.feeds.open_files(manifest, FileRows(shares[self.setup.number], row_bytes, config.limit_bytes))


def _row_groups(call: str, splits: Sequence[FileSplit]) -> list[RowGroup]:
    groups = [split for split in splits if isinstance(split, RowGroup)]
    if len(groups) < len(splits):
        raise SpecError(
            f"{call}: without a cache the number of rows must be known before, which TFRecord files do not have: "
            "use cache='disk' or 'memory', Parquet, or cluster.train(df, cache=None)"
        )
    return groups
