"""Contender of lifecycle.py: TensorFlowOnSpark 2.2.5, as its own documentation sets it up."""

import os
import sys
import tempfile
import time

from rounds import contend
from standalone import standalone_cluster


def program(args, ctx):
    """Do what every program does first."""
    import tensorflow  # noqa: F401


def main():
    """Serve rounds."""
    from pyspark.sql import SparkSession

    from tensorflowonspark import TFCluster

    with tempfile.TemporaryDirectory() as scratch, standalone_cluster(scratch, cores=[1, 1]) as master:
        spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()

        def run_round(_what):
            started = time.perf_counter()
            cluster = TFCluster.run(
                spark.sparkContext, program, [], num_executors=2, num_ps=0, input_mode=TFCluster.InputMode.SPARK
            )
            cluster.shutdown()
            return time.perf_counter() - started

        contend(run_round)
        spark.stop()


if __name__ == "__main__":
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main()
