"""Contenders: rows that Spark's tasks send to two nodes, beside Spark's job that takes the same rows into Python.

The DataFrames are in Spark's memory, but those of the part ``rows``, which Spark computes from their numbers.
"""

import os
import sys
import threading
import time
from contextlib import contextmanager

import cloudpickle

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, two_whole_workers
from benchmarks.feed import memory
from benchmarks.feed.memory import anonymous_bytes
from benchmarks.feed.rows import number_columns
from benchmarks.feed_start.contenders import counted

_LABEL = "cast(id % 10 as int) as label"
_PARTITIONS = 8
_ROWS_OF_PARTITIONS, _ROWS_OF_COLUMNS = 40_000, 4_000
_BATCH, _LARGE_BATCH = 512, 1 << 17  # rows of both nodes together
_LOOK_SECONDS = 0.02


def take(args, ctx):
    """Pass over one feed, shuffled; return its rows, the time of the last one, and the most memory meanwhile."""
    ended, most = threading.Event(), [0]

    def look():
        while not ended.wait(_LOOK_SECONDS):
            most[0] = max(most[0], anonymous_bytes(os.getpid()))

    watching = threading.Thread(target=look)
    watching.start()
    rows = sum(int((weights > 0).sum()) for *_, weights in ctx.batches(args))
    last = time.monotonic()
    ended.set()
    watching.join()
    return rows, last, most[0]


def feed(spark, frame, rows, batch=_BATCH):
    """Return the seconds from ``train`` to the last row in a program, and the most memory of a node in MB."""
    import tensorflowonspark as tfos

    with tfos.Cluster(spark, take, batch, num_workers=2) as cluster:
        started = time.monotonic()
        cluster.train(frame)
        results = cluster.join().values()
    assert sum(each for each, _, _ in results) == rows, f"{results} of {rows} rows"
    return {"ours": max(end for _, end, _ in results) - started, "memory": max(most for _, _, most in results) / 1e6}


def count(frame, rows):
    """Return the seconds of Spark's job."""
    started = time.monotonic()
    assert counted(frame) == rows
    return {"spark": time.monotonic() - started}


class Turns:
    """Calls two functions, in another order each time, and returns both results as one."""

    def __init__(self):
        self._calls = 0

    def __call__(self, first, second):
        """Call both."""
        self._calls += 1
        return {**first(), **second()} if self._calls % 2 else {**second(), **first()}


@contextmanager
def partitions(spark):
    """Yield a function that feeds the same rows in a number of partitions."""
    frames, both = Frames(spark), Turns()

    def run_round(request):
        frame = frames.of([*number_columns(4, "float"), _LABEL], _ROWS_OF_PARTITIONS, request["size"])
        return both(lambda: feed(spark, frame, _ROWS_OF_PARTITIONS), lambda: count(frame, _ROWS_OF_PARTITIONS))

    yield run_round


@contextmanager
def columns(spark):
    """Yield a function that feeds the same number of rows with a number of columns."""
    frames, both = Frames(spark), Turns()

    def run_round(request):
        frame = frames.of([*number_columns(request["size"], "float"), _LABEL], _ROWS_OF_COLUMNS, _PARTITIONS)
        return both(lambda: feed(spark, frame, _ROWS_OF_COLUMNS), lambda: count(frame, _ROWS_OF_COLUMNS))

    yield run_round


@contextmanager
def rows(spark):
    """Yield a function that feeds a number of rows, of one float32 and a label of one byte."""
    both = Turns()

    def run_round(request):
        size = request["size"]
        frame = spark.range(0, size, 1, _PARTITIONS)
        frame = frame.selectExpr("cast(id % 1009 as float) as x", "cast(id % 10 as tinyint) as label")
        return both(lambda: feed(spark, frame, size, _LARGE_BATCH), lambda: count(frame, size))

    yield run_round


def serve(_, ctx):
    """Answer with the sum of all columns of a row."""
    ctx.serve(lambda values: sum(values.values()))


@contextmanager
def inference(spark):
    """Yield a function that sends the same number of rows with a number of columns through a cluster."""
    import tensorflowonspark as tfos

    frames, both = Frames(spark), Turns()
    with tfos.Cluster(spark, serve, num_workers=2) as cluster:

        def infer(frame):
            started = time.monotonic()
            found = cluster.inference(frame, "total double", keep=[]).collect()
            seconds = time.monotonic() - started
            assert len(found) == _ROWS_OF_COLUMNS
            return {"ours": seconds}

        def run_round(request):
            frame = frames.of(number_columns(request["size"], "float"), _ROWS_OF_COLUMNS, _PARTITIONS)
            return both(lambda: infer(frame), lambda: count(frame, _ROWS_OF_COLUMNS))

        yield run_round


def main():
    """Serve the rounds of one part."""
    part = {each.__name__: each for each in (partitions, columns, rows, inference)}[sys.argv[1]]
    cloudpickle.register_pickle_by_value(memory)  # the nodes can't import it
    with two_whole_workers("4g") as spark, part(spark) as run_round:
        serve_rounds(run_round)


if __name__ == "__main__":
    main()
