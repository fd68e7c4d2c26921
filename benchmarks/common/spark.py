"""Spark for the contenders: a session on two one-core workers, or in the driver, and DataFrames in its memory.

Contenders import this module with the Python of TensorFlowOnSpark 2.2.5, too: it needs pyspark alone.
"""

import os
import sys
import tempfile
from contextlib import contextmanager

from tests.support.standalone import standalone_cluster

HASH = "sha2(cast(id as string), 512)"  # 128 characters that no compression makes small
_RAMP = f"array({', '.join(f'{number % 251 / 250}F' for number in range(251 + 783))})"  # slices of it are rows
BOTH_EXECUTORS = {"spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}  # before the first job


@contextmanager
def two_one_core_workers(memory="3g", **settings):
    """Yield a session on a standalone cluster of two one-core workers, as TensorFlowOnSpark 2.x asked for.

    Parameters
    ----------
    memory : str
        Of each worker.
    **settings
        Spark's, with underscores for the dots in their names.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        standalone_cluster(scratch, [1, 1], memory) as master,
        session(master, settings) as spark,
    ):
        yield spark


def two_whole_workers(memory, **settings):
    """Yield the same, with executors that have all of the workers' memory and are up before the first job."""
    return two_one_core_workers(memory, spark_executor_memory=memory, **BOTH_EXECUTORS, **settings)


def two_slots(**settings):
    """Yield a session on ``local[2]``, whose tasks run in the driver; with settings of Spark as above."""
    return session("local[2]", settings)


@contextmanager
def session(master, settings):
    """Yield a session on a master; with settings of Spark, whose names have underscores for the dots."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


def floats(count):
    """Return SQL of ``id`` for an array of float32."""
    return f"slice({_RAMP}, cast(id * {count} % 251 + 1 as int), {count})"


def run_all(frame):
    """Compute all rows of a DataFrame and keep none."""
    frame.write.format("noop").mode("overwrite").save()


class Frames:
    """Keeps one DataFrame in Spark's memory at a time."""

    def __init__(self, spark):
        self._spark = spark
        self._made = None
        self._frame = None

    def of(self, columns, rows, partitions=8):
        """Return a DataFrame of these columns (SQL of ``id``) whose rows are all in Spark's memory."""
        if self._made != (columns, rows, partitions):
            if self._frame is not None:
                self._frame.unpersist(True)
            self._made = columns, rows, partitions
            self._frame = self._spark.range(0, rows, 1, partitions).selectExpr(*columns).cache()
            assert self._frame.count() == rows
        return self._frame
