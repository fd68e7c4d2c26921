"""``tf.train.Example`` and ``SequenceExample``: from the records of a buffer to the values of each feature.

Source of the messages: ``tensorflow/core/example/{example,feature}.proto``. All is done for all records of a buffer at
once (see `wire`), and only for the features that are asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tensorflowonspark.tfrecords.spans import BadRecords, Ints, Spans, gather, joined
from tensorflowonspark.tfrecords.wire import FEW_MESSAGES, LENGTH, Fields, fields, lengths

__all__ = ["Entries", "Records"]

Bytes = npt.NDArray[np.uint8]

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
