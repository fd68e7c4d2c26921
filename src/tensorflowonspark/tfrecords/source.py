"""``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``: Spark 4's data sources in Python."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.files import File, Split, find, plan
from tensorflowonspark.tfrecords.functions import check_columns
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.schema import arrow_columns, inferred, partition_types
from tensorflowonspark.tfrecords.writing import Output

__all__ = ["TFRecordSource"]


class TFRecordSource(DataSource):
    """Files of records, by the name ``tfrecord``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tfrecord"

    @property
    def _options(self) -> Options:
        return Options.of(dict(self.options))

    @property
    def _path(self) -> str:
        if not self.options.get("path"):
            raise SpecError('no path: spark.read.format("tfrecord").load(path), or .save(path)')
        return str(self.options["path"])

    def _files(self) -> list[File]:
        return find([self._path], self._options.recursive_file_lookup)

    def schema(self) -> StructType:
        """Return the columns that the records have."""
        return inferred(self._files(), self._options)

    def reader(self, schema: StructType) -> "_Reader":
        """Return what reads the files that are there now."""
        return _Reader(self._files(), schema, self._options)

    def streamReader(self, schema: StructType) -> "TFRecordStream":  # noqa: N802 - Spark's name
        """Return what reads files as they come."""
        from tensorflowonspark.tfrecords.stream import TFRecordStream

        return TFRecordStream(self._path, schema, self._options)

    def writer(self, schema: StructType, overwrite: bool) -> "_Writer":
        """Return what writes files."""
        check_columns(schema, self._options)
        return _Writer(Output(self._path, self._options, overwrite))


@dataclass
class SplitsPartition(InputPartition):
    """What a task reads."""

    splits: list[Split]


class _Reader(DataSourceReader):
    def __init__(self, files: Sequence[File], schema: StructType, options: Options) -> None:
        self._files = files
        self._columns = arrow_columns(schema, options, partition_types(files))
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        found = plan([file for file in self._files if file.size], self._options.split_bytes)
        return [SplitsPartition(task) for task in found] or [SplitsPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.splits, self._columns, self._options)


@dataclass
class _Written(WriterCommitMessage):
    names: list[str]


class _Writer(DataSourceArrowWriter):
    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        return _Written(self._output.write(iterator, TaskContext.get().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._output.commit(name for message in messages if message is not None for name in message.names)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._output.abort()
