"""Clusters of drawn sizes that train one after another, each from the checkpoint of the one before: all but Spark.

``TFOS_TEST_RESIZES`` says how many draws there are.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorflowonspark.columns import PLACE_BITS, mixed_order
from tests.support.inprocess import cluster_in_process, partitions_of, run_in_process

pytestmark = [pytest.mark.usefixtures("unchecked_frames"), pytest.mark.timeout(300)]
_DRAWS = range(int(os.environ.get("TFOS_TEST_RESIZES", "4")))
EPOCHS = 2


def train(args, ctx):
    """Take steps from the newest checkpoint on, note their rows, and save; stop as a cluster that fails does."""
    import tensorflow as tf

    state = tf.train.Checkpoint(weight=tf.Variable(0.0))
    checkpoint = ctx.checkpoint(args["checkpoints"])
    first = step = checkpoint.restore(state)
    Path(args["notes"], f"restored-{ctx.index}").touch()
    while len(list(Path(args["notes"]).glob("restored-*"))) < ctx.num_workers:
        time.sleep(0.01)  # or the chief may have saved before another worker restores
    feed = ctx.read_parquet(args["files"], cache=args["cache"]) if args["files"] else ctx.feed()
    options = {"features": ["id"], "shuffle": args["seed"] is not None, "seed": args["seed"] or 0}
    ended = []
    batches = feed.batches(args["batch_size"], **options, first_step=first, on_epoch_end=ended.append)
    with Path(args["notes"], f"{ctx.index}").open("w") as file:
        while not ended or ended[-1] < EPOCHS - 1:
            for batch in batches:
                step += 1
                ids = np.asarray(batch["id"])[~np.signbit(np.asarray(batch["sample_weight"]))].tolist()
                file.write(json.dumps({"step": step, "epoch": feed._share.latest._epoch, "ids": ids}) + "\n")
                if not step % args["every"]:
                    checkpoint.save(state, step)
                if step == first + args["dies"]:
                    return first
    return first


def dealt(sizes, workers):
    """Return the partitions of a held cluster, as `dealt` (`driver/spark/partitions.py`) has Spark make them."""
    start, rows = 0, []
    for partition, size in enumerate(sizes):
        numbers = np.arange(size)
        found = np.stack([(partition << PLACE_BITS) + numbers, start + numbers, (partition + numbers) % workers])
        rows.append(found)
        start += size
    places, ids, tasks = np.concatenate(rows, axis=1)
    partitions = []
    for task in range(workers):
        place, own = places[tasks == task], ids[tasks == task]
        order = mixed_order(place)
        columns = {"id": own[order], "place": place[order], "hash": own[order] * 7919}
        table = pa.table({name: pa.array(each, pa.int64()) for name, each in columns.items()})
        partitions.append(table.to_batches(5))
    return partitions


def run(way, args, sizes, workers, mishaps):
    """Run a cluster to its end; return the step that its workers began with."""
    if way == "held":
        results = run_in_process(train, args, dealt(sizes, workers), dealt=True)
    else:
        cluster = cluster_in_process(train, args, mishaps=mishaps, num_workers=workers)
        with cluster:
            if way == "job":
                cluster.train(partitions_of(sizes))
            results = cluster.shutdown()
    (first,) = set(results.values())
    return first


@pytest.fixture(scope="module")
def imported():
    """Import TensorFlow before the nodes, which are threads of this process, have to send heartbeats."""
    __import__("tensorflow")


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("seed", _DRAWS)
def test_each_row_counts_once_in_each_epoch(tmp_path, seed):
    rng = np.random.default_rng(seed)
    way = ["job", "held", "files", "files anew"][seed % 4]
    sizes = rng.integers(0, 60, rng.integers(2, 9)).tolist()
    sizes[0] += 30
    args = {
        "checkpoints": str(tmp_path / "checkpoints"),
        "files": "",
        "cache": "memory" if way == "files" else None,
        "seed": [None, int(rng.integers(9))][rng.integers(2)],
        "every": int(rng.integers(1, 4)),
    }
    if way.startswith("files"):
        args["files"] = str(tmp_path / "rows.parquet")
        ids = pa.array(range(sum(sizes)), pa.int64())
        pq.write_table(pa.table({"id": ids}), args["files"], row_group_size=int(rng.integers(5, 50)))
    found = []
    clusters = int(rng.integers(2, 5))
    for number in range(clusters):
        notes = tmp_path / str(number)
        notes.mkdir()
        workers = int(rng.integers(2 if way == "held" else 1, 5))
        dies = int(rng.integers(1, 2 * sum(sizes) // 12)) if number < clusters - 1 else 0
        batch_size = int(rng.integers(6, 18)) if rng.integers(2) else 12
        settings = {"notes": str(notes), "dies": dies, "batch_size": batch_size}
        mishaps = {0: ["before the end", "after the end", "elsewhere"][rng.integers(3)]}
        found.append((run(way, {**args, **settings}, sizes, workers, mishaps), notes))
    counts = [Counter() for _ in range(EPOCHS)]
    for number, (first, notes) in enumerate(found):
        last = found[number + 1][0] if number + 1 < len(found) else np.inf
        for path in notes.glob("[0-9]"):
            for each in map(json.loads, path.read_text().splitlines()):
                if first < each["step"] <= last and each["epoch"] < EPOCHS:  # the next one may have begun
                    counts[each["epoch"]].update(each["ids"])
    assert counts == [Counter(range(sum(sizes)))] * EPOCHS
