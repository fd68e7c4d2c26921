"""TFRecord files that a node reads in each epoch (``ctx.read_tfrecord(cache=None)``), beside TensorFlow alone.

``python -m benchmarks.tfrecord.uncached [kind] [rows] [rounds]`` writes files to ``/dev/shm`` and prints, for the
contenders in turn, rows per second of an epoch on one core, in batches of 2,048: the node's first epoch, which counts
the rows, and its second one, in NumPy arrays and shuffled. Then, of a fresh process that may hold 128 MB of rows, how
much memory it takes for an epoch of all of them, beyond what it has when the files are listed.
"""

import os
import resource
import shutil
import sys
import tempfile
import time
from statistics import median

from benchmarks.common.rounds import Contender, serve_rounds, take_turns
from benchmarks.tfrecord.node import schema_of
from benchmarks.tfrecord.rows import KINDS
from tensorflowonspark.columns import flat_columns, summarize
from tensorflowonspark.feed_messages import FileFeed, SplitManifest
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
from tensorflowonspark.node.feed.uncounted import UncountedRows

_BATCH = 2048
_FILES = 16
_MEGABYTE = 1 << 20


def read_alone(kind, path, limit_bytes):
    """Return a node's feed of all files, without a cluster."""
    splits, _ = tfrecord_splits([path], schema_of(kind), None, {})
    first = flat_columns(next(splits[0].batches()))
    manifest = SplitManifest({0: 0}, columns=summarize(first, 0, 0), schema=first.schema.serialize().to_pybytes())
    row_bytes = first.nbytes / first.num_rows
    rows = UncountedRows(splits, manifest, row_bytes, limit_bytes).alone(FileFeed(0), 0)
    return Feed(Share(manifest, rows, [0], 0, lambda _: None)), row_bytes


def serve():
    """Serve rounds, each of which takes two epochs; or, with a limit, one."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

    def run_round(request):
        kind = KINDS[request["kind"]]
        feed, row_bytes = read_alone(kind, request["path"], request["limit"])
        before, speeds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
        batches = feed.batches(_BATCH, features=[column.name for column in kind.columns], seed=1)
        for _ in range(request["epochs"]):
            started = time.monotonic()
            found = sum(len(batch["sample_weight"]) for batch in batches)
            assert found == request["rows"]
            speeds.append(found / (time.monotonic() - started))
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        return {"speeds": speeds, "peak": peak, "size": row_bytes * request["rows"]}

    serve_rounds(run_round)


def main(kind="narrow", rows="1000000", rounds="3"):
    """Write files, run the rounds, and print the medians."""
    path = tempfile.mkdtemp(prefix="tfos-uncached-", dir="/dev/shm")
    request = {"kind": kind, "path": f"{path}/rows", "rows": int(rows)}
    node = ["-m", "benchmarks.tfrecord.uncached", "serve"]
    try:
        with Contender(["-m", "benchmarks.tfrecord.tensorflow_alone", "1"], sys.stderr) as alone:
            alone.round({**request, "action": "write", "files": _FILES})
            with Contender(node, sys.stderr) as ours:
                turns = {
                    "TensorFlow alone": alone.turn(**request, action="read"),
                    "node": ours.turn(**request, limit=512 * _MEGABYTE, epochs=2),
                }
                found = take_turns(turns, int(rounds), "epoch", shown=str)
        with Contender(node, sys.stderr) as fresh:
            memory = fresh.round({**request, "limit": 128 * _MEGABYTE, "epochs": 1})
    finally:
        shutil.rmtree(path, ignore_errors=True)
    speed = median(found["TensorFlow alone"])
    print(f"TensorFlow alone: {speed:,.0f} rows/s ({min(found['TensorFlow alone']):,.0f} at least)")
    for number, epoch in enumerate(("first", "second")):
        speeds = [each["speeds"][number] for each in found["node"]]
        ratio = median(speeds) / speed
        print(f"{epoch} epoch: {median(speeds):,.0f} rows/s ({min(speeds):,.0f} to {max(speeds):,.0f}), {ratio:.2f}")
    print(
        f"rows of {memory['size'] / _MEGABYTE:,.0f} MB, limit 128 MB: {memory['peak'] / _MEGABYTE:,.0f} MB more memory"
    )


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main(*sys.argv[1:])
