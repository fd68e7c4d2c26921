"""Clusters under dynamic allocation: executors come for them, stay with them, and go after them."""

import pytest

from tests.support.commands import run_python

_PROGRAM = """
import time
from pyspark.sql import SparkSession
import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.resources import count_slots

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.executor.memory", "512m")
    .config("spark.dynamicAllocation.enabled", "true")
    .config("spark.dynamicAllocation.shuffleTracking.enabled", "true")
    .config("spark.dynamicAllocation.minExecutors", "0")
    .config("spark.dynamicAllocation.maxExecutors", "2")
    .config("spark.dynamicAllocation.executorIdleTimeout", "5s")
    .getOrCreate()
)


def setting():
    return spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled")


def rows(ctx):
    return [sum(len(batch["id"]) for batch in feed.batches(10)) for feed in ctx.feeds()]


print("before", count_slots(spark.sparkContext))
with tfos.Cluster(spark, rows, num_workers=2) as cluster:
    print("up", setting())
    time.sleep(8)
    cluster.train(spark.range(100))
    print("fed", sum(map(sum, cluster.join().values())), len(cluster.join()))
end = time.monotonic() + 60
while count_slots(spark.sparkContext) and time.monotonic() < end:
    time.sleep(0.1)
print("after", count_slots(spark.sparkContext), setting())
print("held", tfos.run(spark, lambda ctx: len(list(ctx.batches(10))), num_workers=2, data=spark.range(100)))
try:
    tfos.run(spark, rows, num_workers=3)
except tfos.SlotsError as error:
    print("refused", error)
print("ordinary", spark.range(100).count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_requests_executors_keeps_them_and_gives_them_back():
    output = run_python(_PROGRAM, seconds=200)
    found = {line.partition(" ")[0]: line.partition(" ")[2] for line in output.splitlines()}
    assert found["before"] == "0"
    assert found["up"] == "true"
    assert found["fed"] == "100 2"  # 8 s after the start, and Spark removes idle executors after 5
    assert found["after"] == "0 true"
    assert found["held"] == "{'worker:0': 10, 'worker:1': 10}"
    assert "needs 3 task slots" in found["refused"]
    assert "at most 2: spark.dynamicAllocation.maxExecutors" in found["refused"]
    assert found["ordinary"] == "100"
