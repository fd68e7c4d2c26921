"""``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``: Spark 4's data sources in Python."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.files import File, Split, find, plan
from tensorflowonspark.tfrecords.functions import check_written, spark_schema
from tensorflowonspark.tfrecords.infer import partition_types
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.schema import arrow_columns
from tensorflowonspark.tfrecords.writing import Output

if TYPE_CHECKING:
    from tensorflowonspark.tfrecords.stream import TFRecordStream

__all__ = ["SplitsPartition", "TFRecordSource", "Travelling"]


class Travelling:
    """Takes the settings of file systems along to wherever Spark sends it: its Python workers do not know them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_settings": storage.settings()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        storage.use(state.pop("_settings"))
        self.__dict__.update(state)


class TFRecordSource(Travelling, DataSource):
    """Files of records, by the name ``tfrecord``.

    Attributes
    ----------
    settings : mapping
        Hadoop's, of the session that knows this source.
    """

    settings: Mapping[str, str] = {}

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        storage.use(self.settings)

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
        return spark_schema(self._files(), self._options)

    def reader(self, schema: StructType) -> "_Reader":
        """Return what reads the files that are there now."""
        return _Reader(self._files(), schema, self._options)

    def streamReader(self, schema: StructType) -> "TFRecordStream":  # noqa: N802 - Spark's name
        """Return what reads files as they come."""
        from tensorflowonspark.tfrecords.stream import TFRecordStream

        return TFRecordStream(self._path, schema, self._options)

    def writer(self, schema: StructType, overwrite: bool) -> "_Writer":
        """Return what writes files."""
        check_written(schema, self._options)
        output = Output(self._path, self._options, overwrite)
        output.begin()
        return _Writer(output)


@dataclass
class SplitsPartition(InputPartition):
    """What a task reads."""

    splits: list[Split]


class _Reader(Travelling, DataSourceReader):
    def __init__(self, files: Sequence[File], schema: StructType, options: Options) -> None:
        self._files = files
        self._columns = arrow_columns(schema, options, partition_types(files))
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        found = plan(self._files, self._options.split_bytes)
        return [SplitsPartition(task) for task in found] or [SplitsPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.splits, self._columns, self._options)


@dataclass
class _Written(WriterCommitMessage):
    names: list[str]


class _Writer(Travelling, DataSourceArrowWriter):
    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        return _Written(self._output.write(iterator, TaskContext.get().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._output.commit(name for message in messages if message is not None for name in message.names)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark calls it so
        self._output.abort()
