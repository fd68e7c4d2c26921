"""``spark.readStream.format("tfrecord")``: files of a directory, as they come.

What has been read is the stream's offset itself, which Spark keeps in the checkpoint: the names of all files of the
last seven days, counted from the youngest. A file that is older than that when it is first seen is left out, as Spark's
own file source does (``maxFileAge``); so the offset does not grow for ever. A file must come into place as a whole, by
a rename, as `Output` and Spark do.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.files import find, plan
from tensorflowonspark.tfrecords.infer import partition_types
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.schema import arrow_columns
from tensorflowonspark.tfrecords.source import SplitsPartition, Travelling

__all__ = ["TFRecordStream"]

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
