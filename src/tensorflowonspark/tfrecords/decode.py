"""Conversion of the features of records to Arrow columns of given types."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import spread
from tensorflowonspark.columns.arrays import split_at
from tensorflowonspark.columns.layout import is_binary, is_list, is_text
from tensorflowonspark.tfrecords.entries import Entries
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64, Encoded, Values, read_steps, read_values
from tensorflowonspark.tfrecords.fields import FEW_MESSAGES, Fields
from tensorflowonspark.tfrecords.uniform import read_uniform
from tensorflowonspark.tfrecords.wire_format import Ints, UnfitRecords

IN_BOTH = (
    "is in the context and in the feature lists: in a schema, a single value is the context's, and an array of arrays "
    "the feature list's"
)


@lru_cache(1000)  # types: more than the columns of most tables
def kinds_for(kind: pa.DataType) -> tuple[int, ...]:
    """Return the kinds of features that convert to an Arrow type of one value; empty if none does."""
    if is_text(kind) or is_binary(kind):
        return (BYTES,)
    if pa.types.is_decimal(kind):
        return (BYTES, INT64)
    if pa.types.is_floating(kind):
        return (FLOAT, INT64)
    whole = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_timestamp)
    return (INT64,) if any(check(kind) for check in (*whole, pa.types.is_duration, pa.types.is_time64)) else ()


def decode(records: Encoded, columns: list[pa.Field], sequences: bool, case_sensitive: bool = True) -> list[pa.Array]:
    """Return an array for each column, with a value for each record.

    A missing feature is a null. A feature without values is an empty array in a column of arrays, and a null in other
    columns. Of `sequences` (``SequenceExample``), arrays of arrays are read from feature lists, and single values from
    the context. Arrays are read from either, with one value for each step of a feature list. Unless `case_sensitive`, a
    feature whose name differs in case from a column's, and is no other column's, is the column's too.

    Raises BadRecords if some records can't be read, or hold values that do not convert to a column's type.
    """
    if sequences or len(records) <= FEW_MESSAGES or any(_is_nested(column.type) for column in columns):
        return decode_any(records, columns, sequences, case_sensitive)
    maps = records.maps
    if not np.array_equal(maps.record, records.spans.record):
        return decode_any(records, columns, sequences, case_sensitive)
    kinds = {each.name: kinds_for(_element(each.type) or each.type) for each in columns}
    uniform, good = read_uniform(records.data, maps, kinds)
    if not case_sensitive and _in_other_case(uniform.names, kinds).keys() & {each.name.lower() for each in columns}:
        return decode_any(records, columns, sequences, case_sensitive)
    if good.all():
        return [_column_of(records, column, *uniform.values(column.name)) for column in columns]
    if 2 * np.count_nonzero(good) < len(good):
        return decode_any(records, columns, sequences, case_sensitive)
    odd = decode_any(Encoded(records.data, records.spans.take(~good)), columns, sequences, case_sensitive)
    usual = Encoded(records.data, records.spans.take(good))
    order = pa.array(np.argsort(np.argsort(~good, kind="stable")))
    return [
        pa.concat_arrays([_column_of(usual, column, *uniform.values(column.name)), array]).take(order)
        for column, array in zip(columns, odd, strict=True)
    ]


def decode_any(
    records: Encoded, columns: list[pa.Field], sequences: bool, case_sensitive: bool = True
) -> list[pa.Array]:
    """Do the same as `decode`, by a parse of each message."""
    wanted = {column.name for column in columns}

    def entries(source: Entries) -> list[tuple[Ints, Fields]]:
        others = {} if case_sensitive else _in_other_case(source.names, wanted)
        return [source.of(column.name, *others.get(column.name.lower(), ())) for column in columns]

    if not sequences:
        return [
            _column(records, column, *found) for column, found in zip(columns, entries(records.features), strict=True)
        ]
    both = zip(columns, entries(records.features), entries(records.feature_lists), strict=True)
    return [_sequence(records, *found) for found in both]


def _in_other_case(names: Iterable[str], wanted: Collection[str]) -> dict[str, list[str]]:
    """Return the names of features that are a column's but for their case, by what they are in lower case.

    Examples
    --------
    >>> _in_other_case(["ID", "x", "Id", "id"], {"id", "x"})
    {'id': ['ID', 'Id']}
    """
    lower = {name.lower() for name in wanted}
    found: dict[str, list[str]] = {}
    for name in names:
        if name not in wanted and name.lower() in lower:
            found.setdefault(name.lower(), []).append(name)
    return found


@lru_cache(1000)  # types: more than the columns of most tables
def _element(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of a list, None for other types."""
    return kind.value_type if is_list(kind) else None


