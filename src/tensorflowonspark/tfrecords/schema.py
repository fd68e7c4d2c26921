"""Which types of Spark's a record can hold, and what the columns of some files are."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns.layout import is_list, is_vector
from tensorflowonspark.columns.schema import arrow_type
from tensorflowonspark.errors import SpecError, TFRecordError
from tensorflowonspark.tfrecords.decode import kinds_for
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64, NAMES, Entries, Records, Values, read_steps, read_values
from tensorflowonspark.tfrecords.files import File, Split, plan
from tensorflowonspark.tfrecords.framing import Block
from tensorflowonspark.tfrecords.options import Options, RecordType
from tensorflowonspark.tfrecords.reading import BYTES_COLUMN, Damaged, records_of
from tensorflowonspark.tfrecords.wire import BadRecords

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["Seen", "arrow_columns", "inferred", "partition_types", "seen_in"]

_INTEGERS = range(-(1 << 31), 1 << 31)


def arrow_columns(schema: "StructType", options: Options, partitions: Iterable[str] = ()) -> list[pa.Field]:
    """Return Arrow's fields for Spark's columns.

    Raises
    ------
    SpecError
        If a column can't be in a record; all of them are named.
    """
    columns = [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema.fields]
    outside = {*partitions, options.column_name_of_corrupt_record}
    inside = [column for column in columns if column.name not in outside]
    problems = [f"column {each.name!r} has type {_spark_name(schema, each.name)}: {why}" for each in inside if (why := _refusal(each.type, options))]
    if options.record_type is RecordType.BYTE_ARRAY and len(inside) > 1:
        problems.append(f"records of type ByteArray have one column, and not {', '.join(each.name for each in inside)}")
    if problems:
        raise SpecError(f"TFRecord files can't have these columns: {'; '.join(problems)}")
    return columns


def _spark_name(schema: "StructType", name: str) -> str:
    return str(schema[name].dataType.simpleString())


def _refusal(kind: pa.DataType, options: Options) -> str:
    """Return why a record can't have a type; empty if it can."""
    if options.record_type is RecordType.BYTE_ARRAY:
        return "" if kinds_for(kind) == (BYTES,) else "a record of type ByteArray is binary or a string"
    if is_vector(kind) or kinds_for(kind):
        return ""
    if pa.types.is_map(kind):
        return "a feature has no keys: take the values as columns of their own (col['key']), or map_keys and map_values"
    if pa.types.is_struct(kind):
        return "a feature has no fields: take them as columns of their own (col.field)"
    if not is_list(kind):
        return "no feature can hold it: drop the column, or cast it"
    inner = kind.value_type
    if is_list(inner):
        if options.record_type is not RecordType.SEQUENCE_EXAMPLE:
            return "an Example has no arrays of arrays: flatten(col), or recordType=SequenceExample"
        inner = inner.value_type
    return "" if kinds_for(inner) else "of arrays a record can hold those of numbers, strings and bytes"


@dataclass(frozen=True)
class Seen:
    """What a feature was in some records.

    Attributes
    ----------
    kind : int
        What it holds, 0 if it was always empty.
    many : bool
        Whether one had several values.
    text : bool
        Whether all bytes are UTF-8.
    steps : bool
        Whether it is a feature list, where `many` is about its steps.
    """

    kind: int
    many: bool
    text: bool
    steps: bool = False

    def with_(self, other: "Seen", name: str) -> "Seen":
        """Return what holds for both; whole numbers are floats where there are floats."""
        kinds = {self.kind, other.kind} - {0}
        if len(kinds) > 1 and BYTES in kinds:
            raise SpecError(f"feature {name!r} holds bytes in one record and numbers in another: give a schema without it")
        return Seen(FLOAT if len(kinds) > 1 else max(kinds, default=0), self.many or other.many, self.text and other.text, self.steps)


def seen_in(splits: Iterable[Split], options: Options, limit: int = 0) -> dict[str, Seen]:
    """Return what the features of records are, by name.

    Parameters
    ----------
    splits : iterable of Split
        Where the records are.
    options : Options
        What they are.
    limit : int
        How many records to look at, at the most (it may be some more); 0 for all.
    """
    seen: dict[str, Seen] = {}
    count = 0
    for split in splits:
        for block in records_of(split):
            if isinstance(block, Damaged):
                break  # reading will tell
            for name, found in _seen(block, options).items():
                seen[name] = seen[name].with_(found, name) if name in seen else found
            count += len(block.spans)
            if limit and count >= limit:
                return seen
    return seen


