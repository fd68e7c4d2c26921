"""The rows of a feed, compared with those that were fed before a restart: Spark may compute others."""

import logging
from collections.abc import Sequence

import google_crc32c

from tensorflowonspark.driver.feed.job import Contents, FeedRequest
from tensorflowonspark.feed_messages import PartSummary, Split
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)


class ContentCheck:
    """Warns if the rows of a feed are others than before."""

    def __init__(self, feed: int, request: FeedRequest) -> None:
        self._feed = feed
        self._request = request
        self._compared: set[Split] = set()  # parts that are fed again in this attempt the source has compared

    def take(self, split: Split, parts: Sequence[PartSummary], *, lost: bool) -> int:
        """Compare the parts of a split that count, some without their rows if nodes are lost; return a fingerprint."""
        contents = contents_of(parts)
        self.compare(split, contents, round_robin=any(part.shares for part in parts), lost=lost)
        fingerprint: int = google_crc32c.value(repr(sorted(contents.items())).encode())
        return fingerprint

    def compare(self, split: Split, contents: Contents, *, round_robin: bool, lost: bool) -> None:
        """Warn once if Spark has computed other rows than before a restart."""
        if split in self._compared:
            return
        self._compared.add(split)
        known = self._request.contents
        before = known.get((split, round_robin), contents)
        known[split, round_robin] = contents
        if lost and round_robin:
            return  # with some rows of each partition
        for partition in sorted(before.keys() & contents.keys() if lost else before.keys() | contents.keys()):
            had, has = before.get(partition, (0, 0)), contents.get(partition, (0, 0))
            if had != has:
                text = (
                    "feed %d: Spark has computed other rows than before the restart (partition %d had %s rows, and now "
                    "has %s): programs that resume within an epoch begin it again. cache() the DataFrame, or write it "
                    "to files and feed these"
                )
                shown = partition, f"{had[0]:,}", describe_others(had, has)
                CONSOLE.log(_log, logging.WARNING, text, self._feed, *shown)
                return


def contents_of(parts: Sequence[PartSummary]) -> Contents:
    """Return the rows and the checksum of each partition of the DataFrame, wherever its rows are."""
    contents: Contents = {}
    for part in parts:
        for each in part.contents:
            if each.rows:
                rows, checksum = contents.get(each.partition, (0, 0))
                contents[each.partition] = rows + each.rows, (checksum + each.checksum) % (1 << 64)
    return contents


def describe_others(had: tuple[int, int], has: tuple[int, int]) -> str:
    """Return what a partition has in place of other rows, given the numbers of rows and their checksums.

    Examples
    --------
    >>> describe_others((1000, 7), (999, 8)), describe_others((1000, 7), (1000, 8))
    ('999', 'others, or the same in another order,')
    """
    return f"{has[0]:,}" if had[0] != has[0] else "others, or the same in another order,"
