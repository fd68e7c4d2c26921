"""Functions that read and write files of records as DataFrames, on any supported Spark."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import map_in_arrow, parse_schema, plainly_named, require_frame
from tensorflowonspark.declarations import shows
from tensorflowonspark.errors import RequirementError, SpecError
from tensorflowonspark.renamed import takes_old_keywords
from tensorflowonspark.storage.listing import find, partition_types
from tensorflowonspark.tfrecords.infer import (
    Seen,
    arrow_columns,
    check_written,
    chosen,
    merged,
    options_for,
    seen_in,
    spark_schema,
)
from tensorflowonspark.tfrecords.options import OLD_KEYWORDS, Options, ReadOptions
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.splits import RecordSplit, plan
from tensorflowonspark.tfrecords.writing import OutputFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ReadKeywords

_Task = list[RecordSplit]
_SAVE_MODES = ("append", "overwrite", "error", "errorifexists", "ignore")


def register_tfrecord(spark: "SparkSession") -> None:
    """Register the data source ``tfrecord`` with a session, for ``spark.read``, ``df.write`` and ``spark.readStream``.

    Parameters
    ----------
    spark : SparkSession
        A session of Spark 4.0 or newer. On Spark 3.5 use `read_tfrecord` and `write_tfrecord`.

    Raises
    ------
    RequirementError
        On Spark 3.5.

    Examples
    --------
    >>> import tempfile
    >>> register_tfrecord(spark)
    >>> path = f"{tempfile.mkdtemp()}/numbers"
    >>> spark.range(3).write.format("tfrecord").mode("append").option("compression", "gzip").save(path)
    >>> spark.read.format("tfrecord").load(path).count()
    3
    """
    try:
        from tensorflowonspark.tfrecords.source import TFRecordSource
    except ImportError as error:
        raise RequirementError(
            "Spark has data sources in Python from 4.0 on: use tfos.read_tfrecord(spark, path) and "
            f"tfos.write_tfrecord(df, path) here ({error})"
        ) from None

    class Registered(TFRecordSource):
        settings = storage.hadoop_settings(spark)  # Spark's Python workers do not have them

    spark.dataSource.register(Registered)


@takes_old_keywords(**OLD_KEYWORDS)
@shows(ReadOptions)
def read_tfrecord(
    spark: "SparkSession",
    paths: str | Sequence[str],
    schema: "str | StructType | pa.Schema | None" = None,
    columns: Sequence[str] | None = None,
    **options: "Unpack[ReadKeywords]",
) -> "DataFrame":
    """Return the records of TFRecord files as a DataFrame.

    Parameters
    ----------
    spark : SparkSession
        The session, of any supported Spark, or of Spark Connect.
    paths : str or sequence of str
        Files, directories (with partition columns, as in ``day=7``), or wildcards, on any file system.
    schema : str, StructType or pa.Schema, optional
        The columns, as in ``"id bigint, x array<float>"``; their names match in any case, as in Spark. By default they
        are inferred from the records.
    columns : sequence of str, optional
        The columns to read; others are not decoded. By default all.
    **options
        Those of `ReadOptions`.

    Returns
    -------
    DataFrame
        A row for each record. Features without a value in a record are null.

    Raises
    ------
    SpecError
        If a path, an option, a type or a name is invalid.
    TFRecordError
        When Spark computes the rows, as the cause of its error, if a record can't be read.

    Examples
    --------
    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/numbers"
    >>> write_tfrecord(spark.range(3).selectExpr("id", "array(float(id), 1f) as x"), path)
    >>> read_tfrecord(spark, path, columns=["x"]).orderBy("x").collect()
    [Row(x=[0.0, 1.0]), Row(x=[1.0, 1.0]), Row(x=[2.0, 1.0])]
    """
    storage.use(storage.hadoop_settings(spark))
    given = Options.of(options)
    files = find([paths] if isinstance(paths, str) else list(paths), given.listing)
    infer = partial(_seen_by_spark, spark, given)
    wanted = spark_schema(files, given, infer) if schema is None else parse_schema(schema, spark.range(0))
    wanted = type(wanted)([wanted[name] for name in chosen(columns, wanted.names)])
    fields = arrow_columns(wanted, given, partition_types(files, given.listing))
    tasks = plan(files, given.split_bytes)
    given = options_for(fields, files, given, inferred=schema is None)
    return _by_task(spark, tasks, lambda splits: read(splits, fields, given), wanted)


def _by_task(
    spark: "SparkSession", tasks: list[_Task], function: Callable[[_Task], Iterator[pa.RecordBatch]], schema: Any
) -> "DataFrame":
    """Return what a function yields for each task, which Spark runs where it likes."""
    settings = storage.settings()

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage.use(settings)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from function(tasks[task])

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(rows, schema)


def _seen_by_spark(spark: "SparkSession", options: Options, tasks: list[_Task]) -> dict[str, Seen]:
    """Return the features of all records by a Spark job."""

    def summary(splits: _Task) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"seen": pa.array([pickle.dumps(seen_in(splits, options))], pa.binary())})

    rows = _by_task(spark, tasks, summary, "seen binary").collect()
    return reduce(merged, (pickle.loads(row.seen) for row in rows), {})


@takes_old_keywords(
    df="data",
    recordType="record_type",
    partitionOverwriteMode="partition_overwrite_mode",
    maxRecordsPerFile="max_records_per_file",
)
def write_tfrecord(
    data: "DataFrame",
    path: str,
    mode: str = "error",
    partition_by: Sequence[str] = (),
    *,
    record_type: str | None = None,
    compression: str | None = None,
    partition_overwrite_mode: str | None = None,
    max_records_per_file: int | None = None,
) -> None:
    """Write a DataFrame as TFRecord files, one for each of its partitions.

    Parameters
    ----------
    data : DataFrame
        The rows, whose columns become features.
    path : str
        A directory, on any file system. A job that fails leaves its contents unchanged.
    mode : {"error", "errorifexists", "append", "overwrite", "ignore"}
        The treatment of an existing directory: raise an error, add the files, replace its contents, or write nothing.
    partition_by : sequence of str
        Columns whose values become directories, as in ``day=7``.
    record_type : {"Example", "SequenceExample", "ByteArray"}, optional
        The format of the records. By default ``Example``. ``SequenceExample`` writes arrays of arrays as feature lists.
        ``ByteArray`` writes the values of a single column of strings or binary.
    compression : {"none", "gzip", "zlib"}, optional
        The compression of the files. By default ``none``.
    partition_overwrite_mode : {"static", "dynamic"}, optional
        Whether ``overwrite`` with `partition_by` replaces the whole directory or only the partitions of these rows. By
        default the setting ``spark.sql.sources.partitionOverwriteMode`` of the session, else ``static``.
    max_records_per_file : int, optional
        The most records of a file. By default the setting ``spark.sql.files.maxRecordsPerFile``, else any number.

    Raises
    ------
    SpecError
        If a column can't be written, an option is invalid, or the directory exists and `mode` is ``error``.

    Examples
    --------
    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/numbers"
    >>> write_tfrecord(spark.range(4).selectExpr("id", "id % 2 as odd"), path, partition_by=["odd"], compression="gzip")
    >>> read_tfrecord(spark, f"{path}/odd=1").orderBy("id").collect()
    [Row(id=1), Row(id=3)]
    """
    require_frame(data, "data")
    if mode.lower() not in _SAVE_MODES:
        raise SpecError(f"mode={mode!r}: expected one of {', '.join(_SAVE_MODES)}")
    storage.use(settings := storage.hadoop_settings(data.sparkSession))
    given = Options.of(
        {
            "recordType": record_type,
            "compression": compression,
            "partitionBy": partition_by,
            "partitionOverwriteMode": partition_overwrite_mode,
            "maxRecordsPerFile": max_records_per_file,
        }
    )
    output = OutputFiles(path, given, overwrite=mode.lower() == "overwrite")
    check_written(data.schema, given)
    if mode.lower() in ("error", "errorifexists", "ignore") and output.exists():
        if mode.lower() == "ignore":
            return
        raise SpecError(f"there is something at {path}: give mode='overwrite' or mode='append', or another path")
    write_files(data, output, settings)


def write_files(df: "DataFrame", output: OutputFiles, settings: Mapping[str, str]) -> None:
    """Write a DataFrame, whose columns have been checked; a job that fails leaves nothing.

    The settings are those of Hadoop, for the tasks.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        storage.use(settings)
        context = TaskContext.get()
        yield pa.RecordBatch.from_pydict({"name": pa.array(output.write(batches, context.partitionId()), pa.string())})

    if output.options.partition_by:
        plain, columns = plainly_named(df)
        # Spark knows how it writes a value into the name of a directory, such as a time in the session's time zone.
        df = plain.select(
            [
                column.cast("string").alias(name) if name in output.options.partition_by else column
                for name, column in zip(df.columns, columns, strict=True)
            ]
        )
    output.begin()
    try:
        names = [row.name for row in map_in_arrow(df, write, "name string").collect()]
        output.commit(names)
    except BaseException:
        output.abort()
        raise
