"""Conversion of the features of records to Arrow columns of given types."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns import spread
from tensorflowonspark.columns.layout import is_binary, is_list, is_text
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64, Records, Values, read_steps, read_values
from tensorflowonspark.tfrecords.wire import BadRecords, Fields, Ints

__all__ = ["decode", "kinds_for"]


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


def decode(records: Records, columns: list[pa.Field], sequences: bool) -> list[pa.Array]:
    """Return an array for each column, with a value for each record.

    Parameters
    ----------
    records : Records
        Serialised ``Example`` or ``SequenceExample`` messages.
    columns : list of pa.Field
        Names and types. A missing feature is a null. A feature without values is an empty array in a column of arrays,
        and a null in other columns.
    sequences : bool
        Whether the records are ``SequenceExample``. Columns that are in no context are read from feature lists: arrays
        with a value, or an array of values, for each step.

    Returns
    -------
    list of pa.Array
        Of the columns' types and the number of records.

    Raises
    ------
    BadRecords
        If some records can't be read, or hold values that do not convert to a column's type.
    """
    return [_column(records, column, sequences) for column in columns]


def _column(records: Records, column: pa.Field, sequences: bool) -> pa.Array:
    nested = is_list(column.type) and is_list(column.type.value_type)
    in_lists = sequences and (nested or column.name not in records.features.names)
    if nested and not sequences:
        raise ValueError(f"column {column.name!r}: an Example has no arrays of arrays")
    source = records.feature_lists if in_lists else records.features
    present, messages = source.of(column.name)
    feature = _Feature(records, column, present)
    if not column.nullable and len(present) < len(records):
        missing = records.spans.take(~np.isin(records.spans.record, present))
        raise BadRecords(missing.record, missing.start, f"no feature {column.name!r}, which may not be null")
    found = feature.lists(messages, nested) if in_lists else feature.values(messages)
    if not column.nullable and found.null_count:
        missing = records.spans.take(found.is_null().to_numpy(zero_copy_only=False))
        raise BadRecords(missing.record, missing.start, f"feature {column.name!r} has no value, and may not be null")
    return found


@dataclass(frozen=True)
class _Feature:
    """One column of some records; `present` are the numbers of the records with the feature."""

    records: Records
    column: pa.Field
    present: Ints

    def values(self, messages: Fields) -> pa.Array:
        """Return the column of an ``Example``."""
        if is_list(self.column.type):
            elements, counts = self._read(messages, len(self.present), self.column.type.value_type, self.present)
            return self._spread(_listed(elements, counts, self.column.type), self.present)
        elements, counts = self._read(messages, len(self.present), self.column.type, self.present)
        self._refuse_many(counts, self.present)
        return self._spread(elements, self.present[counts > 0])

    def lists(self, messages: Fields, nested: bool) -> pa.Array:
        """Return the column of a ``SequenceExample``'s feature lists."""
        if not is_list(self.column.type):
            what = f"feature list {self.column.name!r} has a value for each step, and the column's type has one"
            raise BadRecords(self.present, self._places(self.present), what)
        of_step, steps = read_steps(self.records.data, messages)
        kind = self.column.type.value_type
        record = self.present[of_step]
        elements, counts = self._read(steps, len(of_step), kind.value_type if nested else kind, record)
        if nested:
            elements = _listed(elements, counts, kind)
        else:
            self._refuse_many(counts, record, least=1)
        steps_of = np.bincount(of_step, minlength=len(self.present))
        return self._spread(_listed(elements, steps_of, self.column.type), self.present)

    def _read(self, messages: Fields, units: int, kind: pa.DataType, record: Ints) -> tuple[pa.Array, Ints]:
        """Return the values of some features as one array, and the number of values of each."""
        name = self.column.name
        values = read_values(self.records.data, messages, units, kinds_for(kind), name)
        try:
            return _converted(values, kind), values.counts
        except (pa.ArrowInvalid, InvalidOperation) as error:
            of_value = np.repeat(record, values.counts)
            bad = np.unique(of_value[[_fails(values, at, kind) for at in range(len(of_value))]])
            what = f"a value of feature {name!r} is no {kind} ({str(error).splitlines()[0]})"
            raise BadRecords(bad, self._places(bad), what) from None

    def _refuse_many(self, counts: Ints, record: Ints, least: int = 0) -> None:
        wrong = (counts > 1) | (counts < least)
        if wrong.any():
            bad = record[wrong]
            what = f"feature {self.column.name!r} has {counts[wrong][0]} values, and its column is no array of them"
            raise BadRecords(bad, self._places(bad), what)

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
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
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
    if pa.types.is_floating(kind):
        return pa.array(found.astype(kind.to_pandas_dtype(), copy=False))
    if pa.types.is_boolean(kind) and not np.isin(found, (0, 1)).all():
        raise pa.ArrowInvalid("a boolean is 0 or 1")
    # Arrow does not cast int64 to dates, which are days in 32 bits.
    return pa.array(found).cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
