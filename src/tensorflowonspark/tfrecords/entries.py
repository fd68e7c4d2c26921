"""The entries of the maps in ``tf.train.Example`` and ``SequenceExample``: the message of each feature, by its name."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.tfrecords.fields import FEW_MESSAGES, Fields, fields
from tensorflowonspark.tfrecords.scan import Wanted
from tensorflowonspark.tfrecords.wire_format import LENGTH, BadRecords, Bytes, Ints, Spans, gather, joined, lengths

_FIELD_1, _FIELD_2 = 1 << 3 | LENGTH, 2 << 3 | LENGTH  # the tags of fields with a length
_PAIRS = 1 << 16  # entries that are parsed at once: bounds the memory of the fields' positions
_SHOWN_BYTES = 100  # of a name that is none


class Entries:
    """The entries of maps from names to messages, ``Features`` or ``FeatureLists``, by name.

    Most files are written by one program, whose records have the same features in the same order. So the first entries
    of all records are parsed together, then the second ones, and so on. A slower path parses any other encoding that
    Protocol Buffers allow.
    """

    def __init__(self, data: Bytes, maps: Spans) -> None:
        self.data = data
        self._found: dict[str, list[_Chunk]] = {}
        self._mixed: list[tuple[Spans, _Chunk]] = []  # the names of entries, in their order, and their messages
        unusual = [spans for spans in self._read_usual(maps) if len(spans)]
        for spans in unusual:
            self._read_any(spans)
        self._sorted = self._sort() if self._mixed else None

    @property
    def names(self) -> list[str]:
        """The names of all entries."""
        return list(dict.fromkeys([*self._found, *(self._sorted.names if self._sorted else ())]))

    def of(self, *names: str) -> tuple[Ints, Fields]:
        """Return the records that have an entry of a name, or one of several, and the messages of the entries.

        The ``message`` of each is the position of its record in the first array. An entry may have several messages,
        which are merged. A record with entries of two of the names is a bad one.
        """
        others = self._sorted
        found = {name: [*self._found.get(name, ()), *(others.of(name) if others else ())] for name in names}
        chunks = {name: _joined(chunks) for name, chunks in found.items() if chunks}
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
        pairs = fields(self.data, maps).spans
        for begin in range(0, len(pairs), _PAIRS):
            self._read_any_pairs(pairs.take(slice(begin, begin + _PAIRS)))

    def _read_any_pairs(self, pairs: Spans) -> None:
        parts = fields(self.data, pairs, Wanted(2))
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

    def _sort(self) -> "_Sorted":
        """Return the entries that were set aside by their names."""
        names = joined([names for names, _ in self._mixed])
        names = names.take(np.argsort(names.start, kind="stable"))
        chunk = _joined([chunk for _, chunk in self._mixed])
        self._mixed = []
        distinct, codes = _decoded(self.data, names)
        of_piece = codes[np.searchsorted(names.start, chunk.entry)]
        # A stable sort of small integers takes one step for each.
        order = np.argsort(of_piece.astype(np.uint16) if len(distinct) < 1 << 16 else of_piece, kind="stable")
        bounds = np.searchsorted(of_piece[order], np.arange(len(distinct) + 1))
        return _Sorted(distinct, chunk.take(order), bounds)


@dataclass(frozen=True)
class _Chunk:
    """The messages of some entries, each with a number that identifies its entry."""

    entry: Ints
    spans: Spans

    def take(self, which: npt.NDArray[np.generic]) -> "_Chunk":
        return _Chunk(self.entry[which], self.spans.take(which))


@dataclass(frozen=True)
class _Sorted:
    """The messages of entries, name by name: a record can have millions of names, of which a reader wants few."""

    distinct: pa.Array
    chunk: _Chunk
    bounds: Ints

    @property
    def names(self) -> Iterator[str]:
        return (each.as_py() for each in self.distinct)

    def of(self, name: str) -> list[_Chunk]:
        code = pc.index(self.distinct, pa.scalar(name, self.distinct.type)).as_py()
        return [self.chunk.take(np.arange(*self.bounds[code : code + 2]))] if code >= 0 else []


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """Return the chunks as one, in the order of the buffer."""
    if len(chunks) == 1:
        return chunks[0]
    entry = np.concatenate([np.empty(0, np.int64), *(chunk.entry for chunk in chunks)])
    return _Chunk(entry, joined([chunk.spans for chunk in chunks])).take(np.argsort(entry, kind="stable"))


def _decoded(data: Bytes, names: Spans) -> tuple[pa.Array, Ints]:
    """Return the distinct names in some spans as an array of strings, and the index of each span's name."""
    encoded = gather(data, names.start, names.end).dictionary_encode()
    codes = encoded.indices.to_numpy()
    try:
        return encoded.dictionary.cast(
            pa.large_string() if encoded.dictionary.type == pa.large_binary() else pa.string()
        ), codes
    except pa.ArrowInvalid:
        for code, name in enumerate(encoded.dictionary):
            try:
                name.as_py().decode()
            except UnicodeDecodeError:
                bad = names.take(codes == code)
                what = f"the name of a feature is no UTF-8: {name.as_py()[:_SHOWN_BYTES]!r}"
                raise BadRecords(bad.record, bad.start, what) from None
        raise
