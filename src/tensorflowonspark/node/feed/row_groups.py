"""Row groups of Parquet files, as splits: their columns, as the files or their table have them, and row filters."""

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.columns.plain import plain_type, to_plain
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.file_columns import DataFile, ParquetFiles, columns_of, is_another, source_of
from tensorflowonspark.node.feed.row_filters import RowFilter
from tensorflowonspark.tfrecords.infer import chosen

__all__ = ["RowGroup", "row_groups"]

_FOOTERS_AT_A_TIME = 16
_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 << 20  # decoded at a time: rows of images are large
_INT96 = "us"  # Spark's old timestamps: Arrow's nanoseconds do not hold the years before 1677 and after 2262
_BUFFER_BYTES = 1 << 20  # of each column: else a row group's would be read whole before its first row


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file.

    Attributes
    ----------
    file : DataFile
        Its file.
    number : int
        Its place in the file.
    size : int
        In bytes, decoded.
    stored_rows : int
        Number of rows in the file.
    rows : int
        Number of rows that it yields; with a filter this is unknown, and the most, until they are counted.
    schema : pa.Schema
        The columns to read.
    sources : mapping of str to (str or pa.Scalar)
        The column of the file, or the value of all rows, for each column to read and each that the filter needs.
    types : mapping of str to pa.DataType
        Their types, with the file's units of time, so that the filter compares what is stored.
    filter : RowFilter or None
        The rows to read.
    kept : pa.BooleanArray or None
        Whether each row is part of the table; None for all.
    """

    file: DataFile
    number: int
    size: int
    stored_rows: int
    rows: int
    schema: pa.Schema
    sources: Mapping[str, Any]
    types: Mapping[str, pa.DataType]
    filter: RowFilter | None = None
    kept: pa.BooleanArray | None = None

    @property
    def name(self) -> str:
        """The file, and the row group's number."""
        return f"{self.file.path}, row group {self.number}"

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows, and the columns that are not in the file.

        Raises
        ------
        FeedError
            If the file can't be read, or has changed.
        """
        yield from self._passing(self.schema.names)

    def count(self) -> int:
        """Return the number of rows that pass the filter; only the columns that it needs are read."""
        if self.filter is None or not any(isinstance(self.sources[name], str) for name in self.filter.columns):
            return self.rows  # a filter of constants alone has excluded the whole file, or nothing in it
        return sum(batch.num_rows for batch in self._passing(()))

    def _passing(self, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        needed = self.filter.columns if self.filter is not None else ()
        with self._named_errors():
            for batch in self._stored(list(dict.fromkeys((*names, *needed)))):
                rows = batch if self.filter is None else self.filter.passing(batch)
                if rows.num_rows:
                    yield self._plain(rows, names)

    def _stored(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows that are part of the table."""
        schema = pa.schema([pa.field(name, self.types[name]) for name in names])
        stored = [source for name in names if isinstance(source := self.sources[name], str)]
        at_once = max(1, min(_BATCH_ROWS, self.stored_rows * _BATCH_BYTES // max(1, self.size)))
        position = 0
        files, path = storage.file_system(self.file.path)
        with files.open(path, "rb") as file:
            parquet = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit=_INT96)
            self._check_unchanged(parquet.metadata)
            for batch in parquet.iter_batches(at_once, row_groups=[self.number], columns=stored):
                columns = [self._column(name, batch) for name in names]
                rows = pa.RecordBatch.from_arrays(columns, schema=schema)
                if self.kept is not None:
                    rows = rows.filter(self.kept.slice(position, batch.num_rows))
                position += batch.num_rows
                yield rows

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        source, kind = self.sources[name], self.types[name]
        if not isinstance(source, str):
            return _repeated(source, kind, batch.num_rows)
        with _named_column(name):
            return to_plain(batch.column(source), kind)

    def _plain(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return columns of rows with the units of time that programs get."""
        if not names:
            return rows.select([])  # which keeps their number
        columns = []
        for name in names:
            with _named_column(name):
                columns.append(to_plain(rows.column(name), self.schema.field(name).type))
        return pa.RecordBatch.from_arrays(columns, list(names))

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


@contextmanager
def _named_column(name: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"column {name}: {error}") from error


def row_groups(
    parquet: ParquetFiles, columns: Sequence[str] | None = None, expression: Any = None
) -> tuple[list[RowGroup], pa.Schema]:
    """Return the row groups with rows that a filter does not exclude by their statistics, and the columns to read.

    Parameters
    ----------
    parquet : ParquetFiles
        The files.
    columns : sequence of str, optional
        The columns to read, by default all.
    expression : pc.Expression, optional
        The filter.

    Raises
    ------
    SpecError
        If a file is no Parquet file, or its columns differ, or `columns` or `expression` do not fit them.
    """
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as readers:
        footers = list(readers.map(lambda file: _read_footer(file, expression is not None), parquet.files))
    known = columns_of(parquet, [each.schema for each in footers])
    schema = pa.schema([known.field(name).remove_metadata() for name in chosen(columns, known.names)])
    rows = None if expression is None else RowFilter.of(expression, known)
    used = dict.fromkeys((*schema.names, *(rows.columns if rows else ())))
    groups: list[RowGroup] = []
    numbers: Container[int]
    for file, footer in zip(parquet.files, footers, strict=True):
        sources = {name: source_of(parquet, known.field(name), file, footer.schema) for name in used}
        types = {name: _stored_type(known.field(name).type, sources[name], footer.schema) for name in used}
        numbers = range(footer.metadata.num_row_groups)
        if rows is not None:
            numbers = _not_excluded(footer, sources, types, known, rows)
        groups += _groups_of(file, footer.metadata, numbers, schema, types, sources, rows)
    return groups, schema


class _Footer(NamedTuple):
    """A file's footer: its row groups, its columns, and with a filter the file as a fragment of an Arrow dataset."""

    metadata: Any
    schema: pa.Schema
    fragment: Any


def _read_footer(file: DataFile, with_fragment: bool) -> _Footer:
    files, path = storage.file_system(file.path)
    with files.open(path, "rb") as opened:
        try:
            if with_fragment:
                fragment = _fragment(file, opened)
                return _Footer(fragment.metadata, fragment.physical_schema, fragment)
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit=_INT96)
            return _Footer(parquet.metadata, parquet.schema_arrow, None)
        except pa.ArrowInvalid as error:
            raise SpecError(f"{file.path} is no Parquet file ({error})") from None
        except (OSError, pa.ArrowException) as error:
            raise SpecError(f"the footer of {file.path} can't be read: {error}") from None


def _fragment(file: DataFile, opened: Any) -> Any:
    # This imports pandas, which no process needs without a filter.
    from pyarrow.dataset import ParquetFileFormat, ParquetReadOptions

    known = pc.scalar(True)
    for name, value in file.constants.items():
        known = known & (pc.field(name) == value if value.is_valid else pc.field(name).is_null())
    options = ParquetReadOptions(coerce_int96_timestamp_unit=_INT96)
    fragment = ParquetFileFormat(options).make_fragment(opened, partition_expression=known)
    fragment.ensure_complete_metadata()
    return fragment


def _stored_type(kind: pa.DataType, source: Any, stored: pa.Schema) -> pa.DataType:
    """Return the type with a file's units of time for a column of a plain type, which differs only in these."""
    if not isinstance(source, str):
        return kind
    own = plain_type(stored.field(source).type, units=False)
    return own if plain_type(own).equals(kind) else kind


def _groups_of(
    file: DataFile,
    footer: Any,
    numbers: Container[int],
    schema: pa.Schema,
    types: Mapping[str, pa.DataType],
    sources: Mapping[str, Any],
    rows: RowFilter | None,
) -> Iterator[RowGroup]:
    start = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        kept = None if file.kept is None else _part(file.kept, start, group.num_rows)
        start += group.num_rows
        count = group.num_rows if kept is None else kept.true_count
        if number in numbers and count:
            size, stored = group.total_byte_size, group.num_rows
            yield RowGroup(file, number, size, stored, count, schema, sources, types, rows, kept)
    if file.kept is not None and len(file.kept) > start:
        raise SpecError(f"{file.path} has {start} rows, and its table says which of {len(file.kept)} are deleted")


def _part(kept: pa.BooleanArray, start: int, rows: int) -> pa.BooleanArray:
    part = kept.slice(start, rows)
    return pa.concat_arrays([part, pa.repeat(pa.scalar(True), rows - len(part))])


def _not_excluded(
    footer: _Footer, sources: Mapping[str, Any], types: Mapping[str, pa.DataType], known: pa.Schema, rows: RowFilter
) -> Container[int]:
    """Return the row groups in which rows may pass a filter, by their statistics and the file's constants."""
    fields = [known.field(name) for name in rows.columns]
    values = [sources[each.name] for each in fields]
    if fields and not any(isinstance(each, str) for each in values):
        columns = [_repeated(value, each.type, 1) for value, each in zip(values, fields, strict=True)]
        passes = rows.passing(pa.RecordBatch.from_arrays(columns, list(rows.columns))).num_rows
        return range(footer.metadata.num_row_groups if passes else 0)
    if any(is_another(each, sources[each.name], footer.schema) for each in fields):
        return range(footer.metadata.num_row_groups)  # statistics go by the names in the file
    own = pa.schema([pa.field(name, types[name]) for name in rows.columns])
    found = footer.fragment.split_by_row_group(rows.expression, own)
    return {group.id for fragment in found for group in fragment.row_groups}


def _repeated(value: pa.Scalar, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, kind)
