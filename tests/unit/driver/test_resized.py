"""Clusters of drawn sizes that train one after another, each from the checkpoint of the one before: all but Spark.

``TFOS_TEST_RESIZES`` says how many draws there are.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorflowonspark.columns import mixed_order, places_of
from tests.support.inprocess import cluster_in_process, partitions_of, run_in_process
from tests.support.resumed_cluster import PROGRAM, counted, train

pytestmark = [pytest.mark.usefixtures("unchecked_frames"), pytest.mark.timeout(300)]
_DRAWS = range(int(os.environ.get("TFOS_TEST_RESIZES", "4")))


def dealt(sizes, workers):
    """Return the partitions of a held cluster, as `round_robin` (`driver/spark/repartition.py`) has Spark make them."""
    start, rows = 0, []
    for partition, size in enumerate(sizes):
        numbers = np.arange(size)
        found = np.stack([places_of(partition, numbers), start + numbers, (partition + numbers) % workers])
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
    """Run a cluster to its end."""
    if way == "held":
        run_in_process(train, args, dealt(sizes, workers), round_robin=True)
    else:
        cluster = cluster_in_process(train, args, mishaps=mishaps, num_workers=workers)
        with cluster:
            if way == "job":
                cluster.train(partitions_of(sizes))
            cluster.shutdown()


@pytest.fixture(scope="module")
def imported():
    """Import TensorFlow before the nodes, which are threads of this process, have to send heartbeats."""
    __import__("tensorflow")


@pytest.mark.deep
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("seed", _DRAWS)
def test_each_row_counts_once_in_each_epoch(tmp_path, seed):
    rng = np.random.default_rng(seed)
    way = ["job", "held", "files", "files anew"][seed % 4]
    sizes = rng.integers(0, 60, rng.integers(2, 9)).tolist()
    sizes[0] += 30
    args = {
        **PROGRAM,
        "directory": str(tmp_path),
        "cache": "memory" if way == "files" else None,
        "seed": [None, int(rng.integers(9))][rng.integers(2)],
        "every": int(rng.integers(1, 4)),
    }
    if way.startswith("files"):
        args |= {"read": "parquet", "files": str(tmp_path / "rows.parquet")}
        ids = pa.array(range(sum(sizes)), pa.int64())
        pq.write_table(pa.table({"id": ids}), args["files"], row_group_size=int(rng.integers(5, 50)))
    clusters = int(rng.integers(2, 5))
    for number in range(clusters):
        workers = int(rng.integers(2 if way == "held" else 1, 5))
        takes = int(rng.integers(1, 2 * sum(sizes) // 12)) if number < clusters - 1 else None
        batch_size = int(rng.integers(6, 18)) if rng.integers(2) else 12
        settings = {"cluster": number, "takes": takes, "batch_size": batch_size}
        mishaps = {0: ["before the end", "after the end", "elsewhere"][rng.integers(3)]}
        run(way, {**args, **settings}, sizes, workers, mishaps)
    assert not counted(tmp_path, args["epochs"]).differences(range(sum(sizes)))
