"""What all contenders of tfrecord.py on Spark have in common: the rounds."""

import json
import time

from feed_rows import Frames, run_all
from rounds import contend
from tfrecord_rows import KINDS


def by_format(spark):
    """Return how to read and to write with a data source of the name ``tfrecord``."""

    def read(kind, path):
        return spark.read.format("tfrecord").schema(kind.schema).load(path)

    def write(frame, path):
        frame.write.format("tfrecord").mode("overwrite").save(path)

    return read, write


def serve(spark, read, write):
    """Serve rounds.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        What they run on.
    read : callable
        From a kind of row and a path to a DataFrame.
    write : callable
        From a DataFrame and a path that is not there yet to files.
    """
    frames = Frames(spark)

    def run_round(what):
        order = json.loads(what)
        kind, path = KINDS[order["kind"]], order["path"]
        if order["action"] == "digest":
            return list(read(kind, path).selectExpr(*kind.digest).first())
        frame = frames.of(kind.selected, order["rows"]) if order["action"] == "write" else None
        started = time.monotonic()
        if order["action"] == "write":
            write(frame, path)
        else:
            run_all(read(kind, path))
        return order["rows"] / (time.monotonic() - started)

    contend(run_round)
