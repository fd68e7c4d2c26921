"""Which columns a record can hold."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.columns.layout import is_list, is_vector
from tensorflowonspark.columns.schema import arrow_type
from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.decode import kinds_for
from tensorflowonspark.tfrecords.options import Options, RecordType
from tensorflowonspark.tfrecords.values import BYTES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["arrow_columns", "check_columns", "chosen"]


_REASONS = (
    (
        pa.types.is_map,
        "a feature has no keys: take the values as columns of their own (col['key']), or map_keys and map_values",
    ),
    (pa.types.is_struct, "a feature has no fields: take them as columns of their own (col.field)"),
)


def arrow_columns(schema: "StructType", options: Options, partitions: Iterable[str] = ()) -> list[pa.Field]:
    """Return Arrow's fields for Spark's columns.

    Raises
    ------
    SpecError
        If a column can't be in a record; all of them are named.
    """
    columns = [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema.fields]
    return check_columns(columns, options, partitions)


def chosen(columns: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the names of the columns that a user wants, which is all if nothing is said.

    Raises
    ------
    SpecError
        If there is no such column.
    """
    if missing := ", ".join(sorted(set(columns or ()) - set(known))):
        raise SpecError(f"columns={list(columns or ())}: there is no {missing}, only {', '.join(known)}")
    return list(known if columns is None else columns)


def check_columns(columns: list[pa.Field], options: Options, partitions: Iterable[str] = ()) -> list[pa.Field]:
    """Return columns, if all but those that directories name can be in a record."""
    outside = {*partitions, options.column_name_of_corrupt_record}
    inside = [column for column in columns if column.name not in outside]
    problems = [
        f"column {each.name!r} has type {each.type}: {why}" for each in inside if (why := _refusal(each.type, options))
    ]
    if options.record_type is RecordType.BYTE_ARRAY and len(inside) != 1:
        names = ", ".join(each.name for each in inside)
        problems.append(f"records of type ByteArray are one column, and not {names or 'none'}")
    if problems:
        raise SpecError(f"TFRecord files can't have these columns: {'; '.join(problems)}")
    return columns


def _refusal(kind: pa.DataType, options: Options) -> str:
    """Return why a record can't have a type; empty if it can."""
    if options.record_type is RecordType.BYTE_ARRAY:
        return "" if kinds_for(kind) == (BYTES,) else "a record of type ByteArray is binary or a string"
    inner = kind.value_type if is_list(kind) else kind
    if is_list(inner):
        if options.record_type is not RecordType.SEQUENCE_EXAMPLE:
            return "an Example has no arrays of arrays: flatten(col), or recordType=SequenceExample"
        inner = inner.value_type
    if kinds_for(inner) or is_vector(kind):
        return ""
    for is_such, why in _REASONS:
        if is_such(inner):
            return why
    return "no feature can hold it: drop the column, or cast it"
