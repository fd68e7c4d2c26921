"""Contender of feed.py: feeds of ours, and the Spark job that only counts the same batches."""

import json
import time

import pyarrow as pa
from standalone import two_one_core_workers

from feed_rows import KINDS, Frames
from rounds import contend


def count_batches(batches):
    """Take a partition's rows as a feeding task does, and do nothing with them."""
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def count(args, ctx):
    """Take one epoch of numpy batches; return how many rows there were, and when the last had come."""
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


def limit(frame, order):
    """Return the rows per second of a job that only counts."""
    started = time.monotonic()
    counted = sum(row.rows for row in frame.mapInArrow(count_batches, "rows long").collect())
    seconds = time.monotonic() - started
    assert counted == order["rows"], f"{counted} of {order['rows']} rows"
    return order["rows"] / seconds


def feed(spark, frame, order):
    """Return the rows per second from ``train`` to the last row in the program's hands."""
    import tensorflowonspark as tfos

    args = {"shuffle": order["shuffle"], "shapes": KINDS[order["kind"]].shapes}
    with tfos.Cluster(spark, count, args, num_workers=2) as cluster:
        started = time.monotonic()
        cluster.train(frame, cache=order["cache"])
    answers = cluster.join().values()
    counted = sum(rows for rows, _ in answers)
    assert counted == order["rows"], f"{counted} of {order['rows']} rows"
    return order["rows"] / (max(end for _, end in answers) - started)


def on_one_worker(spark, frame, program, order):
    """Return what a program returns that is fed alone."""
    import tensorflowonspark as tfos

    with tfos.Cluster(spark, program, order, num_workers=1) as cluster:
        cluster.train(frame)
    return cluster.join()["worker:0"]


def main():
    """Serve rounds."""
    import cloudpickle

    import feed_fit

    cloudpickle.register_pickle_by_value(feed_fit)
    settings = {"spark_executor_memory": "4g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers("4g", **settings) as spark:
        frames = Frames(spark)

        def run_round(what):
            order = json.loads(what)
            frame = frames.get(order["kind"], order["rows"])
            if order["do"] == "limit":
                return limit(frame, order)
            if order["do"] == "feed":
                return feed(spark, frame, order)
            if order["do"] == "epochs":
                return on_one_worker(spark, frame, pass_over, order)
            more = {"shape": feed_fit.SHAPES[order["model"]], "fit": feed_fit.fit_seconds}
            return on_one_worker(spark, frame, train, {**order, **more})

        contend(run_round)


if __name__ == "__main__":
    main()
