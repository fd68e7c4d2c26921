"""The data source ``tfrecord`` of Spark 4: batch reads, writes, and streaming reads.

The offset of a stream, which Spark keeps in its checkpoint, holds the names of the files read that are at most seven
days older than the newest. A new file that is older than that is ignored, as in Spark's own file source
(``maxFileAge``), so that the size of the offset is bounded. Files must appear as a whole, by a rename, as those of
`OutputFiles` and Spark do.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NoReturn

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
from tensorflowonspark.storage.listing import File, find, partition_types
from tensorflowonspark.tfrecords.infer import arrow_columns, check_written, options_for, spark_schema
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.splits import RecordSplit, plan
from tensorflowonspark.tfrecords.writing import OutputFiles

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: such a stream reads all that is there in one micro-batch."""


# The types whose values are the same text in Arrow and in Spark.
_TEXT = re.compile(r"(string|char|varchar|tinyint|smallint|int|bigint|boolean|date|binary)(\W.*)?")
_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


class CarriesSettings:
    """Carries the settings of file systems with its pickle, since Spark's Python workers do not have them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_settings": storage.settings()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        storage.use(state.pop("_settings"))
        self.__dict__.update(state)


class TFRecordSource(CarriesSettings, DataSource):
    """The data source ``tfrecord``."""

    settings: Mapping[str, str] = {}  # Hadoop's, of the session that has registered it

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._inferred = False
        storage.use(self.settings)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tfrecord"

    @property
    def _options(self) -> Options:
        return Options.of(dict(self.options))

    @property
    def _paths(self) -> list[str]:
        """The arguments of ``load``, of which Spark passes several as one option, in JSON."""
        one = [str(self.options["path"])] if self.options.get("path") else []
        paths = [*one, *json.loads(self.options.get("paths", "[]"))]
        if not paths:
            raise SpecError('no path: spark.read.format("tfrecord").load(path), or .save(path)')
        return paths

    def _files(self) -> list[File]:
        return find(self._paths, self._options.listing)

    def schema(self) -> StructType:
        """Return the columns inferred from the records."""
        self._inferred = True
        return spark_schema(self._files(), self._options)

    def reader(self, schema: StructType) -> "_Reader":
        """Return a reader of the present files."""
        return _Reader(self._files(), schema, self._options, self._inferred)

    def streamReader(self, schema: StructType) -> "TFRecordStream":  # noqa: N802 - Spark's name
        """Return a reader of present and future files."""
        return TFRecordStream(self._paths, schema, self._options, self._inferred)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802, ARG002 - Spark's names
        """Refuse to write a stream."""
        raise SpecError(
            'writeStream.format("tfrecord"): TFRecord files are written batch by batch: writeStream.foreachBatch('
            "lambda batch, number: tfos.write_tfrecord(batch, f'{path}/batch={number}'))"
        )

    def writer(self, schema: StructType, overwrite: bool) -> "_Writer":
        """Return a writer of files."""
        check_written(schema, self._options)
        (path,) = self._paths
        for name in self._options.partition_by:
            if not _TEXT.fullmatch(kind := schema[name].dataType.simpleString()):
                raise SpecError(
                    f"partitionBy={name!r}: only Spark itself writes a {kind} as the name of a directory: cast the "
                    "column to string first, or use tfos.write_tfrecord"
                )
        output = OutputFiles(path, self._options, overwrite)
        said = "partitionOverwriteMode" in self.options or _OVERWRITE_MODE in self.settings
        if overwrite and self._options.partition_by and not said and output.has_partitions():
            raise SpecError(
                f"mode('overwrite') would replace all partitions of {path}: say so by option('partitionOverwriteMode', "
                "'static'), or 'dynamic' for those that are written. format('tfrecord') sees no setting that was made "
                "after register_tfrecord(spark)"
            )
        output.begin()
        return _Writer(output)


@dataclass
class SplitsPartition(InputPartition):
    """The splits that one task reads."""

    splits: list[RecordSplit]


class _Reader(CarriesSettings, DataSourceReader):
    # It takes no filters (`pushFilters`): up to 4.3 Spark keeps the partitions of the last query with a filter for all
    # further queries of the same DataFrame, which then lack rows.
    def __init__(self, files: Sequence[File], schema: StructType, options: Options, inferred: bool) -> None:
        self._files = files
        self._columns = arrow_columns(schema, options, partition_types(files, options.listing))
        self._options = options_for(self._columns, files, options, inferred=inferred)

    def partitions(self) -> Sequence[InputPartition]:
        found = plan(self._files, self._options.split_bytes)
        return [SplitsPartition(task) for task in found] or [SplitsPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.splits, self._columns, self._options)


@dataclass
class _Written(WriterCommitMessage):
    names: list[str]


class _Writer(CarriesSettings, DataSourceArrowWriter):
    def __init__(self, output: OutputFiles) -> None:
        self._output = output

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        return _Written(self._output.write(iterator, TaskContext.get().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._output.commit(name for message in messages if message is not None for name in message.names)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark calls it so
        self._output.abort()


_AGE_SECONDS = 7 * 24 * 3600  # as Spark's `maxFileAge`

Offset = dict[str, Any]


def _limits(options: Options) -> dict[str, int]:
    """Return the limits of a micro-batch by the names of their options; 0 for none."""
    return {"maxFilesPerTrigger": options.max_files_per_trigger, "maxBytesPerTrigger": options.max_bytes_per_trigger}


class TFRecordStream(CarriesSettings, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the files of a directory, with as many in a micro-batch as the options allow.

    `inferred` is whether the columns are those that the records had.
    """

    def __init__(self, paths: Sequence[str], schema: StructType, options: Options, inferred: bool) -> None:
        given = [name for name, most in _limits(options).items() if most]
        if given and find_spec("pyspark.sql.streaming.datasource") is None:
            raise SpecError(f"option {given[0]} needs Spark 4.2 or newer: older ones read all files at once")
        if len(given) > 1:
            raise SpecError(f"options {' and '.join(given)}: give one of them, as for Spark's own sources of files")
        self._last: set[str] | None = None  # the files of a stream that reads what is there, and ends
        self._paths = paths
        files = find(paths, options.listing)
        self._columns = arrow_columns(schema, options, partition_types(files, options.listing))
        self._options = options
        self._reading = options_for(self._columns, files, options, inferred=inferred)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before all files."""
        return {"files": {}, "since": 0}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Return the offset after the present files, or after as many new ones as the limit allows."""
        known = start or self.initialOffset()
        files = [each for each in self._present() if self._last is None or each.path in self._last]
        new = [each for each in files if each.path not in known["files"] and each.modified >= known["since"]]
        new.sort(key=lambda each: (each.modified, each.path))
        chosen = new[: getattr(limit, "max_files", None)]
        if most := getattr(limit, "max_bytes", None):  # a file that is longer is read alone
            sizes = list(accumulate(each.size for each in chosen))
            chosen = chosen[: max(1, bisect_right(sizes, most))]
        if not chosen:
            return known
        seen = {**known["files"], **{each.path: int(each.modified) for each in chosen}}
        since = max(known["since"], max(seen.values()) - _AGE_SECONDS)
        return {"files": {path: when for path, when in seen.items() if when >= since}, "since": since}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return the limit of a micro-batch, which Spark requests from 4.2 on; before, it reads all present files."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

        files, size = _limits(self._options).values()
        return ReadMaxFiles(files) if files else ReadMaxBytes(size) if size else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no files but those that are there now, of a trigger ``availableNow``."""
        self._last = {each.path for each in self._present()}

    def _present(self) -> list[File]:
        return find(self._paths, self._options.listing)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, a partition for each task."""
        wanted = set(end["files"]) - set(start["files"])
        files = [each for each in self._present() if each.path in wanted]
        if gone := sorted(wanted - {each.path for each in files}):
            raise SpecError(f"files of {', '.join(self._paths)} went before they were read: {', '.join(gone[:5])}")
        found = plan(files, self._options.split_bytes)
        return [SplitsPartition(task) for task in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read(partition.splits, self._columns, self._reading)
