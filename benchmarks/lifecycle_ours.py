"""Contender of lifecycle.py: a cluster of ours, and the bare Spark job that none can beat."""

import os
import subprocess
import sys
import tempfile
import time

from rounds import contend
from standalone import standalone_cluster


def program(args, ctx):
    """Do what every program does first."""
    import tensorflow  # noqa: F401


def bare(batches):
    """Start a fresh Python that imports TensorFlow, in a Spark task."""
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, capture_output=True)
    yield from batches


def main():
    """Serve rounds."""
    from pyspark.sql import SparkSession

    import tensorflowonspark as tfos

    with tempfile.TemporaryDirectory() as scratch, standalone_cluster(scratch, cores=[1, 1]) as master:
        spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()

        def run_round(what):
            started = time.perf_counter()
            if what == "bare":
                spark.sparkContext.parallelize(range(2), 2).mapPartitions(bare).collect()
            else:
                with tfos.Cluster(spark, program, workers=2, hold=what == "held"):
                    pass
            return time.perf_counter() - started

        contend(run_round)
        spark.stop()


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main()
