"""TFRecord and Parquet files as pieces that workers read (see `ownreads`)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.ownreads import Piece
from tensorflowonspark.tfrecords.files import File, Split, constant, find, plan
from tensorflowonspark.tfrecords.infer import inferred, partition_types
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.schema import check_columns, chosen

__all__ = ["parquet_pieces", "tfrecord_pieces"]

_FOOTERS_AT_A_TIME = 16


@dataclass(frozen=True)
class _Records:
    """A part of a TFRecord file."""

    split: Split
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


def tfrecord_pieces(
    paths: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None, options: Options
) -> tuple[list[Piece], pa.Schema]:
    """Return the parts of TFRecord files, and the columns of their rows."""
    files = find(paths, options.recursive_file_lookup)
    fields = inferred(files, options) if schema is None else list(schema)
    fields = check_columns(_chosen(fields, columns), options, partition_types(files))
    splits = [split for task in plan(files, options.split_bytes) for split in task]
    splits.sort(key=lambda each: (each.file.path, each.begin))
    return [_Records(split, fields, options) for split in splits], pa.schema(fields)


@dataclass(frozen=True)
class _RowGroup:
    """One row group of a Parquet file."""

    file: File
    number: int
    size: int
    schema: pa.Schema

    @property
    def name(self) -> str:
        return f"{self.file.path}, row group {self.number}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        constants = dict(self.file.values)
        stored = [each.name for each in self.schema if each.name not in constants]
        files, path = storage.file_system(self.file.path)
        with files.open(path, "rb") as file:
            for batch in pq.ParquetFile(file).iter_batches(row_groups=[self.number], columns=stored):
                yield pa.record_batch(
                    [
                        constant(constants[each.name], each.type, batch.num_rows)
                        if each.name in constants
                        else batch.column(each.name).cast(each.type)
                        for each in self.schema
                    ],
                    schema=self.schema,
                )


def parquet_pieces(paths: Sequence[str], columns: Sequence[str] | None) -> tuple[list[Piece], pa.Schema]:
    """Return the row groups of Parquet files, and the columns of their rows."""
    files = [file for file in find(paths) if file.size]
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as readers:
        footers = list(readers.map(_footer, files))
    if not footers:
        raise SpecError(f"there are no Parquet files at {', '.join(paths)}")
    partitions = partition_types(files)
    fields = [*map(_plain, footers[0].schema.to_arrow_schema()), *(pa.field(*each) for each in partitions.items())]
    schema = pa.schema(_chosen(fields, columns))
    stored = [name for name in schema.names if name not in partitions]
    pieces: list[Piece] = []
    for file, footer in zip(files, footers, strict=True):
        if missing := ", ".join(sorted(set(stored) - set(footer.schema.to_arrow_schema().names))):
            raise SpecError(f"{file.path} has no column {missing}, as {files[0].path} has")
        sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
        pieces += [_RowGroup(file, number, size, schema) for number, size in enumerate(sizes)]
    return pieces, schema


def _footer(file: File) -> Any:
    files, path = storage.file_system(file.path)
    with files.open(path, "rb") as opened:
        try:
            return pq.read_metadata(opened)
        except pa.ArrowInvalid as error:
            raise SpecError(f"{file.path} is no Parquet file ({error})") from None


def _plain(column: pa.Field) -> pa.Field:
    """Return a column as Spark would give it: a dictionary is how a file stores values, not what they are."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.with_type(kind).remove_metadata()


def _chosen(fields: Sequence[pa.Field], columns: Sequence[str] | None) -> list[pa.Field]:
    known = {each.name: each for each in fields}
    return [known[name] for name in chosen(columns, list(known))]
