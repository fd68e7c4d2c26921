"""``cluster.train(..., shuffle="global")`` on real nodes."""

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos

pytestmark = pytest.mark.masters("local")


def read(ctx):
    """Return the labels that this worker is fed, and the ids."""
    labels, ids = set(), set()
    for batch in ctx.batches(64, features=["label", "id"]):
        labels |= set(batch["label"].tolist())
        ids |= set(batch["id"].tolist())
    return labels, ids


@pytest.mark.parametrize("shuffle", [None, "global"])
def test_sorted_rows_come_to_all_workers(spark, shuffle):
    rows = spark.range(0, 400, 1, 2).select("id", (f.col("id") / 200).cast("int").alias("label"))
    with tfos.Cluster(spark, read, num_workers=2) as cluster:
        cluster.train(rows, global_shuffle=shuffle == "global", rebalance=False)
        results = cluster.join()
    labels = [labels for labels, _ in results.values()]
    assert set().union(*(ids for _, ids in results.values())) == set(range(400))
    assert all(len(each) == (2 if shuffle else 1) for each in labels)
