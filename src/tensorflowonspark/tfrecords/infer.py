"""Schemas of TFRecord files: checks of columns, and inference from records and directory names."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns.layout import is_list, is_vector
from tensorflowonspark.columns.schema import arrow_type
from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage.file_systems import READS_AT_ONCE
from tensorflowonspark.storage.listing import File, partition_types
from tensorflowonspark.tfrecords.decode import IN_BOTH, kinds_for
from tensorflowonspark.tfrecords.entries import Entries
from tensorflowonspark.tfrecords.examples import (
    BYTES,
    FLOAT,
    INT64,
    NAMES,
    Encoded,
    Values,
    read_steps,
    read_values,
)
from tensorflowonspark.tfrecords.framing import Block
from tensorflowonspark.tfrecords.options import Options, RecordType
from tensorflowonspark.tfrecords.reading import BYTES_COLUMN, Damaged, count, records_of
from tensorflowonspark.tfrecords.splits import RecordSplit, plan
from tensorflowonspark.tfrecords.wire_format import BadRecords

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_REASONS = (
    (
        pa.types.is_map,
        "a feature has no keys: take the values as columns of their own (col['key']), or map_keys and map_values",
    ),
    (pa.types.is_struct, "a feature has no fields: take them as columns of their own (col.field)"),
)
_ODD_TYPES = {  # of Spark, which are structs in Arrow, or nothing
    "VariantType": "a feature has one type: take parts of it with variant_get, or all of it as text with to_json",
    "GeometryType": "take its bytes with st_asbinary",
    "GeographyType": "take its bytes with st_asbinary",
    "YearMonthIntervalType": "its length in time varies: cast it to int, which gives months",
    "CalendarIntervalType": "its length in time varies: drop it, or make a number of it",
}


def arrow_columns(schema: "StructType", options: Options, partitions: Iterable[str] = ()) -> list[pa.Field]:
    """Return the Arrow fields of Spark columns.

    Raises SpecError, which names all columns that a record can't hold.
    """
    if problems := [
        f"column {each.name!r} has type {each.dataType.simpleString()}: {why}"
        for each in schema.fields
        if (why := _ODD_TYPES.get(type(getattr(each.dataType, "elementType", each.dataType)).__name__))
    ]:
        raise SpecError(f"TFRecord files can't have these columns: {'; '.join(problems)}")
    columns = [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema.fields]
    return check_columns(columns, options, partitions)


def chosen(columns: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the names of the chosen columns, by default all known ones; it raises SpecError for an unknown one."""
    if missing := ", ".join(sorted(set(columns or ()) - set(known))):
        raise SpecError(f"columns={list(columns or ())}: there is no {missing}, only {', '.join(known)}")
    return list(known if columns is None else columns)


def check_columns(columns: list[pa.Field], options: Options, partitions: Iterable[str] = ()) -> list[pa.Field]:
    """Return the columns if a record can hold all except partition columns; raise a SpecError otherwise."""
    inside = _features(columns, options, partitions)
    problems = [
        f"column {each.name!r} has type {each.type}: {why}" for each in inside if (why := _refusal(each.type, options))
    ]
    if options.record_type is RecordType.BYTE_ARRAY and len(inside) != 1:
        names = ", ".join(each.name for each in inside)
        problems.append(f"records of type ByteArray are one column, and not {names or 'none'}")
    if problems:
        raise SpecError(f"TFRecord files can't have these columns: {'; '.join(problems)}")
    return columns


def _features(columns: Sequence[pa.Field], options: Options, partitions: Iterable[str]) -> list[pa.Field]:
    """Return the columns that come from the records."""
    same: Callable[[str], str] = str if options.case_sensitive else str.lower
    outside = {*map(same, partitions), same(options.column_name_of_corrupt_record)}
    return [column for column in columns if same(column.name) not in outside]


def check_written(schema: "StructType", options: Options) -> None:
    """Raise a SpecError if a DataFrame of the schema can't be written."""
    if missing := sorted(set(options.partition_by) - set(schema.names)):
        raise SpecError(f"partitionBy: there is no column {', '.join(missing)}, only {', '.join(schema.names)}")
    if len(options.partition_by) == len(schema.names):
        raise SpecError("all columns are in partitionBy: nothing is left for the records")
    arrow_columns(schema, options, options.partition_by)


