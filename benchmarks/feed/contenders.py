"""Contenders: our feeds, a Spark job that counts the same batches, arrays in memory, and a program of 2.x."""

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, two_whole_workers
from benchmarks.feed.rows import KINDS, rdd_of_lists


def count_batches(batches):
    """Consume a partition's rows as a feeding task does; only count them."""
    import pyarrow as pa

    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def count(args, ctx):
    """Consume one epoch of numpy batches; return the number of rows and the time of the last one."""
    rows = 0
    for *_, weights in ctx.batches(512, shuffle=args["shuffle"], shapes=args["shapes"])():
        rows += int((weights > 0).sum())
    return rows, time.monotonic()


def pass_over(args, ctx):
    """Return the seconds of each epoch, of numpy batches or of a ``tf.data.Dataset``."""
    epoch = ctx.dataset(256).__iter__ if args["dataset"] else ctx.batches(256)
    seconds = []
    for _ in range(args["epochs"]):
        started, rows = time.monotonic(), 0
        for x, *_ in epoch():
            rows += int(x.shape[0])
        seconds.append(time.monotonic() - started)
        assert rows >= args["rows"], f"{rows} of {args['rows']} rows"
    return seconds


def train(args, ctx):
    """Return the seconds of each epoch of Keras's ``fit``."""
    dataset = ctx.dataset(256, features="features", label="label", shapes={"features": args["shape"]})
    return args["fit"](args["model"], dataset, args["epochs"])


def limit(frame, request):
    """Return the rows per second of a job that only counts."""
    started = time.monotonic()
    counted = sum(row.rows for row in frame.mapInArrow(count_batches, "rows long").collect())
    seconds = time.monotonic() - started
    assert counted == request["rows"], f"{counted} of {request['rows']} rows"
    return request["rows"] / seconds


def feed(spark, frame, request):
    """Return the rows per second from ``train`` to the last row in the program."""
    import tensorflowonspark as tfos

    args = {"shuffle": request["shuffle"], "shapes": KINDS[request["kind"]].shapes}
    with tfos.Cluster(spark, count, args, num_workers=2) as cluster:
        started = time.monotonic()
        cluster.train(frame, cache=request["cache"])
    results = cluster.join().values()
    counted = sum(rows for rows, _ in results)
    assert counted == request["rows"], f"{counted} of {request['rows']} rows"
    return request["rows"] / (max(end for _, end in results) - started)


def on_one_worker(spark, frame, program, args):
    """Return the result of a program that is the only one to be fed."""
    import tensorflowonspark as tfos

    with tfos.Cluster(spark, program, args, num_workers=1) as cluster:
        cluster.train(frame)
    return cluster.join()["worker:0"]


def ours():
    """Serve our feeds and the job that only counts."""
    import cloudpickle

    from benchmarks.feed import training

    cloudpickle.register_pickle_by_value(training)  # the nodes can't import it
    with two_whole_workers("4g") as spark:
        frames = Frames(spark)

        def run_round(request):
            frame = frames.of(KINDS[request["kind"]].columns, request["rows"])
            if request["measure"] == "limit":
                return limit(frame, request)
            if request["measure"] == "feed":
                return feed(spark, frame, request)
            if request["measure"] == "epochs":
                return on_one_worker(spark, frame, pass_over, request)
            more = {"shape": training.SHAPES[request["model"]], "fit": training.fit_seconds}
            return on_one_worker(spark, frame, train, {**request, **more})

        serve_rounds(run_round)


def in_memory():
    """Serve epochs over numpy arrays in memory, without Spark."""
    from benchmarks.feed.training import run_in_memory

    serve_rounds(run_in_memory)


def read_feed(directory, ctx):
    """Read all batches of a feed as programs of 2.x do; write the number of rows to a file."""
    from tensorflowonspark import TFNode

    data = TFNode.DataFeed(ctx.mgr)
    rows = 0
    while not data.should_stop():
        rows += len(data.next_batch(256))
    (Path(directory) / str(ctx.executor_id)).write_text(str(rows))


def feed_2x(spark, rdd, rows):
    """Return the rows per second from ``TFCluster.train`` to its return, when the programs have received all rows."""
    from tensorflowonspark import TFCluster

    with tempfile.TemporaryDirectory() as directory:
        mode = TFCluster.InputMode.SPARK
        cluster = TFCluster.run(spark.sparkContext, read_feed, directory, num_executors=2, num_ps=0, input_mode=mode)
        started = time.monotonic()
        cluster.train(rdd, 1)
        seconds = time.monotonic() - started
        cluster.shutdown()
        counted = sum(int((Path(directory) / name).read_text()) for name in os.listdir(directory))
    assert counted == rows, f"{counted} of {rows} rows"
    return rows / seconds


def program_of_2x():
    """Serve a program of 2.x, which runs with 2.2.5 and unchanged with ours."""
    with two_whole_workers("3g") as spark:
        frames, lists = Frames(spark), {}

        def run_round(request):
            kind, rows, partitions = request["kind"], request["rows"], request["partitions"]
            if kind != "rdd":
                return feed_2x(spark, frames.of(KINDS[kind].columns, rows, partitions).rdd.map(list), rows)
            if rows not in lists:
                lists[rows] = rdd_of_lists(spark, rows, partitions)
            return feed_2x(spark, lists[rows], rows)

        serve_rounds(run_round)


if __name__ == "__main__":
    {"ours": ours, "in-memory": in_memory, "2x": program_of_2x}[sys.argv[1]]()
