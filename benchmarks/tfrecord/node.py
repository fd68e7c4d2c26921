"""Contender: the reader of a node, as in ``ctx.read_tfrecord(cache="memory")``, on the cores in its argument."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from benchmarks.common.rounds import serve_rounds
from benchmarks.tfrecord.rows import KINDS
from benchmarks.tfrecord.tensorflow_alone import digest
from tensorflowonspark.feed_messages import CacheConfig, CacheMode, PartHeader, PartId, Split
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits

_READERS = 4  # as in the node
_TYPES = {
    "float": pa.float32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<float>": pa.list_(pa.float32()),
}


def schema_of(kind):
    """Return the Arrow columns of a kind of row."""
    return pa.schema([(column.name, _TYPES[column.type]) for column in kind.columns])


def store(cache, feed, kind, path):
    """Read all splits into the cache; return the number of each."""
    splits, schema = tfrecord_splits([path], schema_of(kind), None, {})
    config = CacheConfig(CacheMode.MEMORY)
    with ThreadPoolExecutor(_READERS) as readers:
        parts = range(len(splits))
        headers = [PartHeader(feed, Split.TRAIN, PartId(number), 0, config) for number in parts]
        jobs = [
            readers.submit(cache.store, headers[each], schema, splits[each].batches(), report=False) for each in parts
        ]
        rows = sum(job.result().rows for job in jobs)
    return rows, parts


def arrays_of(batch):
    """Return the columns of a batch as NumPy arrays."""
    arrays = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        lists = pa.types.is_list(column.type)
        values = column.flatten() if lists else column
        if pa.types.is_string(values.type):
            values = values.cast(pa.binary())
        arrays[name] = values.to_numpy(zero_copy_only=False).reshape((len(batch), -1) if lists else len(batch))
    return arrays


def main():
    """Serve rounds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
    cache = Cache("/nowhere", 0, lambda _: None)
    feeds = iter(range(1, 1 << 30))

    def run_round(request):
        kind, feed = KINDS[request["kind"]], next(feeds)
        started = time.monotonic()
        rows, parts = store(cache, feed, kind, request["path"])
        seconds = time.monotonic() - started
        if request["action"] == "digest":
            shard = cache.shard(feed, Split.TRAIN, [(PartId(number), 0) for number in parts])
            found = digest(kind, map(arrays_of, shard.batches))
            cache.drop(feed)
            return found
        cache.drop(feed)
        assert rows == request["rows"]
        return rows / seconds

    serve_rounds(run_round)


if __name__ == "__main__":
    main()
