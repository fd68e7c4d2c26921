"""``tf.train.Example`` and ``SequenceExample``: the values of each feature of the records in a buffer.

All records of a buffer are parsed at once (see `wire_format`), and only the requested features are decoded. The
messages are defined in ``tensorflow/core/example/{example,feature}.proto``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns.layout import bytes_of
from tensorflowonspark.tfrecords.entries import Entries
from tensorflowonspark.tfrecords.fields import Fields, field_parts, fields
from tensorflowonspark.tfrecords.scan import Wanted
from tensorflowonspark.tfrecords.wire_format import (
    FLOAT_BYTES,
    FOUR_BYTES,
    LENGTH,
    LONGEST_VARINT,
    PADDING_BYTES,
    VARINT,
    BadRecords,
    Bytes,
    Ints,
    Spans,
    UnfitRecords,
    gather,
    varints,
)

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers in `Feature`
NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}
_STEP_BYTES = 4  # at least, for each step of a long record: one with a value has 7
_UNITS = 1 << 17  # whose values are read at once: bounds the memory of the fields' positions
_INTS_BYTES = 1 << 20  # of encoded integers that are read at once: they take several times the memory meanwhile


@dataclass(frozen=True)
class Values:
    """The values of one feature for some units: records, or the steps of records."""

    kind: int  # `BYTES`, `FLOAT` or `INT64`; 0 if all are empty
    values: "pa.Array | npt.NDArray[np.generic]"  # of all units: Arrow's binary, or float32, int64 or float64
    counts: Ints  # the values of each unit
    single: bool = False  # whether each unit is known to have one value


def read_steps(data: Bytes, lists: Fields) -> tuple[Ints, Fields]:
    """Return the entry of each step of some ``FeatureList`` messages, and the ``Feature`` messages of the steps."""
    steps = fields(data, lists.spans, least_bytes=_STEP_BYTES)
    return lists.message[steps.message], Fields(np.arange(len(steps.message)), steps.number, steps.kind, steps.spans)


def read_values(data: Bytes, features: Fields, units: int, wanted: tuple[int, ...], name: str) -> Values:
    """Return the values of ``Feature`` messages.

    Their ``message`` is the number of the unit of each, in ascending order. If some records have integers and others
    floats, and both kinds are wanted, all become float64. Raises BadRecords, which names the feature, if a value can't
    be read, or is of another kind.
    """
    if units <= _UNITS:
        return _read_values(data, features, units, wanted, name)
    parts = []
    for begin in range(0, units, _UNITS):
        end = min(begin + _UNITS, units)
        some = features.take(slice(*np.searchsorted(features.message, [begin, end])))
        of_units = Fields(some.message - begin, some.number, some.kind, some.spans)
        parts.append(_read_values(data, of_units, end - begin, wanted, name))
    return _one_behind_the_other(parts)


def _read_values(data: Bytes, features: Fields, units: int, wanted: tuple[int, ...], name: str) -> Values:
    lists = _chosen(fields(data, features.spans, Wanted(INT64)), features)
    if not len(lists.message):
        return Values(0, np.empty(0, np.int64), np.zeros(units, np.int64))
    kinds = [int(lists.number[0])]
    if not (lists.number == kinds[0]).all():
        kinds = np.unique(lists.number).tolist()
    for kind in set(kinds).difference(wanted):
        bad = lists.take(lists.number == kind).spans
        accepted = " or ".join(NAMES[each] for each in wanted)
        raise UnfitRecords(bad.record, bad.start, f"feature {name!r} holds {NAMES[kind]} values, and not {accepted}")
    try:
        parts = [_READERS[kind](data, lists.only(lists.number == kind), units) for kind in kinds]
    except BadRecords as bad:
        bad.reasons = {record: (at, f"feature {name!r} {what}") for record, (at, what) in bad.reasons.items()}
        raise
    return parts[0] if len(parts) == 1 else _mixed(parts)


def _chosen(lists: Fields, features: Fields) -> Fields:
    """Return the lists of each unit that count: those after its last list of another kind."""
    lists = Fields(features.message[lists.message], lists.number, lists.kind, lists.spans)
    if len(lists.message) and (lists.message[1:] == lists.message[:-1]).any():
        kind_of_last = np.zeros(lists.message[-1] + 1, np.int64)
        kind_of_last[lists.message] = lists.number
        numbers = np.arange(len(lists.message))
        others = lists.number != kind_of_last[lists.message]
        last_other = np.full(len(kind_of_last), -1)
        last_other[lists.message[others]] = numbers[others]
        return lists.take(numbers > last_other[lists.message])
    return lists


def _floats(data: Bytes, lists: Fields, units: int) -> Values:
    def read(spans: Spans) -> tuple[npt.NDArray[np.generic], Ints]:
        sizes = spans.end - spans.start
        if (sizes % FLOAT_BYTES).any():
            bad = spans.take(sizes % FLOAT_BYTES > 0)
            raise BadRecords(bad.record, bad.start, "has a list of floats that is no multiple of 4 bytes")
        return bytes_of(gather(data, spans.start, spans.end))[0].view("<f4"), sizes // FLOAT_BYTES

    return _in_parts(FLOAT, data, lists, units, Wanted(1, (LENGTH, FOUR_BYTES)), read)


def _ints(data: Bytes, lists: Fields, units: int) -> Values:
    return _in_parts(INT64, data, lists, units, Wanted(1, (LENGTH, VARINT)), partial(packed_ints, data))


def _in_parts(
    kind: int,
    data: Bytes,
    lists: Fields,
    units: int,
    wanted: Wanted,
    read: Callable[[Spans], tuple[npt.NDArray[np.generic], Ints]],
) -> Values:
    """Return the numbers of some lists, whose fields are read part by part."""
    values: list[npt.NDArray[np.generic]] = []
    counts = np.zeros(0, np.int64)
    for found in field_parts(data, lists.spans, wanted):
        some, sizes = read(found.spans)
        summed = _summed(lists.message[found.message], sizes, units)
        counts = counts + summed if values else summed
        values.append(some)
    return Values(kind, np.concatenate(values) if len(values) > 1 else values[0], counts)


def _bytes(data: Bytes, lists: Fields, units: int) -> Values:
    values, counts = [], np.zeros(units, np.int64)
    for found in field_parts(data, lists.spans):
        values.append(gather(data, found.spans.start, found.spans.end))
        counts = counts + np.bincount(lists.message[found.message], minlength=units)
    return Values(BYTES, pa.concat_arrays(values) if len(values) > 1 else values[0], counts)


_READERS = {BYTES: _bytes, FLOAT: _floats, INT64: _ints}


def packed_ints(data: Bytes, spans: Spans) -> tuple[Ints, Ints]:
    """Return the integers in some spans, and the number of integers in each.

    Raises BadRecords if a span ends within an integer.
    """
    raw, bounds = bytes_of(gather(data, spans.start, spans.end))
    last = raw < 0x80  # noqa: PLR2004 - the last byte of a number
    cut = (bounds[1:] > bounds[:-1]) & ~np.append(last, [True])[bounds[1:] - 1]
    if not cut.any() and last.all():
        return raw.astype(np.int64), np.diff(bounds)
    values = np.empty(np.count_nonzero(last), np.uint64)
    before = np.zeros(len(bounds), np.int64)  # the numbers before each bound
    too_long, count, begin = np.flatnonzero(cut), 0, 0
    padded = np.append(raw, np.zeros(PADDING_BYTES, np.uint8))
    while begin < len(raw):
        end = _number_end(last, begin + _INTS_BYTES)
        ends = np.flatnonzero(last[begin:end]) + begin + 1
        begins = np.concatenate([[begin], ends[:-1]])[: len(ends)]
        values[count : count + len(ends)], behind = varints(padded, begins)
        if (wrong := begins[behind != ends]).size:
            too_long = np.union1d(too_long, np.searchsorted(bounds, wrong, side="right") - 1)
        within = slice(*np.searchsorted(bounds, [begin + 1, end + 1]))
        before[within] = count + np.searchsorted(ends, bounds[within], side="right")
        count += len(ends)
        begin = end
    if too_long.size:
        bad = spans.take(too_long)
        raise BadRecords(bad.record, bad.start, "has an integer without an end")
    return values.view(np.int64), np.diff(before)


def _number_end(last: npt.NDArray[np.bool_], at: int) -> int:
    """Return the position after the number that has a byte at a position."""
    more = np.flatnonzero(last[at : at + LONGEST_VARINT])
    return min(len(last), at + int(more[0]) + 1 if len(more) else at + LONGEST_VARINT)


def _summed(units_of: Ints, counts: Ints, units: int) -> Ints:
    if len(units_of) == units and (not units or bool((units_of[1:] != units_of[:-1]).all())):
        return counts
    return np.bincount(units_of, counts, units).astype(np.int64)


def _one_behind_the_other(parts: list[Values]) -> Values:
    """Return the values of some units, then those of others; integers and floats become float64."""
    counts = np.concatenate([part.counts for part in parts])
    some = [part for part in parts if part.kind] or parts[:1]
    kind = some[0].kind
    if any(part.kind != kind for part in some):
        return Values(FLOAT, np.concatenate([np.asarray(part.values, np.float64) for part in some]), counts)
    values = [part.values for part in some]
    return Values(kind, pa.concat_arrays(values) if kind == BYTES else np.concatenate(values), counts)


def _mixed(parts: list[Values]) -> Values:
    """Return floats and integers merged unit by unit as float64."""
    unit_of = np.concatenate([np.repeat(np.arange(len(part.counts)), part.counts) for part in parts])
    values = np.concatenate([np.asarray(part.values, np.float64) for part in parts])
    counts = np.sum([part.counts for part in parts], axis=0)
    return Values(FLOAT, values[np.argsort(unit_of, kind="stable")], counts)


@dataclass(frozen=True)
class Encoded:
    """Some encoded records in a buffer."""

    data: Bytes  # with `wire_format.PADDING_BYTES` behind the last record
    spans: Spans  # of the records; `spans.record` are their numbers, from 0

    def __len__(self) -> int:
        return len(self.spans)

    @cached_property
    def _fields(self) -> Fields:
        return fields(self.data, self.spans, Wanted(2))

    @cached_property
    def features(self) -> Entries:
        """The features of an ``Example``, and the context of a ``SequenceExample``."""
        return Entries(self.data, self.maps)

    @cached_property
    def maps(self) -> Spans:
        """The messages ``Features``, of which a record can have several."""
        return self._fields.where(1).spans

    @cached_property
    def feature_lists(self) -> Entries:
        """The feature lists of a ``SequenceExample``."""
        return Entries(self.data, self._fields.where(2).spans)
