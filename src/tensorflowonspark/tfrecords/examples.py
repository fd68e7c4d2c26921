"""``tf.train.Example`` and ``SequenceExample``: from the records of a buffer to the values of each feature.

Source of the messages: ``tensorflow/core/example/{example,feature}.proto``. All is done for all records of a buffer at
once (see `wire`), and only for the features that are asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.tfrecords.wire import (
    FEW_MESSAGES,
    FOUR_BYTES,
    LENGTH,
    VARINT,
    BadRecords,
    Fields,
    Ints,
    Spans,
    fields,
    gather,
    joined,
    lengths,
    varints,
    within,
)

__all__ = ["BYTES", "FLOAT", "INT64", "NAMES", "Entries", "Records", "Values", "read_steps", "read_values"]

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


_FIELD_1, _FIELD_2 = 1 << 3 | LENGTH, 2 << 3 | LENGTH  # the tags of fields with a length


@dataclass(frozen=True)
class Records:
    """Some records in a buffer.

    Attributes
    ----------
    data : array of uint8
        The buffer, with `wire.PADDING_BYTES` behind the last record.
    spans : Spans
        Where the records are; ``spans.record`` are their numbers, from 0.
    """

    data: Bytes
    spans: Spans

    def __len__(self) -> int:
        return len(self.spans)

    @cached_property
    def _fields(self) -> Fields:
        return fields(self.data, self.spans)

    @cached_property
    def features(self) -> "Entries":
        """The features of an ``Example``, and the context of a ``SequenceExample``."""
        return Entries(self.data, self._fields.where(1).spans)

    @cached_property
    def feature_lists(self) -> "Entries":
        """The feature lists of a ``SequenceExample``."""
        return Entries(self.data, self._fields.where(2).spans)


class Entries:
    """The entries of maps from names to messages, by name.

    Most files have records that were written by one program, with the same features in the same order: so the first
    entries of all records are taken together, then the second ones, and so on. What does not look as usual, in whatever
    way Protocol Buffers allow, goes a slower road.

    Parameters
    ----------
    data : array of uint8
        The buffer.
    maps : Spans
        The messages ``Features`` or ``FeatureLists``.
    """

    def __init__(self, data: Bytes, maps: Spans) -> None:
        self.data = data
        self._found: dict[str, list[_Chunk]] = {}
        self._mixed: list[tuple[Spans, _Chunk]] = []  # entries' names, in their order, and messages
        odd = [spans for spans in self._usual(maps) if len(spans)]
        for spans in odd:
            self._any(spans)
        if self._mixed:
            self._sort()

    @property
    def names(self) -> list[str]:
        """The names that there are."""
        return list(self._found)

    def of(self, name: str) -> tuple[Ints, Fields]:
        """Return the records that have an entry of a name, and the entries' messages.

        The ``message`` of each of these is the number of its record in the first array. An entry may have several,
        which stand for all that is in them.
        """
        chunk = _joined(self._found.get(name, []))
        records = chunk.spans.record
        units = np.arange(len(records))
        if len(records) and not (records[1:] > records[:-1]).all():
            # Of several entries of a name in a record the last one counts.
            of_record = np.append(records[1:] != records[:-1], [True])
            chunk = chunk.take(np.isin(chunk.entry, chunk.entry[of_record]))
            records = records[of_record]
            units = np.searchsorted(records, chunk.spans.record)
        return records, Fields(units, np.ones_like(units), np.full_like(units, LENGTH), chunk.spans)

    def _usual(self, maps: Spans) -> Iterator[Spans]:
        """Take one entry of each map after the other, where they are written as usual; yield what is left."""
        live = maps
        while len(live) > FEW_MESSAGES:
            begin, end = lengths(self.data, live.start + 1)
            good = (self.data[live.start] == _FIELD_1) & (end >= 0) & (end <= live.end)
            if not good.all():
                yield live.take(~good)
                live, begin, end = live.take(good), begin[good], end[good]
            yield from self._pairs(live.start, Spans(begin, end, live.record))
            live = Spans(end, live.end, live.record)
            further = live.start < live.end
            if not further.all():
                live = live.take(further)
        yield live

    def _pairs(self, frame: Ints, pairs: Spans) -> Iterator[Spans]:
        """Take entries that are a name and one message; yield the others, with their frames."""
        name, tag = lengths(self.data, np.minimum(pairs.start + 1, pairs.end))
        tag = np.where(tag < pairs.end, tag, pairs.end)
        value, end = lengths(self.data, tag + 1)
        good = (self.data[pairs.start] == _FIELD_1) & (tag >= 0) & (self.data[tag] == _FIELD_2) & (end == pairs.end)
        if not good.all():
            yield Spans(frame, pairs.end, pairs.record).take(~good)
            frame, pairs, name, tag, value = frame[good], pairs.take(good), name[good], tag[good], value[good]
        if not len(pairs):
            return
        chunk = _Chunk(name, Spans(value, pairs.end, pairs.record))
        if (same := self._same(name, tag)) is None:
            self._mixed.append((Spans(name, tag, pairs.record), chunk))
        else:
            self._found.setdefault(same, []).append(chunk)

    def _same(self, start: Ints, end: Ints) -> str | None:
        """Return the name that all these spans hold, if it is one."""
        size = int(end[0] - start[0])
        if size == 0 or (end - start != size).any():
            return None
        rows = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))
        first = bytes(self.data[start[0] : end[0]])
        if rows[start].tobytes() != first * len(start):
            return None
        try:
            return first.decode()
        except UnicodeDecodeError:
            return None  # it is found again with the others, and refused there

    def _any(self, maps: Spans) -> None:
        """Take the entries of parts of maps that may be written in any way."""
        pairs = fields(self.data, maps).where(1).spans
        parts = fields(self.data, pairs)
        keys, values = parts.where(1), parts.where(2)
        _decoded(self.data, keys.spans)  # those that do not count must be names, too
        names = Spans(pairs.start.copy(), pairs.start.copy(), pairs.record)
        names.start[keys.message], names.end[keys.message] = keys.spans.start, keys.spans.end  # the last of several
        # An entry without a message has an empty one.
        without = np.setdiff1d(np.arange(len(pairs)), values.message)
        empty = Spans(pairs.end[without], pairs.end[without], pairs.record[without])
        entry = names.start[np.concatenate([values.message, without])]
        chunk = _Chunk(entry, joined([values.spans, empty]))
        self._mixed.append((names, chunk.take(np.argsort(entry, kind="stable"))))

    def _sort(self) -> None:
        """Find out what the entries that were set aside are named."""
        names = joined([names for names, _ in self._mixed])
        names = names.take(np.argsort(names.start, kind="stable"))
        chunk = _joined([chunk for _, chunk in self._mixed])
        decoded, codes = _decoded(self.data, names)
        of_piece = codes[np.searchsorted(names.start, chunk.entry)]
        # A stable sort of small integers takes one step for each.
        order = np.argsort(of_piece.astype(np.uint16 if len(decoded) < 1 << 16 else np.int64), kind="stable")
        bounds = np.searchsorted(of_piece[order], np.arange(len(decoded) + 1))
        for code, name in enumerate(decoded):
            self._found.setdefault(name, []).append(chunk.take(order[bounds[code] : bounds[code + 1]]))


@dataclass(frozen=True)
class _Chunk:
    """Some messages that entries name, each with a number that tells which entry it is of."""

    entry: Ints
    spans: Spans

    def take(self, which: npt.NDArray[np.generic]) -> "_Chunk":
        return _Chunk(self.entry[which], self.spans.take(which))


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """Put chunks together, in the order in which they are written."""
    if len(chunks) == 1:
        return chunks[0]
    entry = np.concatenate([np.empty(0, np.int64), *(chunk.entry for chunk in chunks)])
    return _Chunk(entry, joined([chunk.spans for chunk in chunks])).take(np.argsort(entry, kind="stable"))


def _decoded(data: Bytes, names: Spans) -> tuple[list[str], Ints]:
    """Return the distinct names that some spans hold, and which of them each holds."""
    encoded = gather(data, names.start, names.end).dictionary_encode()
    codes = encoded.indices.to_numpy()
    distinct = []
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        try:
            distinct.append(name.decode())
        except UnicodeDecodeError:
            bad = names.take(codes == code)
            raise BadRecords(bad.record, bad.start, f"the name of a feature is no UTF-8: {name!r}") from None
    return distinct, codes
