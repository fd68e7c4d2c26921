"""Contender of lifecycle.py: a cluster of ours, and the bare Spark job that none can beat."""

import subprocess
import sys
import time

from standalone import two_one_core_workers

from rounds import contend


def program(args, ctx):
    """Do what every program does first."""
    import tensorflow  # noqa: F401


def bare(batches):
    """Start a fresh Python that imports TensorFlow, in a Spark task."""
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, capture_output=True)
    yield from batches


def main():
    """Serve rounds."""
    import tensorflowonspark as tfos

    with two_one_core_workers() as spark:

        def run_round(what):
            started = time.perf_counter()
            if what == "bare":
                spark.sparkContext.parallelize(range(2), 2).mapPartitions(bare).collect()
            else:
                with tfos.Cluster(spark, program, num_workers=2, hold=what == "held", warm_nodes=False):
                    pass
            return time.perf_counter() - started

        contend(run_round)


if __name__ == "__main__":
    main()