def _seen(block: Block, options: Options) -> dict[str, Seen]:
    spans = block.spans.take(np.setdiff1d(block.spans.record, block.wrong))
    while True:
        try:
            records = Records(block.data, spans)
            found = {name: _feature(records.features, name) for name in records.features.names}
            if options.record_type is RecordType.SEQUENCE_EXAMPLE:
                lists = records.feature_lists
                found.update({name: _steps(lists, name) for name in lists.names})
            return found
        except BadRecords as bad:
            spans = spans.take(~np.isin(spans.record, list(bad.reasons)))


def _feature(entries: Entries, name: str) -> Seen:
    there, messages = entries.of(name)
    return _summary(read_values(entries.data, messages, len(there), tuple(NAMES), name), steps=False)


def _steps(entries: Entries, name: str) -> Seen:
    of_step, messages = read_steps(entries.data, entries.of(name)[1])
    values = read_values(entries.data, messages, len(of_step), tuple(NAMES), name)
    summary = _summary(values, steps=True)
    return Seen(summary.kind, bool((values.counts != 1).any()), summary.text, steps=True)


def _summary(values: Values, steps: bool) -> Seen:
    text = True
    if values.kind == BYTES:
        try:
            values.values.cast(pa.string())
        except pa.ArrowInvalid:
            text = False
    return Seen(values.kind, bool((values.counts > 1).any()), text, steps)


def inferred(files: Sequence[File], options: Options, look: "Callable[[list[list[Split]]], dict[str, Seen]] | None" = None) -> "StructType":
    """Return the columns of files.

    Parameters
    ----------
    files : sequence of File
        Where the records are.
    options : Options
        `sample_records` says how many are looked at.
    look : callable, optional
        Looks at all records of what some tasks would read, where all are wanted.
    """
    from pyspark.sql.types import StructType

    tasks = plan([file for file in files if file.size], options.split_bytes)
    schema = StructType()
    if options.record_type is RecordType.BYTE_ARRAY:
        schema.add(BYTES_COLUMN, "binary")
    else:
        splits = [split for task in tasks for split in task]
        seen = look(tasks) if look and not options.sample_records else seen_in(splits, options, options.sample_records)
        if not seen:
            raise SpecError("there are no records to tell the columns from: give a schema")
        for name in sorted(seen):
            schema.add(name, _type(name, seen[name], options))
    for name, kind in partition_types(files).items():
        schema.add(name, kind)
    return schema


def _type(name: str, seen: Seen, options: Options) -> "DataType":
    from pyspark.sql import types

    text = types.StringType() if seen.text and name not in options.binary_features else types.BinaryType()
    real = types.FloatType() if options.float_type == "float" else types.DoubleType()
    kind = {FLOAT: real, INT64: types.LongType()}.get(seen.kind, text)
    for _ in range(seen.many + seen.steps):
        kind = types.ArrayType(kind)
    return kind


def partition_types(files: Sequence[File]) -> dict[str, str]:
    """Return the columns that directories name, with the types that all their values have.

    Examples
    --------
    >>> partition_types([File("a", 1, 0.0, (("day", "7"),)), File("b", 1, 0.0, (("day", None),))])
    {'day': 'integer'}
    """
    names = {name for file in files for name, _ in file.values}
    for file in files:
        if {name for name, _ in file.values} != names:
            raise SpecError(f"{file.path} is not in directories for {', '.join(sorted(names))}, as other files are")
    values = {name: [value for file in files for key, value in file.values if key == name and value is not None] for name in sorted(names)}
    return {name: _common(found) for name, found in values.items()}


def _common(values: list[str]) -> str:
    """Return the first of these types that can have all values."""
    for kind, check in (("integer", _is_int), ("long", _is_long), ("double", _is_double)):
        if values and all(map(check, values)):
            return kind
    return "string"


def _is_int(value: str) -> bool:
    return _is_long(value) and int(value) in _INTEGERS


def _is_long(value: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", value) is not None


def _is_double(value: str) -> bool:
    return re.fullmatch(r"-?[0-9]+\.[0-9]+([eE][-+]?[0-9]+)?", value) is not None
