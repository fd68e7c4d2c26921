"""Spark 4's data source ``tfrecord``: batch reads, writes, and streaming reads.

What has been read is the stream's offset itself, which Spark keeps in the checkpoint: the names of all files of the
last seven days, counted from the youngest. A file that is older than that when it is first seen is left out, as Spark's
own file source does (``maxFileAge``); so the offset does not grow for ever. A file must come into place as a whole, by
a rename, as `Output` and Spark do.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.files import File, Split, find, plan
from tensorflowonspark.tfrecords.infer import arrow_columns, check_written, partition_types, spark_schema
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.writing import Output

__all__ = ["SplitsPartition", "TFRecordSource", "TFRecordStream", "Travelling"]


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


_AGE_SECONDS = 7 * 24 * 3600

Offset = dict[str, Any]


class TFRecordStream(Travelling, DataSourceStreamReader):
    """The files of a directory; `Options.max_files_per_trigger` bounds a micro-batch.

    Parameters
    ----------
    path : str
        A directory or wildcards.
    schema : StructType
        The columns of the rows.
    options : Options
        How they are read.
    """

    def __init__(self, path: str, schema: StructType, options: Options) -> None:
        self._path = path
        self._options = options
        self._columns = arrow_columns(schema, options, partition_types(find([path], options.recursive_file_lookup)))

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before all files."""
        return {"files": {}, "since": 0}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Return the offset after the files that are there, or after as many of them as are wanted at once."""
        known = start or self.initialOffset()
        files = find([self._path], self._options.recursive_file_lookup)
        new = [each for each in files if each.path not in known["files"] and each.modified >= known["since"]]
        new.sort(key=lambda each: (each.modified, each.path))
        chosen = new[: getattr(limit, "max_files", None)]
        if not chosen:
            return known
        seen = {**known["files"], **{each.path: int(each.modified) for each in chosen}}
        since = max(known["since"], max(seen.values()) - _AGE_SECONDS)
        return {"files": {path: when for path, when in seen.items() if when >= since}, "since": since}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return how much a micro-batch has; before Spark 4.2 nobody asks, and it has all that is there."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

        most = self._options.max_files_per_trigger
        return ReadMaxFiles(most) if most else ReadAllAvailable()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return what the tasks of a micro-batch read."""
        wanted = set(end["files"]) - set(start["files"])
        files = [each for each in find([self._path], self._options.recursive_file_lookup) if each.path in wanted]
        if gone := sorted(wanted - {each.path for each in files}):
            raise SpecError(f"files of {self._path} went before they were read: {', '.join(gone[:5])}")
        found = plan(files, self._options.split_bytes)
        return [SplitsPartition(task) for task in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read(partition.splits, self._columns, self._options)
