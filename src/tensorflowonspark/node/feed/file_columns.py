"""Columns of Parquet files, matched to those of a read: by name or number, as constants of a file, or missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tensorflowonspark.columns.layout import is_binary, is_list, is_text
from tensorflowonspark.columns.plain_types import plain_type, to_plain
from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage.listing import File, Listing, find, partition_types
from tensorflowonspark.storage.partition_columns import partition_value

FIELD_ID = b"PARQUET:field_id"  # the key of a column's number in the metadata of its field


@dataclass(frozen=True)
class DataFile:
    """A Parquet file."""

    path: str
    # columns of one value in all rows, as partition columns
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    # whether each row is part of its table, true for those after the last; None for all
    kept: pa.BooleanArray | None = None
    size: int = 0  # in bytes; 0 if the listing does not say it
    modified: float = 0.0  # in seconds since 1970; 0 if the listing does not say it


class ParquetFiles(NamedTuple):
    """The files of a read.

    With a schema, that of a table, a column that a file does not have is null, or has its default. Columns whose fields
    have numbers (`FIELD_ID`) are found by these, in files without numbers by `names`.
    """

    files: Sequence[DataFile]
    schema: pa.Schema | None = None  # by default, the first file's columns and the partition columns
    partitions: Mapping[str, pa.DataType] = {}
    defaults: Mapping[str, pa.Scalar] = {}
    names: Mapping[str, int] = {}


def parquet_files(paths: Sequence[str]) -> ParquetFiles:
    """Return the Parquet files of some paths, with the partition columns of their directories."""
    listing = Listing.of_session("Parquet")
    found = find(paths, listing)
    if not found:
        raise SpecError(f"there are no Parquet files at {', '.join(paths)}")
    types = partition_types(found, listing)

    def constants(file: File) -> dict[str, Any]:
        return {name: partition_value(value, types[name]) for name, value in file.values}

    files = [DataFile(each.path, constants(each), size=each.size, modified=each.modified) for each in found]
    return ParquetFiles(files, partitions=types)


def constant_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value that a table's metadata have for all rows of a file, with a plain type."""
    return to_plain(pa.array([value], kind), plain_type(kind))[0]


def columns_of(parquet: ParquetFiles, stored: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of some files or of their table, with plain types, by the schemas of the files."""
    if parquet.schema is not None:
        return pa.schema([each.with_type(plain_type(each.type)) for each in parquet.schema])
    found = []
    for each in stored[0]:
        if each.name not in parquet.partitions:
            # The first file's, unless it has but nulls.
            others = (schema.field(each.name) for schema in stored if each.name in schema.names)
            known = next((other for other in others if not pa.types.is_null(other.type)), each)
            found.append(pa.field(each.name, plain_type(known.type)))
    return pa.schema([*found, *(pa.field(*each) for each in parquet.partitions.items())])


def source_of(parquet: ParquetFiles, column: pa.Field, file: DataFile, stored: pa.Schema) -> Any:
    """Return the name of a file's column with the values of a column to read, or the value of all rows."""
    if column.name in file.constants:
        return file.constants[column.name]
    name: str | None = column.name
    if _field_id(column) is not None:
        numbers = {_field_id(each): each.name for each in stored}
        if set(numbers) == {None}:
            numbers = {parquet.names.get(each): each for each in stored.names}
        if set(numbers) <= {None}:
            raise SpecError(f"{file.path} has columns without field ids, and its table maps no names to them")
        name = numbers.get(_field_id(column))
    if name is None or name not in stored.names:
        if parquet.schema is None:
            raise SpecError(f"{file.path} has no column {column.name}, as {parquet.files[0].path} has")
        return parquet.defaults.get(column.name, pa.scalar(None, column.type))
    found = stored.field(name)
    if not _fits(found.type, column.type):
        other = parquet.files[0].path if parquet.schema is None else "its table"
        raise SpecError(f"{file.path}: column {name} is {found.type}, and {column.type} in {other}")
    return name


def is_another(column: pa.Field, source: Any, stored: pa.Schema) -> bool:
    """Whether a file's column of a name is not the table's of this name."""
    if isinstance(source, str):
        return bool(source != column.name)
    index = stored.get_field_index(column.name)
    number = _field_id(column)
    return bool(index >= 0 and (number is None or number != _field_id(stored.field(index))))


def _field_id(column: pa.Field) -> int | None:
    number = (column.metadata or {}).get(FIELD_ID)
    return None if number is None else int(number)


_SAME_KIND: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    is_text,
    is_binary,
)


def _fits(found: pa.DataType, target: pa.DataType) -> bool:
    """Whether a file's type can be converted and keep its meaning: to more bits, but not from text to numbers."""
    if pa.types.is_null(found):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(target):
        return int(found.num_fields) == int(target.num_fields) and all(map(_is_same_field, found, target))
    kind = plain_type(found)
    if is_list(kind) and is_list(target):
        return _fits(getattr(found, "value_type", kind.value_type), target.value_type)
    if kind.equals(target):
        return True
    if pa.types.is_integer(kind) and (pa.types.is_floating(target) or pa.types.is_decimal(target)):
        return True
    return any(is_kind(kind) and is_kind(target) for is_kind in _SAME_KIND)


def _is_same_field(found: pa.Field, wanted: pa.Field) -> bool:
    """Whether a field of a struct is the table's."""
    numbers = {_field_id(found), _field_id(wanted)} - {None}
    return found.name == wanted.name and len(numbers) < 2 and _fits(found.type, wanted.type)  # noqa: PLR2004 - or one, or none