def _is_nested(kind: pa.DataType) -> bool:
    return (element := _element(kind)) is not None and is_list(element)


def _column(records: Encoded, column: pa.Field, present: Ints, messages: Fields) -> pa.Array:
    """Return the column of an ``Example``, or of a context."""
    if _is_nested(column.type):
        raise ValueError(f"column {column.name!r}: an Example has no arrays of arrays")
    feature = _Feature(records, column, present)
    feature.check_present()
    return feature.check_values(feature.read_values(messages))


def _sequence(records: Encoded, column: pa.Field, context: tuple[Ints, Fields], lists: tuple[Ints, Fields]) -> pa.Array:
    """Return the column of a ``SequenceExample``, from the context or the feature lists by its type."""
    if _is_nested(column.type):
        wrong, what = np.setdiff1d(context[0], lists[0]), "is in the context, and its column has those of feature lists"
    elif not is_list(column.type):
        wrong = np.setdiff1d(lists[0], context[0])
        what = "is a feature list, which has a value for each step, and the column's type has one"
    else:
        wrong, what = np.intersect1d(context[0], lists[0]), IN_BOTH
    if len(wrong):
        places = records.spans.start[np.searchsorted(records.spans.record, wrong)]
        raise UnfitRecords(wrong, places, f"feature {column.name!r} {what}")
    if not is_list(column.type) or not (_is_nested(column.type) or len(lists[0])):
        return _column(records, column, *context)
    feature = _Feature(records, column, lists[0])
    if _is_nested(column.type) or not len(context[0]):
        feature.check_present()
        return feature.check_values(feature.lists(lists[1], _is_nested(column.type)))
    values = _column(records, column.with_nullable(True), *context)
    whole = _Feature(records, column, np.union1d(context[0], lists[0]))
    whole.check_present()
    return whole.check_values(pc.coalesce(values, feature.lists(lists[1], nested=False)))


def _column_of(records: Encoded, column: pa.Field, present: Ints, values: Values) -> pa.Array:
    """Return a column of the values that were found in the records `present`."""
    feature = _Feature(records, column, present)
    feature.check_present()
    return feature.check_values(feature.column_of(values))


