import pytest

from tests.support.commands import run_python

_PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

spark = (
    SparkSession.builder.master("local-cluster[1,2,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.worker.resource.gpu.amount", "2")
    .config("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
    .config("spark.executor.resource.gpu.amount", "2")
    .config("spark.task.resource.gpu.amount", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
print("visible", sorted(tfos.run(spark, lambda args, ctx: os.environ["CUDA_VISIBLE_DEVICES"], num_workers=2).values()))
"""


_PROGRAM_FOR_OUR_STAGE = """
import os, sys
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

spark = (
    SparkSession.builder.master("local-cluster[1,4,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.worker.resource.gpu.amount", "2")
    .config("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
    .config("spark.executor.resource.gpu.amount", "2")
    .getOrCreate()
)


def gpus(ctx):
    return ctx.gpus, os.environ["CUDA_VISIBLE_DEVICES"]


def fed(ctx):
    return ctx.gpus, sum(len(batch["id"]) for batch in ctx.batches(10))


def four_at_once(batches):
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
    return batches


print("one each:", sorted(tfos.run(spark, gpus, num_workers=2, gpus_per_node=1).values()))
print("two:", tfos.run(spark, gpus, gpus_per_node=2))
print("held and fed:", sorted(tfos.run(spark, fed, num_workers=2, gpus_per_node=1, data=spark.range(100)).values()))
with tfos.Cluster(spark, fed, num_workers=2, gpus_per_node=1) as cluster:
    cluster.train(spark.range(100, numPartitions=4))
    print("fed:", sorted(gpus for gpus, _ in cluster.join().values()), sum(rows for _, rows in cluster.join().values()))
    tasks = spark.range(0, 4, 1, 4).mapInArrow(four_at_once, "id long", barrier=True)
    print("ordinary tasks at once:", tasks.count())
for count, nodes in ((3, 1), (1, 3)):
    try:
        tfos.run(spark, gpus, num_workers=nodes, gpus_per_node=count)
    except tfos.ClusterError as error:
        print(type(error).__name__, error)
spark.stop()
"""


def _discovery_script(directory):
    script = directory / "discover.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["4", "7"]}'\n""")
    script.chmod(0o755)
    return script


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_gpus_for_our_stage_alone(tmp_path):
    """An executor with four slots and two GPUs, which a discovery script invents."""
    lines = run_python(_PROGRAM_FOR_OUR_STAGE, _discovery_script(tmp_path), seconds=200).splitlines()
    assert lines[-7:-2] == [
        "one each: [(('4',), '4'), (('7',), '7')]",
        "two: {'worker:0': (('4', '7'), '4,7')}",
        "held and fed: [(('4',), 50), (('7',), 50)]",
        "fed: [('4',), ('7',)] 100",
        "ordinary tasks at once: 4",
    ]
    assert "SpecError gpus_per_node=3: each executor of this application has 2 GPUs; set spark.executor" in lines[-2]
    assert "SlotsError the cluster needs 3 task slots at the same time, and the Spark application has 2" in lines[-1]
    assert "was asked for 1 executors of 4 cores with 2 GPUs" in lines[-1]


@pytest.mark.slow
def test_sparks_resource_api_end_to_end(tmp_path):
    """Two nodes in one executor with two GPUs, which a discovery script invents: one each."""
    assert "visible ['4', '7']" in run_python(_PROGRAM, _discovery_script(tmp_path), seconds=200)
