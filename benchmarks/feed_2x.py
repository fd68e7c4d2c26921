"""Contender of feed.py: a program of TensorFlowOnSpark 2.x, as its own documentation feeds rows.

It runs with 2.2.5, and unchanged with ours.
"""

import json
import os
import tempfile
import time
from pathlib import Path

from standalone import two_one_core_workers

from feed_rows import Frames, rdd_of_lists
from rounds import contend


def program(directory, ctx):
    """Take all batches; note how many rows there were."""
    from tensorflowonspark import TFNode

    feed = TFNode.DataFeed(ctx.mgr)
    rows = 0
    while not feed.should_stop():
        rows += len(feed.next_batch(256))
    (Path(directory) / str(ctx.executor_id)).write_text(str(rows))


def feed(spark, rdd, rows):
    """Return the rows per second from ``train`` to its return, when the programs have taken all."""
    from tensorflowonspark import TFCluster

    with tempfile.TemporaryDirectory() as directory:
        mode = TFCluster.InputMode.SPARK
        cluster = TFCluster.run(spark.sparkContext, program, directory, num_executors=2, num_ps=0, input_mode=mode)
        started = time.monotonic()
        cluster.train(rdd, 1)
        seconds = time.monotonic() - started
        cluster.shutdown()
        counted = sum(int((Path(directory) / name).read_text()) for name in os.listdir(directory))
    assert counted == rows, f"{counted} of {rows} rows"
    return rows / seconds


def main():
    """Serve rounds."""
    settings = {"spark_executor_memory": "3g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers(**settings) as spark:
        frames = Frames(spark)
        lists = {}

        def rdd_of(kind, rows, partitions):
            if kind != "rdd":
                return frames.get(kind, rows, partitions).rdd.map(list)
            if rows not in lists:
                lists[rows] = rdd_of_lists(spark, rows, partitions)
            return lists[rows]

        def run_round(what):
            order = json.loads(what)
            return feed(spark, rdd_of(order["kind"], order["rows"], order["partitions"]), order["rows"])

        contend(run_round)


if __name__ == "__main__":
    main()
