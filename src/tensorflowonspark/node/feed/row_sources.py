"""The source of each row of a mixture: every worker knows those of its own rows, and needs those of all."""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensorflowonspark.errors import FeedError
from tensorflowonspark.mixture import Mixture
from tensorflowonspark.node.feed.order import Numbers
from tensorflowonspark.node.feed.shard import Shard

Sources = npt.NDArray[np.uint16]  # the number of a source for each row


def own_sources(rows: Shard, column: str, numbers: Numbers) -> bytes:
    """Return the sources of a worker's rows, which have these numbers over all partitions: in the order of these.

    In that order rows of one source follow each other, so that they take a few bytes.
    """
    return zlib.compress(sources_of(rows, column)[np.argsort(numbers)].tobytes(), 1)


def sources_of(rows: Shard, column: str) -> Sources:
    """Return the sources of a worker's rows."""
    own: list[Sources] = [np.asarray(batch.column(column)).astype(np.uint16) for batch in rows.batches]
    return np.concatenate([np.zeros(0, np.uint16), *own])


def all_sources(found: Sequence[bytes], numbers: Sequence[Numbers], mixture: Mixture) -> Sources:
    """Return the sources of all rows, by their numbers over all partitions, from what all workers have found.

    A source without rows, or of which an epoch has none, is a `FeedError`.
    """
    sources = np.zeros(sum(map(len, numbers)), np.uint16)
    for each, own in zip(found, numbers, strict=True):
        sources[np.sort(own)] = np.frombuffer(zlib.decompress(each), np.uint16)
    check_sources(sources, mixture)
    return sources


def check_sources(sources: Sources, mixture: Mixture) -> None:
    """Raise `FeedError` if a source has no rows, or an epoch has none of it."""
    sizes = np.bincount(sources, minlength=len(mixture.names))
    for name, size, count in zip(mixture.names, sizes, mixture.counts(len(sources)), strict=True):
        if not size:
            raise FeedError(f"source {name!r} of the mixture has no rows: leave it out")
        if not count:
            raise FeedError(
                f"source {name!r} of the mixture has no row in an epoch of {sum(mixture.counts(len(sources)))}: give "
                "it a larger share, or pass a larger epoch_rows"
            )
