"""TFRecord files, in splits whose numbers of rows are unknown until they are read."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tensorflowonspark.columns.schema import arrow_schema
from tensorflowonspark.errors import TFRecordError
from tensorflowonspark.node.feed.footers import ReadFooters, footers
from tensorflowonspark.node.feed.source import Listed, Source
from tensorflowonspark.storage.listing import check_unchanged, find, partition_types
from tensorflowonspark.tfrecords.framing import BLOCK_BYTES
from tensorflowonspark.tfrecords.infer import check_columns, chosen, inferred, options_for
from tensorflowonspark.tfrecords.options import Mode, Options
from tensorflowonspark.tfrecords.reading import count, read
from tensorflowonspark.tfrecords.splits import RecordSplit, plan

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Records:
    """The records of a TFRecord file that begin in a range of bytes; their number is unknown until they are read."""

    split: RecordSplit
    columns: list[pa.Field]
    options: Options

    @property
    def name(self) -> str:
        """The file, and the range."""
        return f"{self.split.file.path} from byte {self.split.begin} to {self.split.end}"

    @property
    def size(self) -> int:
        """Size in bytes, as it is stored."""
        return self.split.end - self.split.begin

    @property
    def counts_records(self) -> bool:
        """Whether the number of its rows is that of its records, whatever is wrong with them."""
        options = self.options
        return options.mode is Mode.FAILFAST and not (options.ignore_corrupt_files or options.ignore_missing_files)

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows.

        A record that can't be read is a `TFRecordError`, and a file that has changed or is gone a `FeedError`.
        """
        if self.split.file.size > BLOCK_BYTES:  # a smaller file is read whole before a row is taken: see below
            check_unchanged(self.split.file)
        try:
            yield from read([self.split], self.columns, self.options)
        except (TFRecordError, OSError):
            check_unchanged(self.split.file)  # which is a better reason
            raise
        check_unchanged(self.split.file)

    def count(self) -> int:
        """Return the number of its rows; this reads them.

        It raises what `batches` raises, but does not look at the data of records.
        """
        try:
            rows = count(self.split, self.columns, self.options)
        except (TFRecordError, OSError):
            check_unchanged(self.split.file)
            raise
        check_unchanged(self.split.file)
        return rows


@dataclass(frozen=True)
class TFRecordSource(Source):
    """Files, directories or wildcards; long files are divided."""

    kind: ClassVar[str] = "tfrecord"
    paths: Sequence[str]
    schema: "pa.Schema | StructType | str | None" = None  # None: as the first records have it
    options: Mapping[str, Any] = field(default_factory=dict)  # by Spark's names

    def find(self, read_footers: ReadFooters = footers) -> Listed:  # noqa: ARG002 - they have none
        """Return the splits of the files."""
        schema = None if self.schema is None else arrow_schema(self.schema)
        splits, found = tfrecord_splits(self.paths, schema, self.columns, self.options)
        return Listed(splits, found, replace(self, schema=schema))


def tfrecord_splits(
    paths: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None, given: Mapping[str, Any]
) -> tuple[list[Records], pa.Schema]:
    """Return the splits of TFRecord files, and the columns of their rows; `given` holds options by Spark's names."""
    options = Options.of(given)
    files = find(paths, options.listing)
    fields = inferred(files, options) if schema is None else list(schema)
    fields = check_columns(_select(fields, columns), options, partition_types(files, options.listing))
    options = options_for(fields, files, options, inferred=schema is None)
    splits = [split for task in plan(files, options.split_bytes) for split in task]
    splits.sort(key=lambda each: (each.file.path, each.begin))
    return [Records(split, fields, options) for split in splits], pa.schema(fields)


def _select(fields: Sequence[pa.Field], columns: Sequence[str] | None) -> list[pa.Field]:
    known = {each.name: each for each in fields}
    return [known[name] for name in chosen(columns, list(known))]
