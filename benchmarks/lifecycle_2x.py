"""Contender of lifecycle.py: TensorFlowOnSpark 2.2.5, as its own documentation sets it up."""

import time

from standalone import two_one_core_workers

from rounds import contend


def program(args, ctx):
    """Do what every program does first."""
    import tensorflow  # noqa: F401


def main():
    """Serve rounds."""
    from tensorflowonspark import TFCluster

    with two_one_core_workers() as spark:

        def run_round(_what):
            started = time.perf_counter()
            cluster = TFCluster.run(
                spark.sparkContext, program, [], num_executors=2, num_ps=0, input_mode=TFCluster.InputMode.SPARK
            )
            cluster.shutdown()
            return time.perf_counter() - started

        contend(run_round)


if __name__ == "__main__":
    main()
