"""``tf.train.Example`` and ``SequenceExample``: the values of each feature of the records in a buffer.

All records of a buffer are parsed at once (see `wire`), and only the requested features are decoded. The messages are
defined in ``tensorflow/core/example/{example,feature}.proto``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns.layout import bytes_of
from tensorflowonspark.tfrecords.wire import (
    FEW_MESSAGES,
    FOUR_BYTES,
    LENGTH,
    VARINT,
    BadRecords,
    Fields,
    Ints,
    Spans,
    UnfitRecords,
    fields,
    gather,
    joined,
    lengths,
    varints,
)

Bytes = npt.NDArray[np.uint8]

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers in `Feature`
NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}


@dataclass(frozen=True)
class Values:
    """The values of one feature for some units: records, or the steps of records.

    Attributes
    ----------
    kind : int
        `BYTES`, `FLOAT` or `INT64`; 0 if all are empty.
    values : array
        The values of all units: an Arrow binary array, or a numpy array of float32, int64 or float64.
    counts : array of int
        The number of values of each unit.
    single : bool
        Whether each unit is known to have one value.
    """

    kind: int
    values: "pa.Array | npt.NDArray[np.generic]"
    counts: Ints
    single: bool = False


def read_steps(data: Bytes, lists: Fields) -> tuple[Ints, Fields]:
    """Return the entry of each step of some ``FeatureList`` messages, and the ``Feature`` messages of the steps."""
    steps = fields(data, lists.spans).where(1)
    return lists.message[steps.message], Fields(np.arange(len(steps.message)), steps.number, steps.kind, steps.spans)


def read_values(data: Bytes, features: Fields, units: int, wanted: tuple[int, ...], name: str) -> Values:
    """Return the values of ``Feature`` messages.

    Parameters
    ----------
    data : array of uint8
        The buffer.
    features : Fields
        The messages; ``message`` is the number of the unit of each, in ascending order.
    units : int
        The number of units.
    wanted : tuple of int
        The accepted kinds. If some records have integers and others floats, all become float64.
    name : str
        The name of the feature, for errors.

    Returns
    -------
    Values
        The values of all units.

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
    found = fields(data, lists.spans)
    found = found.only((found.number == 1) & ((found.kind == LENGTH) | (found.kind == FOUR_BYTES)))
    sizes = found.spans.end - found.spans.start
    if (sizes % 4).any():
        bad = found.spans.take(sizes % 4 > 0)
        raise BadRecords(bad.record, bad.start, "has a list of floats that is no multiple of 4 bytes")
    values, _ = bytes_of(gather(data, found.spans.start, found.spans.end))
    return Values(FLOAT, values.view("<f4"), _summed(lists.message[found.message], sizes // 4, units))


def _ints(data: Bytes, lists: Fields, units: int) -> Values:
    found = fields(data, lists.spans)
    found = found.only((found.number == 1) & ((found.kind == LENGTH) | (found.kind == VARINT)))
    values, counts = packed_ints(data, found.spans)
    return Values(INT64, values, _summed(lists.message[found.message], counts, units))


def packed_ints(data: Bytes, spans: Spans) -> tuple[Ints, Ints]:
    """Return the integers in some spans, and the number of integers in each.

    Raises
    ------
    BadRecords
        If a span ends within an integer.
    """
    raw, bounds = bytes_of(gather(data, spans.start, spans.end))
    last = raw < 0x80  # noqa: PLR2004 - the last byte of a number
    cut = (bounds[1:] > bounds[:-1]) & ~np.append(last, [True])[bounds[1:] - 1]
    ends = np.flatnonzero(last) + 1
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    if not cut.any() and len(ends) == len(raw):
        return raw.astype(np.int64), np.diff(bounds)
    values, behind = varints(np.append(raw, np.zeros(10, np.uint8)), begins)
    too_long = np.unique(np.searchsorted(bounds, begins[behind != ends], side="right") - 1)
    if cut.any() or too_long.size:
        bad = spans.take(np.union1d(np.flatnonzero(cut), too_long))
        raise BadRecords(bad.record, bad.start, "has an integer without an end")
    return values.view(np.int64), np.diff(np.concatenate([[0], np.cumsum(last)])[bounds])


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
    """Return floats and integers merged unit by unit as float64."""
    unit_of = np.concatenate([np.repeat(np.arange(len(part.counts)), part.counts) for part in parts])
    values = np.concatenate([np.asarray(part.values, np.float64) for part in parts])
    counts = np.sum([part.counts for part in parts], axis=0)
    return Values(FLOAT, values[np.argsort(unit_of, kind="stable")], counts)


_FIELD_1, _FIELD_2 = 1 << 3 | LENGTH, 2 << 3 | LENGTH  # the tags of fields with a length


@dataclass(frozen=True)
class Encoded:
    """Some encoded records in a buffer.

    Attributes
    ----------
    data : array of uint8
        The buffer, with `wire.PADDING_BYTES` behind the last record.
    spans : Spans
        The spans of the records; ``spans.record`` are their numbers, from 0.
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
        return Entries(self.data, self.maps)

    @cached_property
    def maps(self) -> Spans:
        """The messages ``Features``, of which a record can have several."""
        return self._fields.where(1).spans

    @cached_property
    def feature_lists(self) -> "Entries":
        """The feature lists of a ``SequenceExample``."""
        return Entries(self.data, self._fields.where(2).spans)


class Entries:
    """The entries of maps from names to messages, by name.

    Most files are written by one program, whose records have the same features in the same order. So the first entries
    of all records are parsed together, then the second ones, and so on. A slower path parses any other encoding that
    Protocol Buffers allow.

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
        self._mixed: list[tuple[Spans, _Chunk]] = []  # the names of entries, in their order, and their messages
        unusual = [spans for spans in self._read_usual(maps) if len(spans)]
        for spans in unusual:
            self._read_any(spans)
        if self._mixed:
            self._sort()

    @property
    def names(self) -> list[str]:
        """The names of all entries."""
        return list(self._found)

    def of(self, *names: str) -> tuple[Ints, Fields]:
        """Return the records that have an entry of a name, or one of several, and the messages of the entries.

        The ``message`` of each is the position of its record in the first array. An entry may have several messages,
        which are merged. A record with entries of two of the names is a bad one.
        """
        chunks = {name: _joined(self._found[name]) for name in names if name in self._found}
        for (first, one), (second, other) in combinations(chunks.items(), 2):
            if (both := np.isin(other.spans.record, one.spans.record)).any():
                bad = other.spans.take(both)
                what = f"features {first!r} and {second!r} differ only in case: rename one, or set caseSensitive=true"
                raise BadRecords(bad.record, bad.start, what)
        chunk = _joined(list(chunks.values()))
        records = chunk.spans.record
        units = np.arange(len(records))
        if len(records) and not (records[1:] > records[:-1]).all():
            # The last of a record's entries of one name counts.
            of_record = np.append(records[1:] != records[:-1], [True])
            chunk = chunk.take(np.isin(chunk.entry, chunk.entry[of_record]))
            records = records[of_record]
            units = np.searchsorted(records, chunk.spans.record)
        return records, Fields(units, np.ones_like(units), np.full_like(units, LENGTH), chunk.spans)

    def _read_usual(self, maps: Spans) -> Iterator[Spans]:
        """Read the maps in the usual encoding entry by entry; yield the spans that are left."""
        rest = maps
        while len(rest) > FEW_MESSAGES:
            begin, end = lengths(self.data, rest.start + 1)
            good = (self.data[rest.start] == _FIELD_1) & (end >= 0) & (end <= rest.end)
            if not good.all():
                yield rest.take(~good)
                rest, begin, end = rest.take(good), begin[good], end[good]
            yield from self._read_pairs(rest.start, Spans(begin, end, rest.record))
            rest = Spans(end, rest.end, rest.record)
            further = rest.start < rest.end
            if not further.all():
                rest = rest.take(further)
        yield rest

    def _read_pairs(self, frame: Ints, pairs: Spans) -> Iterator[Spans]:
        """Read the entries that are a name and one message; yield the others, with their frames."""
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
        """Return the name in the spans if all hold the same one, or None."""
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
            return None  # the slower path reports it

    def _read_any(self, maps: Spans) -> None:
        """Read the entries of maps, or the rest of maps, in any encoding."""
        pairs = fields(self.data, maps).where(1).spans
        parts = fields(self.data, pairs)
        keys, values = parts.where(1), parts.where(2)
        _decoded(self.data, keys.spans)  # a key that does not count must be valid too
        names = Spans(pairs.start.copy(), pairs.start.copy(), pairs.record)
        names.start[keys.message], names.end[keys.message] = keys.spans.start, keys.spans.end  # the last of several
        # An entry without a message stands for an empty message.
        without = np.setdiff1d(np.arange(len(pairs)), values.message)
        empty = Spans(pairs.end[without], pairs.end[without], pairs.record[without])
        entry = names.start[np.concatenate([values.message, without])]
        chunk = _Chunk(entry, joined([values.spans, empty]))
        self._mixed.append((names, chunk.take(np.argsort(entry, kind="stable"))))

    def _sort(self) -> None:
        """Assign the entries that were set aside to their names."""
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
    """The messages of some entries, each with a number that identifies its entry."""

    entry: Ints
    spans: Spans

    def take(self, which: npt.NDArray[np.generic]) -> "_Chunk":
        return _Chunk(self.entry[which], self.spans.take(which))


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """Return the chunks as one, in the order of the buffer."""
    if len(chunks) == 1:
        return chunks[0]
    entry = np.concatenate([np.empty(0, np.int64), *(chunk.entry for chunk in chunks)])
    return _Chunk(entry, joined([chunk.spans for chunk in chunks])).take(np.argsort(entry, kind="stable"))


def _decoded(data: Bytes, names: Spans) -> tuple[list[str], Ints]:
    """Return the distinct names in some spans, and the index of each span's name."""
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
