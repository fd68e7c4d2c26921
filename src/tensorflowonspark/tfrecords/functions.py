"""Files of records as DataFrames, on any supported Spark: plain functions."""

import pickle
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import map_in_arrow, require_frame
from tensorflowonspark.errors import EnvironmentNotReady, SpecError
from tensorflowonspark.tfrecords.files import Split, find, plan
from tensorflowonspark.tfrecords.infer import (
    Seen,
    arrow_columns,
    check_written,
    chosen,
    merged,
    partition_types,
    seen_in,
    spark_schema,
)
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.writing import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["read_tfrecord", "register_tfrecord", "write_tfrecord"]

_SAVE_MODES = ("append", "overwrite", "error", "errorifexists", "ignore")


def register_tfrecord(spark: "SparkSession") -> None:
    """Let a session know ``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``.

    Parameters
    ----------
    spark : SparkSession
        Of Spark 4.0 or newer; before that there are `read_tfrecord` and `write_tfrecord`.

    Raises
    ------
    EnvironmentNotReady
        On an older Spark.
    """
    try:
        from tensorflowonspark.tfrecords.source import TFRecordSource
    except ImportError as error:
        raise EnvironmentNotReady(
            "Spark has data sources in Python from 4.0 on: use tfos.read_tfrecord(spark, path) and "
            f"tfos.write_tfrecord(df, path) here ({error})"
        ) from None

    class Registered(TFRecordSource):
        settings = storage.hadoop_settings(spark)  # Spark's Python workers do not know them

    spark.dataSource.register(Registered)


def read_tfrecord(
    spark: "SparkSession",
    paths: str | Sequence[str],
    schema: "str | StructType | None" = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> "DataFrame":
    """Return the records of files as a DataFrame.

    Parameters
    ----------
    spark : SparkSession
        The session; Spark 3.5 will do, and Spark Connect.
    paths : str or sequence of str
        Files, directories (with partition columns, as in ``day=7``), or wildcards, on any file system.
    schema : str or StructType, optional
        The columns. By default they are inferred from the records.
    columns : sequence of str, optional
        Those that are wanted: others are not even decoded.
    **options
        See `Options`.

    Raises
    ------
    SpecError
        If a path, an option, a type or a name can't be right.
    """
    given = Options.of(options)
    storage.use(settings := storage.hadoop_settings(spark))
    files = find([paths] if isinstance(paths, str) else list(paths), given.recursive_file_lookup)
    wanted = spark_schema(files, given, partial(_look, spark, given)) if schema is None else _schema(spark, schema)
    wanted = type(wanted)([wanted[name] for name in chosen(columns, wanted.names)])
    fields = arrow_columns(wanted, given, partition_types(files))
    tasks = plan(files, given.split_bytes)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage.use(settings)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from read(tasks[task], fields, given)

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(rows, wanted)


def _schema(spark: "SparkSession", schema: "str | StructType") -> "StructType":
    from tensorflowonspark.columns import parse_schema

    return parse_schema(schema, spark.range(0))


def _look(spark: "SparkSession", options: Options, tasks: list[list[Split]]) -> dict[str, Seen]:
    """Return what the features of all records are, by a job of Spark's."""
    settings = storage.settings()

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage.use(settings)
        for batch in batches:
            found = [pickle.dumps(seen_in(tasks[task], options)) for task in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"seen": pa.array(found, pa.binary())})

    seen: dict[str, Seen] = {}
    for row in spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(look, "seen binary").collect():
        seen = merged(seen, pickle.loads(row.seen))
    return seen


def write_tfrecord(
    df: "DataFrame", path: str, mode: str = "error", partition_by: Sequence[str] = (), **options: Any
) -> None:
    """Write a DataFrame as files of records, one for each of its partitions.

    Parameters
    ----------
    df : DataFrame
        Its columns become features.
    path : str
        A directory, on any file system. A job that fails leaves it as it was.
    mode : str
        What happens if something is there: ``append``, ``overwrite``, ``error`` or ``ignore``.
    partition_by : sequence of str
        Columns whose values become directories, as in ``day=7``.
    **options
        See `Options`.

    Raises
    ------
    SpecError
        If a column or an option can't be written, or something is there and `mode` is ``error``.
    """
    require_frame(df, "df")
    if mode.lower() not in _SAVE_MODES:
        raise SpecError(f"mode={mode!r}: expected one of {', '.join(_SAVE_MODES)}")
    given = Options.of({**options, **({"partitionBy": partition_by} if partition_by else {})})
    storage.use(settings := storage.hadoop_settings(df.sparkSession))
    output = Output(path, given, overwrite=mode.lower() == "overwrite")
    check_written(df.schema, given)
    if mode.lower() in ("error", "errorifexists", "ignore") and output.exists():
        if mode.lower() == "ignore":
            return
        raise SpecError(f"there is something at {path}: give mode='overwrite' or mode='append', or another path")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        storage.use(settings)
        context = TaskContext.get()
        yield pa.RecordBatch.from_pydict({"name": pa.array(output.write(batches, context.partitionId()), pa.string())})

    output.begin()
    try:
        names = [row.name for row in map_in_arrow(df, write, "name string").collect()]
        output.commit(names)
    except BaseException:
        output.abort()
        raise