def _refusal(kind: pa.DataType, options: Options) -> str:
    """Return the reason that a record can't hold a type, or an empty string."""
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


@dataclass(frozen=True)
class Seen:
    """A summary of one feature over some records."""

    kind: int  # `BYTES`, `FLOAT` or `INT64`; 0 if all records have it empty
    many: bool  # whether a record, or a step of a feature list, has several values
    text: bool  # whether all bytes are UTF-8
    steps: bool = False  # whether it is a feature list

    def with_(self, other: "Seen", name: str) -> "Seen":
        """Return the summary of both; integers and floats together are floats."""
        kinds = {self.kind, other.kind} - {0}
        if len(kinds) > 1 and BYTES in kinds:
            raise SpecError(
                f"feature {name!r} holds bytes in one record and numbers in another: give a schema without it"
            )
        if self.steps != other.steps:
            raise SpecError(f"feature {name!r} {IN_BOTH}")
        return Seen(
            FLOAT if len(kinds) > 1 else max(kinds, default=0),
            self.many or other.many,
            self.text and other.text,
            self.steps,
        )


def merged(seen: dict[str, Seen], found: dict[str, Seen]) -> dict[str, Seen]:
    """Return the summaries of all features of two sets of records."""
    both = {name: seen[name].with_(found[name], name) for name in seen.keys() & found.keys()}
    return {**seen, **found, **both}


def seen_in(splits: Iterable[RecordSplit], options: Options, limit: int = 0) -> dict[str, Seen]:
    """Return the summaries of the features of some splits, by name.

    Records that can't be read are ignored. The limit, in records, is rounded up to a whole block; 0 is for all.
    """
    return reduce(merged, (seen_in_block(each, options) for each in _first(splits, options, limit)), {})


def _first(splits: Iterable[RecordSplit], options: Options, limit: int) -> Iterator[Block]:
    """Yield the blocks with the first records of some splits, 0 for all."""
    count = 0
    for block in chain.from_iterable(_ahead(splits, options, limit) if limit else (_whole(s, options) for s in splits)):
        yield block
        count += len(block.spans)
        if limit and count >= limit:
            return


def _whole(split: RecordSplit, options: Options, limit: int = 0) -> Iterator[Block]:
    """Yield the blocks of a split that can be read, until they have so many records; 0 for all."""
    count = 0
    for block in records_of(split, options):
        if isinstance(block, Damaged):
            return  # reading reports it
        yield block
        count += len(block.spans)
        if limit and count >= limit:
            return


def _ahead(splits: Iterable[RecordSplit], options: Options, limit: int) -> Iterator[list[Block]]:
    """Yield the first blocks of each split: of one, then of two at a time, and so on, as many as small files need."""
    rest, width = iter(splits), 1
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="infer") as readers:
        while some := list(islice(rest, width)):
            yield from readers.map(lambda split: list(_whole(split, options, limit)), some)
            width = min(2 * width, READS_AT_ONCE)


def options_for(columns: Sequence[pa.Field], files: Sequence[File], options: Options, *, inferred: bool) -> Options:
    """Return the options with which files are read: the names of an inferred schema are exact.

    Of a given schema, warn of the columns that none of the first records has, each with the nearest name of a feature.
    Mostly this reads one block; for a column that is not there, `sample_records`.
    """
    if inferred:
        return replace(options, case_sensitive=True)
    inside = _features(columns, options, partition_types(files, options.listing))
    if options.record_type is not RecordType.BYTE_ARRAY:
        splits = (split for task in plan(files, options.split_bytes) for split in task)
        _warn_of_absent([each.name for each in inside], splits, options)
    return options