@dataclass(frozen=True)
class _Feature:
    """One column of some records; `present` are the numbers of the records with the feature."""

    records: Encoded
    column: pa.Field
    present: Ints

    def check_present(self) -> None:
        """Raise UnfitRecords if some records do not have the feature, and must."""
        if not self.column.nullable and len(self.present) < len(self.records):
            missing = self.records.spans.take(~np.isin(self.records.spans.record, self.present))
            what = f"no feature {self.column.name!r}, which may not be null"
            raise UnfitRecords(missing.record, missing.start, what)

    def check_values(self, found: pa.Array) -> pa.Array:
        """Return the column; raise UnfitRecords if it has nulls, and must not."""
        if not self.column.nullable and found.null_count:
            missing = self.records.spans.take(found.is_null().to_numpy(zero_copy_only=False))
            what = f"feature {self.column.name!r} has no value, and may not be null"
            raise UnfitRecords(missing.record, missing.start, what)
        return found

    def read_values(self, messages: Fields) -> pa.Array:
        """Return the column of an ``Example``."""
        kind = _element(self.column.type) or self.column.type
        values = read_values(self.records.data, messages, len(self.present), kinds_for(kind), self.column.name)
        return self.column_of(values)

    def column_of(self, values: Values) -> pa.Array:
        """Return the column of an ``Example`` of its values."""
        if (element := _element(self.column.type)) is not None:
            elements = self._converted(values, element, self.present)
            return self._spread(_listed(elements, values.counts, self.column.type), self.present)
        elements = self._converted(values, self.column.type, self.present)
        if values.single:
            return self._spread(elements, self.present)
        self._refuse_many(values.counts, self.present)
        return self._spread(elements, self.present[values.counts > 0])

    def lists(self, messages: Fields, nested: bool) -> pa.Array:
        """Return the column of a ``SequenceExample``'s feature lists."""
        of_step, steps = read_steps(self.records.data, messages)
        kind = self.column.type.value_type
        record = self.present[of_step]
        inner = kind.value_type if nested else kind
        values = read_values(self.records.data, steps, len(of_step), kinds_for(inner), self.column.name)
        elements = self._converted(values, inner, record)
        if nested:
            elements = _listed(elements, values.counts, kind)
        else:
            self._refuse_many(values.counts, record, least=1)
        steps_of = np.bincount(of_step, minlength=len(self.present))
        return self._spread(_listed(elements, steps_of, self.column.type), self.present)

    def _converted(self, values: Values, kind: pa.DataType, record: Ints) -> pa.Array:
        """Return the values of some features as one array."""
        try:
            return _converted(values, kind)
        except (pa.ArrowInvalid, InvalidOperation) as error:
            of_value = np.repeat(record, values.counts)
            bad = np.unique(of_value[[_fails(values, at, kind) for at in range(len(of_value))]])
            what = f"a value of feature {self.column.name!r} is no {kind} ({str(error).splitlines()[0]})"
            raise UnfitRecords(bad, self._places(bad), what) from None

    def _refuse_many(self, counts: Ints, record: Ints, least: int = 0) -> None:
        wrong = (counts > 1) | (counts < least)
        if wrong.any():
            bad = record[wrong]
            what = f"feature {self.column.name!r} has {counts[wrong][0]} values, and its column is no array of them"
            raise UnfitRecords(bad, self._places(bad), what)

    def _places(self, record: Ints) -> Ints:
        spans = self.records.spans
        return spans.start[np.searchsorted(spans.record, record)]

    def _spread(self, found: pa.Array, has: Ints) -> pa.Array:
        """Return a column with the found values at their records and nulls at all others."""
        total = len(self.records)
        if len(found) == total:
            return found
        return spread(found, np.searchsorted(self.records.spans.record, has), total)


def _listed(elements: pa.Array, counts: Ints, kind: pa.DataType) -> pa.Array:
    offsets = split_at(counts)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets), elements, type=kind)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements, type=kind)


def _fails(values: Values, at: int, kind: pa.DataType) -> bool:
    try:
        _converted(Values(values.kind, values.values[at : at + 1], np.ones(1, np.int64)), kind)
    except (pa.ArrowInvalid, InvalidOperation):
        return True
    return False


def _converted(values: Values, kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type, or raise an error if the conversion would lose one."""
    if not len(values.values):
        return pa.array([], kind)
    if isinstance(values.values, pa.Array):
        if pa.types.is_decimal(kind):
            return pa.array([Decimal(each.decode()) for each in values.values.to_pylist()], kind)
        return values.values.cast(kind)
    found: npt.NDArray[np.generic] = values.values
    if (same := pa.array(found)).type.equals(kind):
        return same
    if pa.types.is_floating(kind):
        return pa.array(found.astype(kind.to_pandas_dtype(), copy=False))
    if pa.types.is_boolean(kind) and not np.isin(found, (0, 1)).all():
        raise pa.ArrowInvalid("a boolean is 0 or 1")
    # Arrow does not cast int64 to dates, which are days in 32 bits.
    return pa.array(found).cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
