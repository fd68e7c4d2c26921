"""Contenders: our clusters, the bare Spark job, and TensorFlowOnSpark 2.2.5 as its own documentation sets it up."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_one_core_workers, two_slots


def import_tensorflow(args, ctx):
    """Do what every program does first."""
    import tensorflow  # noqa: F401


def bare(batches):
    """Start a fresh Python that imports TensorFlow, in a Spark task."""
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, capture_output=True)
    yield from batches


def first():
    """Serve seconds from the start of a cluster, or of the bare job, to its end."""
    import tensorflowonspark as tfos

    with two_one_core_workers() as spark:

        def run_round(request):
            what = request["cluster"]
            started = time.perf_counter()
            if what == "bare":
                spark.sparkContext.parallelize(range(2), 2).mapPartitions(bare).collect()
            else:
                with tfos.Cluster(
                    spark, import_tensorflow, num_workers=2, nodes=tfos.Nodes(hold=what == "held", warm_nodes=False)
                ):
                    pass
            return time.perf_counter() - started

        serve_rounds(run_round)


def release_2x():
    """Serve seconds from the start of a cluster of TensorFlowOnSpark 2.2.5 to its end."""
    from tensorflowonspark import TFCluster

    with two_one_core_workers() as spark:

        def run_round(_request):
            started = time.perf_counter()
            mode = TFCluster.InputMode.SPARK
            cluster = TFCluster.run(
                spark.sparkContext, import_tensorflow, [], num_executors=2, num_ps=0, input_mode=mode
            )
            cluster.shutdown()
            return time.perf_counter() - started

        serve_rounds(run_round)


def make_model(args, ctx):
    """Make a model with the backend of Keras that the environment names; return the time when it was made."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return time.time()


def fork_server(scratch):
    """Return the application's fork server once it listens."""
    import psutil

    while not (found := list(Path(scratch).rglob("tfos-warm-*/socket"))):
        time.sleep(0.1)
    lock = str(found[0].with_name("server"))
    for process in psutil.process_iter(["cmdline"]):
        if "tensorflowonspark.supervisor.forkserver" in (process.info["cmdline"] or []) and any(
            os.readlink(each) == lock for each in Path(f"/proc/{process.pid}/fd").iterdir()
        ):
            return process
    raise LookupError("the fork server has ended")


def second(backend):
    """Serve seconds from the start of an application's second cluster until all its programs have a model."""
    import tensorflowonspark as tfos

    on = {"KERAS_BACKEND": backend}
    with tempfile.TemporaryDirectory() as scratch, two_slots(spark_local_dir=scratch) as spark:
        tfos.run(spark, make_model, num_workers=2, env=on)  # the first cluster
        server = fork_server(scratch)

        def run_round(request):
            if request["nodes"] == "memory":
                memory = server.memory_full_info()
                return {"resident": memory.rss >> 20, "own": memory.uss >> 20}
            started = time.time()
            nodes = tfos.Nodes(warm_nodes=request["nodes"] == "warm")
            with tfos.Cluster(spark, make_model, num_workers=2, env=on, nodes=nodes) as cluster:
                return max(cluster.join().values()) - started

        serve_rounds(run_round)


if __name__ == "__main__":
    {"first": first, "second": second, "2x": release_2x}[sys.argv[1]](*sys.argv[2:])
