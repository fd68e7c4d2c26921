"""Splits of TFRecord and Parquet files, which the nodes read themselves."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.tfrecords.files import File, constant, find, plan
from tensorflowonspark.tfrecords.files import Split as RecordSplit
from tensorflowonspark.tfrecords.infer import check_columns, chosen, inferred, partition_types
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read

__all__ = ["FileSplit", "FilesToRead", "RowGroup", "divide", "parquet_splits", "tfrecord_splits"]

_FOOTERS_AT_A_TIME = 16
_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 << 20  # decoded at a time: rows of images are large
_BUFFER_BYTES = 1 << 20  # of each column: else a row group's would be read whole before its first row


class FilesToRead(NamedTuple):
    """Parquet files, the columns to read (all for None), and the size of the rows in memory at a time."""

    paths: Sequence[str]
    columns: Sequence[str] | None
    cache_limit: int | str | None


class FileSplit(Protocol):
    """A part of some files that one worker reads."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""

    @property
    def size(self) -> int:
        """Size in bytes, by which the splits are divided."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""


def divide(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Return the numbers of each worker's splits: the largest first, each to the worker with the least load.

    Examples
    --------
    >>> divide([1, 5, 2, 3], 2)
    [[0, 1], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        least = load.index(min(load))
        shares[least].append(number)
        load[least] += sizes[number]
    return [sorted(each) for each in shares]


@dataclass(frozen=True)
class _Records:
    """A byte range of a TFRecord file."""

    split: RecordSplit
    columns: list[pa.Field]
    options: Options

    @property
    def name(self) -> str:
        return f"{self.split.file.path} from byte {self.split.begin} to {self.split.end}"

    @property
    def size(self) -> int:
        return self.split.end - self.split.begin

    def batches(self) -> Iterator[pa.RecordBatch]:
        return read([self.split], self.columns, self.options)


def tfrecord_splits(
    paths: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None, given: Mapping[str, Any]
) -> tuple[list[FileSplit], pa.Schema]:
    """Return the splits of TFRecord files, and the columns of their rows; `given` holds options by Spark's names."""
    options = Options.of(given)
    files = find(paths, options.recursive_file_lookup)
    fields = inferred(files, options) if schema is None else list(schema)
    fields = check_columns(_select(fields, columns), options, partition_types(files))
    splits = [split for task in plan(files, options.split_bytes) for split in task]
    splits.sort(key=lambda each: (each.file.path, each.begin))
    return [_Records(split, fields, options) for split in splits], pa.schema(fields)


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file."""

    file: File
    number: int
    size: int
    rows: int
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The file, and the row group's number."""
        return f"{self.file.path}, row group {self.number}"

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows, and those of the columns that the directories' names hold."""
        constants = dict(self.file.values)
        stored = [each.name for each in self.schema if each.name not in constants]
        at_once = max(1, min(_BATCH_ROWS, self.rows * _BATCH_BYTES // max(1, self.size)))
        files, path = storage.file_system(self.file.path)
        with files.open(path, "rb") as file:
            parquet = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES)
            self._check_unchanged(parquet.metadata)
            for batch in parquet.iter_batches(at_once, row_groups=[self.number], columns=stored):
                yield pa.record_batch(
                    [
                        constant(constants[each.name], each.type, batch.num_rows)
                        if each.name in constants
                        else batch.column(each.name).cast(each.type)
                        for each in self.schema
                    ],
                    schema=self.schema,
                )

    def _check_unchanged(self, footer: Any) -> None:
        found = footer.row_group(self.number).num_rows if self.number < footer.num_row_groups else None
        if found != self.rows:
            raise FeedError(
                f"{self.name} had {self.rows} rows when it was listed, and has {found or 'none'}: it has changed since"
            )


def parquet_splits(paths: Sequence[str], columns: Sequence[str] | None) -> tuple[list[FileSplit], pa.Schema]:
    """Return the row groups of Parquet files as splits, and the columns of their rows."""
    files = [file for file in find(paths) if file.size]
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as readers:
        footers = list(readers.map(_footer, files))
    if not footers:
        raise SpecError(f"there are no Parquet files at {', '.join(paths)}")
    partitions = partition_types(files)
    fields = [*map(_plain, footers[0].schema.to_arrow_schema()), *(pa.field(*each) for each in partitions.items())]
    schema = pa.schema(_select(fields, columns))
    stored = [name for name in schema.names if name not in partitions]
    splits: list[FileSplit] = []
    for file, footer in zip(files, footers, strict=True):
        if missing := ", ".join(sorted(set(stored) - set(footer.schema.to_arrow_schema().names))):
            raise SpecError(f"{file.path} has no column {missing}, as {files[0].path} has")
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        splits += [
            RowGroup(file, number, group.total_byte_size, group.num_rows, schema)
            for number, group in enumerate(groups)
            if group.num_rows
        ]
    return splits, schema


def _footer(file: File) -> Any:
    files, path = storage.file_system(file.path)
    with files.open(path, "rb") as opened:
        try:
            return pq.read_metadata(opened)
        except pa.ArrowInvalid as error:
            raise SpecError(f"{file.path} is no Parquet file ({error})") from None


def _plain(column: pa.Field) -> pa.Field:
    """Return a column with the type that Spark reads: dictionary encoding is a matter of storage."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.with_type(kind).remove_metadata()


def _select(fields: Sequence[pa.Field], columns: Sequence[str] | None) -> list[pa.Field]:
    known = {each.name: each for each in fields}
    return [known[name] for name in chosen(columns, list(known))]
