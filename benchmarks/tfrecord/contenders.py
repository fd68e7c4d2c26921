"""Contenders on Spark: our data source, LinkedIn's spark-tfrecord, and ``dfutil`` of TensorFlowOnSpark 2.x.

Another one is the limit of all readers in Python: Spark's own way from Arrow batches to its rows, with the same batch
again and again.
"""

import sys
import time
from pathlib import Path

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, run_all, two_whole_workers
from benchmarks.tfrecord.rows import KINDS

_TASKS = 16


def serve(spark, read, write):
    """Serve rows per second, and digests.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session of this contender.
    read : callable
        From a kind of row and a path to a DataFrame.
    write : callable
        Writes a DataFrame to a path that does not exist yet.
    """
    frames = Frames(spark)

    def run_round(request):
        kind, path = KINDS[request["kind"]], request["path"]
        if request["action"] == "digest":
            return list(read(kind, path).selectExpr(*kind.digest).first())
        frame = frames.of(kind.selected, request["rows"]) if request["action"] == "write" else None
        started = time.monotonic()
        if request["action"] == "write":
            write(frame, path)
        else:
            run_all(read(kind, path))
        return request["rows"] / (time.monotonic() - started)

    serve_rounds(run_round)


def serve_format(spark):
    """Serve a data source with the name ``tfrecord``."""

    def read(kind, path):
        return spark.read.format("tfrecord").schema(kind.schema).load(path)

    def write(frame, path):
        frame.write.format("tfrecord").mode("overwrite").save(path)

    serve(spark, read, write)


def ours():
    """Serve our data source."""
    import tensorflowonspark as tfos

    with two_whole_workers("3g") as spark:
        tfos.register_tfrecord(spark)
        serve_format(spark)


def limit():
    """Serve a function that gives Spark the first batch of the files again and again, up to their number of rows."""
    from benchmarks.tfrecord.node import schema_of

    with two_whole_workers("3g") as spark:

        def run_round(request):
            kind, rows = KINDS[request["kind"]], request["rows"]
            schema = schema_of(kind)
            first = min(Path(request["path"]).glob("part-*"))

            def same(received):
                from tensorflowonspark.storage.listing import File
                from tensorflowonspark.tfrecords.options import Options
                from tensorflowonspark.tfrecords.reading import read
                from tensorflowonspark.tfrecords.splits import RecordSplit

                for _ in received:  # else Spark starts a new worker for each task
                    pass
                size = first.stat().st_size
                batch = next(read([RecordSplit(File(str(first), size, 0.0), 0, size)], list(schema), Options()))
                left = rows // _TASKS
                while left > 0:
                    yield batch.slice(0, left)
                    left -= batch.num_rows

            started = time.monotonic()
            run_all(spark.range(0, _TASKS, 1, _TASKS).mapInArrow(same, kind.schema))
            return rows / (time.monotonic() - started)

        serve_rounds(run_round)


def spark_tfrecord(jar):
    """Serve spark-tfrecord, with a task for each file: several files in a task would make tasks of unequal size."""
    with two_whole_workers("3g", spark_jars=jar, spark_sql_files_maxPartitionBytes="1m") as spark:
        serve_format(spark)


def dfutil_of_2x(jar=None):
    """Serve ``dfutil``, as programs of 2.x call it: with ours unchanged, and with 2.2.5, which needs a jar."""
    from tensorflowonspark import dfutil

    with two_whole_workers("3g", **({"spark_jars": jar} if jar else {})) as spark:

        def read(kind, path):
            binary = [column.name for column in kind.columns if column.type == "binary"]
            return dfutil.loadTFRecords(spark.sparkContext, path, binary)

        serve(spark, read, dfutil.saveAsTFRecords)


if __name__ == "__main__":
    {"ours": ours, "limit": limit, "spark-tfrecord": spark_tfrecord, "2x": dfutil_of_2x}[sys.argv[1]](*sys.argv[2:])
