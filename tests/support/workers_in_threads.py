"""Feeds of several workers in one process: each has a partition of its own in a cache, and a thread."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

from tensorflowonspark.driver.sharing.manifest import build_manifests
from tensorflowonspark.feed_messages import PartHeader, PartId, Split
from tensorflowonspark.messages import NodeEndpoint, NodeReady
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.share import Share


class Together:
    """What workers combine, each in a thread of its own."""

    def __init__(self, workers):
        self._barrier = Barrier(workers)
        self._values = [None] * workers

    def of(self, worker) -> Callable[[str], Callable]:
        def agree(value, merge):
            self._values[worker] = value
            self._barrier.wait(30)
            return merge(self._values)

        return lambda _call: agree


def feeds_of(directory, *batches, **manifest):
    """Return a feed for each worker, each with a partition of its own, or with those of a dict by their numbers."""
    numbers, together = range(len(batches)), Together(len(batches))
    caches = [Cache(str(directory), number, lambda message: None) for number in numbers]
    parts = [
        cache.store(PartHeader(0, Split.TRAIN, PartId(partition), 1), batch.schema, iter([batch]))
        for number, (cache, own) in enumerate(zip(caches, batches, strict=True))
        for partition, batch in (own if isinstance(own, dict) else {number: own}).items()
    ]
    nodes = [NodeEndpoint(number, f"worker:{number}", "here", NodeReady("socket", 1)) for number in numbers]
    manifests = build_manifests(parts, nodes, taker=None)

    def share(number):
        described = replace(manifests[number], **manifest)
        shard = caches[number].shard(0, Split.TRAIN, described.parts)
        return Share(described, shard, list(numbers), number, lambda _: None, combine=together.of(number))

    return [Feed(share(number)) for number in numbers]


def on_all(feeds, function):
    with ThreadPoolExecutor(len(feeds)) as workers:
        return list(workers.map(function, feeds))