def _warn_of_absent(columns: Sequence[str], splits: Iterable[RecordSplit], options: Options) -> None:
    same: Callable[[str], str] = str if options.case_sensitive else str.lower
    absent, seen, count = {same(name): name for name in columns}, set[str](), 0
    for block in _first(splits, options, options.sample_records or Options.sample_records):
        try:
            records = Encoded(block.data, block.spans)
            names = {*records.features.names, *records.feature_lists.names}
        except BadRecords:
            return  # reading reports it
        seen |= names
        count += len(block.spans)
        absent = {key: name for key, name in absent.items() if key not in set(map(same, names))}
        if not absent:
            return
    lower = {name.lower(): name for name in sorted(seen)}
    for name in absent.values() if count else ():
        near = "".join(f"; the nearest name is {lower[each]!r}" for each in get_close_matches(name.lower(), lower, 1))
        warnings.warn(f"column {name!r} is null: none of the first {count} records has it{near}", stacklevel=3)


def seen_in_block(block: Block, options: Options) -> dict[str, Seen]:
    """Return the summaries of the features of a block, by name, without records that can't be read."""
    spans = block.spans.take(np.setdiff1d(block.spans.record, block.wrong))
    while True:
        try:
            records = Encoded(block.data, spans)
            found = {name: _feature(records.features, name) for name in records.features.names}
            if options.record_type is RecordType.SEQUENCE_EXAMPLE:
                lists = records.feature_lists
                if both := sorted(found.keys() & lists.names):
                    raise SpecError(f"feature {both[0]!r} {IN_BOTH}")
                found.update({name: _steps(lists, name) for name in lists.names})
            return found
        except BadRecords as bad:
            spans = spans.take(~np.isin(spans.record, list(bad.reasons)))


def _feature(entries: Entries, name: str) -> Seen:
    records, messages = entries.of(name)
    values = read_values(entries.data, messages, len(records), tuple(NAMES), name)
    return Seen(values.kind, bool((values.counts > 1).any()), _is_text(values))


def _steps(entries: Entries, name: str) -> Seen:
    of_step, messages = read_steps(entries.data, entries.of(name)[1])
    values = read_values(entries.data, messages, len(of_step), tuple(NAMES), name)
    return Seen(values.kind, bool((values.counts != 1).any()), _is_text(values), steps=True)


def _is_text(values: Values) -> bool:
    """Return whether all bytes among the values are UTF-8."""
    if isinstance(values.values, pa.Array):
        try:
            values.values.cast(pa.string())
        except pa.ArrowInvalid:
            return False
    return True


Summarize = Callable[[list[list[RecordSplit]]], dict[str, Seen]]


def inferred(files: Sequence[File], options: Options, summarize: Summarize | None = None) -> list[pa.Field]:
    """Return the columns of files, inferred from their records and directories: features, then partition columns.

    Features are in the order of their names. So many records as `sample_records` are read; if it is 0, `summarize`
    gives the summary of all records of some tasks, and by default this process reads them. Raises SpecError if the
    files have no records, or records contradict each other, and TFRecordError if no record can be read, and the mode is
    ``FAILFAST``.
    """
    if options.record_type is RecordType.BYTE_ARRAY:
        columns = [pa.field(BYTES_COLUMN, pa.binary())]
    else:
        tasks = plan(files, options.split_bytes)
        if summarize and not options.sample_records:
            seen = summarize(tasks)
        else:
            seen = seen_in((split for task in tasks for split in task), options, options.sample_records)
        if not seen:
            for split in (split for task in tasks for split in task):
                count(split, [], options)  # raises the error of what can't be read
            raise SpecError("there are no records to infer the columns from: give a schema")
        columns = columns_of(seen, options)
    return columns + [pa.field(name, kind) for name, kind in partition_types(files, options.listing).items()]


def spark_schema(files: Sequence[File], options: Options, summarize: Summarize | None = None) -> "StructType":
    """Return the columns of files as a Spark schema, inferred as by `inferred`."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(inferred(files, options, summarize)))


def columns_of(seen: dict[str, Seen], options: Options) -> list[pa.Field]:
    """Return the columns of features, in the order of their names."""
    return [pa.field(name, _type(name, seen[name], options)) for name in sorted(seen)]


def _type(name: str, seen: Seen, options: Options) -> pa.DataType:
    text = pa.string() if seen.text and name not in options.binary_features else pa.binary()
    real = pa.float32() if options.float_type == "float" else pa.float64()
    kind = {FLOAT: real, INT64: pa.int64()}.get(seen.kind, text)
    for _ in range(seen.many + seen.steps):
        kind = pa.list_(kind)
    return kind
