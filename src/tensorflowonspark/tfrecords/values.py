"""The values of features: bytes, floats and whole numbers, read from their lists for all records at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.tfrecords.spans import BadRecords, Ints, gather, within
from tensorflowonspark.tfrecords.wire import FOUR_BYTES, LENGTH, VARINT, Fields, fields, varints

__all__ = ["BYTES", "FLOAT", "INT64", "NAMES", "Values", "read_steps", "read_values"]

Bytes = npt.NDArray[np.uint8]

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers in `Feature`
NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}


@dataclass(frozen=True)
class Values:
    """The values of one feature: of some units, each a feature of a record, or of a step of one.

    Attributes
    ----------
    kind : int
        `BYTES`, `FLOAT` or `INT64`; 0 if all are empty.
    values : array
        All of them, one after the other: a binary array of Arrow's, or float32, int64 or float64 in numpy.
    counts : array of int
        How many each unit has.
    """

    kind: int
    values: "pa.Array | npt.NDArray[np.generic]"
    counts: Ints


def read_steps(data: Bytes, lists: Fields) -> tuple[Ints, Fields]:
    """Return how many steps each of some ``FeatureList`` has by entry, and the steps' ``Feature`` messages."""
    steps = fields(data, lists.spans).where(1)
    return lists.message[steps.message], Fields(np.arange(len(steps.message)), steps.number, steps.kind, steps.spans)


def read_values(data: Bytes, features: Fields, units: int, wanted: tuple[int, ...], name: str) -> Values:
    """Return the values of ``Feature`` messages.

    Parameters
    ----------
    data : array of uint8
        The buffer.
    features : Fields
        The messages; ``message`` is the number of the unit that each is of, in ascending order.
    units : int
        How many there are.
    wanted : tuple of int
        The kinds that are accepted. Whole numbers become float64 where others are floats.
    name : str
        The feature's, for errors.

    Raises
    ------
    BadRecords
        If a value can't be read, or is of another kind.
    """
    found = fields(data, features.spans)
    lists = _chosen(found.only((found.number <= INT64) & (found.kind == LENGTH)), features)
    if not len(lists.message):
        return Values(0, np.empty(0, np.int64), np.zeros(units, np.int64))
    kinds = [int(lists.number[0])]
    if not (lists.number == kinds[0]).all():
        kinds = np.unique(lists.number).tolist()
    for kind in set(kinds).difference(wanted):
        bad = lists.take(lists.number == kind).spans
        accepted = " or ".join(NAMES[each] for each in wanted)
        raise BadRecords(bad.record, bad.start, f"feature {name!r} holds {NAMES[kind]} values, and not {accepted}")
    try:
        parts = [_READERS[kind](data, lists.only(lists.number == kind), units) for kind in kinds]
    except BadRecords as bad:
        bad.reasons = {record: (at, f"feature {name!r} {what}") for record, (at, what) in bad.reasons.items()}
        raise
    return parts[0] if len(parts) == 1 else _mixed(parts)


def _chosen(lists: Fields, features: Fields) -> Fields:
    """Return of each unit's lists those that count, which are those behind the last one of another kind."""
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
    found = fields(data, lists.spans)
    found = found.only((found.number == 1) & ((found.kind == LENGTH) | (found.kind == FOUR_BYTES)))
    sizes = found.spans.end - found.spans.start
    if (sizes % 4).any():
        bad = found.spans.take(sizes % 4 > 0)
        raise BadRecords(bad.record, bad.start, "has a list of floats that is no multiple of 4 bytes")
    values, _ = within(gather(data, found.spans.start, found.spans.end))
    return Values(FLOAT, values.view("<f4"), _summed(lists.message[found.message], sizes // 4, units))


def _ints(data: Bytes, lists: Fields, units: int) -> Values:
    found = fields(data, lists.spans)
    found = found.only((found.number == 1) & ((found.kind == LENGTH) | (found.kind == VARINT)))
    raw, bounds = within(gather(data, found.spans.start, found.spans.end))
    last = raw < 0x80  # noqa: PLR2004 - the byte of a number after which no more follows
    cut = (bounds[1:] > bounds[:-1]) & ~np.append(last, [True])[bounds[1:] - 1]
    ends = np.flatnonzero(last) + 1
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    if not cut.any() and len(ends) == len(raw):
        return Values(INT64, raw.astype(np.int64), _summed(lists.message[found.message], np.diff(bounds), units))
    values, behind = varints(np.append(raw, np.zeros(10, np.uint8)), begins)
    too_long = np.unique(np.searchsorted(bounds, begins[behind != ends], side="right") - 1)
    if cut.any() or too_long.size:
        bad = found.spans.take(np.union1d(np.flatnonzero(cut), too_long))
        raise BadRecords(bad.record, bad.start, "has an integer without an end")
    counts = np.diff(np.concatenate([[0], np.cumsum(last)])[bounds])
    return Values(INT64, values.view(np.int64), _summed(lists.message[found.message], counts, units))


def _bytes(data: Bytes, lists: Fields, units: int) -> Values:
    found = fields(data, lists.spans).where(1)
    values = gather(data, found.spans.start, found.spans.end)
    return Values(BYTES, values, np.bincount(lists.message[found.message], minlength=units))


_READERS = {BYTES: _bytes, FLOAT: _floats, INT64: _ints}


def _summed(units_of: Ints, counts: Ints, units: int) -> Ints:
    if len(units_of) == units and (not units or bool((units_of[1:] != units_of[:-1]).all())):
        return counts
    return np.bincount(units_of, counts, units).astype(np.int64)


def _mixed(parts: list[Values]) -> Values:
    """Put floats and whole numbers together, unit by unit."""
    unit_of = np.concatenate([np.repeat(np.arange(len(part.counts)), part.counts) for part in parts])
    values = np.concatenate([np.asarray(part.values, np.float64) for part in parts])
    counts = np.sum([part.counts for part in parts], axis=0)
    return Values(FLOAT, values[np.argsort(unit_of, kind="stable")], counts)
