"""Row groups of Parquet files, as splits: their columns, as the files or their table have them, and row filters.

Fragments of `pyarrow.dataset` have the footers, and exclude row groups by their statistics. The rows come from
``ParquetFile.iter_batches``: a scanner of a dataset reads further ahead than the memory limit allows, knows neither
columns that were renamed nor positions of rows, and its casts cut no times and name no column.
"""

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.columns.plain_types import plain_type, to_plain
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.file_columns import ParquetFiles, columns_of, is_another, source_of
from tensorflowonspark.node.feed.footers import (
    INT96,
    Footer,
    ReadFooters,
    footer_of,
    footers,
    fragment,
    not_excluded,
    read_at_once,
)
from tensorflowonspark.node.feed.row_filters import RowFilter
from tensorflowonspark.tfrecords.infer import chosen

_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 << 20  # decoded at a time: rows of images are large
_BUFFER_BYTES = 1 << 20  # of each column: else a row group's would be read whole before its first row


@dataclass(frozen=True)
class ReadFile:
    """One Parquet file, and what is read of it."""

    path: str
    schema: pa.Schema  # of the columns to read
    # the column of the file, or the value of all rows, for each column to read and each that the filter needs
    sources: Mapping[str, Any]
    # theirs, with the file's units of time, so that the filter compares what is stored
    types: Mapping[str, pa.DataType]
    filter: RowFilter | None = None


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file."""

    file: ReadFile
    number: int  # its place in the file
    size: int  # in bytes, decoded
    stored_rows: int  # in the file
    rows: int  # that it yields; with a filter unknown, and the most, until they are counted
    kept: pa.BooleanArray | None = None  # whether each row is part of the table; None for all

    @property
    def name(self) -> str:
        """The file, and the row group's number."""
        return f"{self.file.path}, row group {self.number}"

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows, and the columns that are not in the file.

        A file that can't be read, or has changed, is a `FeedError`.
        """
        yield from self._passing(self.file.schema.names)

    def count(self) -> int:
        """Return the number of rows that pass the filter; only the columns that it needs are read."""
        rows = self.file.filter
        if rows is None or not any(isinstance(self.file.sources[name], str) for name in rows.columns):
            return self.rows  # a filter of constants alone has excluded the whole file, or nothing in it
        return sum(batch.num_rows for batch in self._passing(()))

    def _passing(self, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Yield columns of the rows that pass the filter, with the units of time that programs get."""
        rows, schema = self.file.filter, self.file.schema
        plain = {name: schema.field(name).type for name in names}
        with self._named_errors():
            for batch in self._stored(list(dict.fromkeys((*names, *(rows.columns if rows else ()))))):
                found = batch if rows is None else rows.passing(batch)
                if found.num_rows:
                    yield _converted({name: found.column(name) for name in names}, plain) if names else found.select([])

    def _stored(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows that are part of the table, as the file has them."""
        sources, types = ({name: of[name] for name in names} for of in (self.file.sources, self.file.types))
        stored = [source for source in sources.values() if isinstance(source, str)]
        at_once = max(1, min(_BATCH_ROWS, self.stored_rows * _BATCH_BYTES // max(1, self.size)))
        position = 0
        files, path = storage.file_system(self.file.path)
        with files.open(path, "rb") as file:
            parquet = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit=INT96)
            self._check_unchanged(parquet.metadata)
            for batch in parquet.iter_batches(at_once, row_groups=[self.number], columns=stored):
                rows = _converted(
                    {
                        name: batch.column(source) if isinstance(source, str) else _repeated(source, batch.num_rows)
                        for name, source in sources.items()
                    },
                    types,
                )
                if self.kept is not None:
                    rows = rows.filter(self.kept.slice(position, batch.num_rows))
                position += batch.num_rows
                yield rows

    def _check_unchanged(self, footer: Any) -> None:
        group = footer.row_group(self.number) if self.number < footer.num_row_groups else None
        if group is None or group.num_rows != self.stored_rows:
            raise FeedError(
                f"{self.name} had {self.stored_rows} rows when it was listed, and has "
                f"{group.num_rows if group else 'none'}: it has changed since"
            )
        if group.total_byte_size != self.size:
            raise FeedError(f"{self.name} has other values than when it was listed: it has changed since")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise FeedError(f"{self.name} can't be read: {error}") from error


def _converted(columns: Mapping[str, pa.Array], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Return the columns cast to `types`; an error names the column."""
    arrays = []
    for name, column in columns.items():
        try:
            arrays.append(to_plain(column, types[name]))
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(f"column {name}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def row_groups(
    parquet: ParquetFiles,
    columns: Sequence[str] | None = None,
    expression: Any = None,
    read_footers: ReadFooters = footers,
) -> tuple[list[RowGroup], pa.Schema]:
    """Return the row groups with rows that a filter does not exclude by their statistics, and the columns to read.

    With a filter each node reads the footers, for their statistics: that of the first file, which has the columns, and
    those of the files that the filter does not exclude by their partition columns. Files whose columns differ, or that
    a request does not fit, are a `SpecError`.
    """
    fragments = None
    if expression is not None:
        fragments = read_at_once(fragment, parquet.files[:1])
        if fragments:
            columns_of_first = columns_of(parquet, [fragments[0].physical_schema])
            others = not_excluded(parquet.files[1:], expression, columns_of_first)
            parquet = parquet._replace(files=[*parquet.files[:1], *others])
            fragments += read_at_once(fragment, others)
    found = read_footers(parquet.files) if fragments is None else list(map(footer_of, fragments))
    known = columns_of(parquet, [each.schema for each in found])
    schema = pa.schema([known.field(name).remove_metadata() for name in chosen(columns, known.names)])
    rows = None if expression is None else RowFilter.of(expression, known)
    used = dict.fromkeys((*schema.names, *(rows.columns if rows else ())))
    groups: list[RowGroup] = []
    columns_of_files: dict[int | None, tuple[dict[str, Any], dict[str, pa.DataType]]] = {}
    for number, (file, footer) in enumerate(zip(parquet.files, found, strict=True)):
        stored = footer.schema
        alike = None if file.constants else id(stored)  # many files have the same schema
        if alike is None or alike not in columns_of_files:
            sources = {name: source_of(parquet, known.field(name), file, stored) for name in used}
            types = {name: _stored_type(known.field(name).type, sources[name], stored) for name in used}
            columns_of_files[alike] = sources, types
        sources, types = columns_of_files[alike]
        read = ReadFile(file.path, schema, sources, types, rows)
        wanted = range(len(footer.groups)) if fragments is None else _not_excluded(read, fragments[number], known)
        groups += _groups_of(read, file.kept, footer, wanted)
    return groups, schema


def _stored_type(kind: pa.DataType, source: Any, stored: pa.Schema) -> pa.DataType:
    """Return the type with a file's units of time for a column of a plain type, which differs only in these."""
    if not isinstance(source, str):
        return kind
    own = plain_type(stored.field(source).type, units=False)
    return own if plain_type(own).equals(kind) else kind


def _groups_of(
    file: ReadFile, kept: pa.BooleanArray | None, footer: Footer, numbers: Container[int]
) -> Iterator[RowGroup]:
    start = 0
    for number, (rows, size) in enumerate(footer.groups):
        part = None if kept is None else _part(kept, start, rows)
        start += rows
        count = rows if part is None else part.true_count
        if number in numbers and count:
            yield RowGroup(file, number, size, rows, count, part)
    if kept is not None and len(kept) > start:
        raise SpecError(f"{file.path} has {start} rows, and its table says which of {len(kept)} are deleted")


def _part(kept: pa.BooleanArray, start: int, rows: int) -> pa.BooleanArray:
    part = kept.slice(start, rows)
    return pa.concat_arrays([part, pa.repeat(pa.scalar(True), rows - len(part))])


def _not_excluded(file: ReadFile, fragment: Any, known: pa.Schema) -> Container[int]:
    """Return the row groups in which rows may pass a filter, by their statistics and the file's constants."""
    rows, every = file.filter, range(fragment.metadata.num_row_groups)
    if rows is None:
        return every
    values = {name: file.sources[name] for name in rows.columns}
    if values and not any(isinstance(each, str) for each in values.values()):
        constants = {name: _repeated(value, 1) for name, value in values.items()}
        return every if rows.passing(_converted(constants, file.types)).num_rows else ()
    if any(is_another(known.field(name), each, fragment.physical_schema) for name, each in values.items()):
        return every  # statistics go by the names in the file
    own = pa.schema([pa.field(name, file.types[name]) for name in rows.columns])
    return {group.id for part in fragment.split_by_row_group(rows.expression, own) for group in part.row_groups}
