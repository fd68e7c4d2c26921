"""The features of records that are encoded as all common writers do: read by position, without a parse of each.

In such a record each feature is a name and one list, whose values are packed. Most files are written by one program, so
all records hold the same features in the same order, and a feature begins with the same bytes in all of them, except
for lengths. One of them is parsed, its *head* (all bytes before its values), and the heads of the others are compared
with it. What differs in any way is left to `examples`, which reads any encoding.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns.layout import bytes_of
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64, Values, packed_ints
from tensorflowonspark.tfrecords.heads import Head, Mask, Part, Words, find_head, match_head
from tensorflowonspark.tfrecords.wire_format import FLOAT_BYTES, BadRecords, Bytes, Ints, Spans, gather, numbers_at

_MOST_ODD = 8  # records that can't be a pattern for others, before all that are left are taken to be odd
_TRIED_STEPS, _LEAST_SHARE = 8, 0.25  # of the records that a step reads: below, `examples` is faster
_WORD = 8  # bytes
_LOW, _HIGH = 0x7F7F7F7F7F7F7F7F, 0x8080808080808080  # the value bits and the continuation bits of a word of varints


class UniformRecords:
    """The features of some records by name."""

    def __init__(self, data: Bytes, record: Ints, parts: dict[str, Part], names: Iterable[str]) -> None:
        self.names = names
        self._data = data
        self._record = record
        self._parts = parts
        self._ones = np.ones(len(record), np.int64)

    def values(self, name: str) -> tuple[Ints, Values]:
        """Return the numbers of the records that have a feature, and its values.

        Raises BadRecords if a value can't be read.
        """
        part = self._parts.get(name)
        if part is None:
            return self._record[:0], Values(0, np.empty(0, np.int64), np.zeros(0, np.int64))
        present = self._record if part.rows is None else self._record[part.rows]
        try:
            return present, _READERS[part.kind](self._data, part, present, self._ones[: len(present)])
        except BadRecords as bad:
            bad.reasons = {record: (at, f"feature {name!r} {what}") for record, (at, what) in bad.reasons.items()}
            raise


def read_uniform(data: Bytes, maps: Spans, kinds: Mapping[str, tuple[int, ...]]) -> tuple[UniformRecords, Mask]:
    """Return the features of the records that are alike, and which records these are.

    Of features of other names than `kinds` has, the values are skipped. The other records are odd, and `examples` reads
    them. The buffer has `wire_format.PADDING_BYTES` after the last record.
    """
    walk = _Walk(data, maps, kinds)
    walk.run()
    good = ~walk.odd
    keep = None if good.all() else good
    parts = {name: _ordered(parts, keep) for name, parts in walk.found.items() if name in kinds}
    return UniformRecords(data, maps.record, parts, walk.found), good


class _Walk:
    """Steps from feature to feature in all records at once.

    A step reads one feature in all records in which it is the next. The others wait until their next one is read.
    """

    def __init__(self, data: Bytes, maps: Spans, kinds: Mapping[str, tuple[int, ...]]) -> None:
        self._data = data
        self._kinds = kinds
        self._count = len(maps)
        self._rows: Ints | None = None  # the records with unread features; None for all
        self._at, self._end = maps.start, maps.end
        self.odd = np.zeros(len(maps), np.bool_)
        self.found: dict[str, list[Part]] = {}

    def run(self) -> None:
        """Read all features."""
        self._keep(self._at < self._end)
        odd = steps = read = 0
        while len(self._at):
            # The longest rest is probably that of a record that has a feature which others lack.
            row = 0 if self._rows is None else int(np.argmax(self._end - self._at))
            head = find_head(self._data, int(self._at[row]), int(self._end[row]))
            if head is None or not self._fits(head):
                odd += 1
                self._drop(np.arange(len(self._at)) if odd > _MOST_ODD else np.array([row]))
                continue
            steps += 1
            read += self._step(head)
            if steps > _TRIED_STEPS and read < _LEAST_SHARE * steps * self._count:
                self._drop(np.arange(len(self._at)))
        for parts in self.found.values():
            if len(parts) > 1:  # a record with two features of one name is odd
                rows, times = np.unique(np.concatenate([_rows_of(part) for part in parts]), return_counts=True)
                self.odd[rows[times > 1]] = True

    def _fits(self, head: Head) -> bool:
        """Return whether the kind is accepted, and that of the other records."""
        found = self.found.get(head.name)
        return head.kind in self._kinds.get(head.name, (head.kind,)) and (not found or found[0].kind == head.kind)

    def _step(self, head: Head) -> int:
        """Read the next feature where it has a head like this; return the number of records."""
        part, same = match_head(self._data, self._at, self._end, head)
        rows = self._rows
        if head.size <= _WORD and head.kind != BYTES and head.name in self._kinds:
            words = numbers_at(self._data, np.minimum(part.start, len(self._data) - _WORD), "<u8")
            part = part._replace(words=words)
        further = part.end
        if same is None and (further < self._end).all():  # as in most steps: no record is left behind, and none ends
            self.found.setdefault(head.name, []).append(part if rows is None else part._replace(rows=rows))
            self._at = further
            return len(further)
        same = further <= self._end if same is None else same
        if not same.all():
            part = part.take(same)
            further = np.where(same, further, self._at)
        if rows is not None:
            part = part._replace(rows=rows if part.rows is None else rows[part.rows])
        self.found.setdefault(head.name, []).append(part)
        self._at = further
        self._keep(self._at < self._end)
        return len(part.start)

    def _keep(self, which: Mask) -> None:
        if not which.all():
            self._rows = np.flatnonzero(which) if self._rows is None else self._rows[which]
            self._at, self._end = self._at[which], self._end[which]

    def _drop(self, which: Ints) -> None:
        rows = np.arange(self._count) if self._rows is None else self._rows
        self.odd[rows[which]] = True
        self._keep(~np.isin(np.arange(len(rows)), which))


def _rows_of(part: Part) -> Ints:
    return np.arange(len(part.start)) if part.rows is None else part.rows


def _ordered(parts: list[Part], good: Mask | None) -> Part:
    """Return the values of one feature in the order of the records, without those of odd records."""
    part = parts[0]
    if len(parts) > 1:
        rows = np.concatenate([_rows_of(each) for each in parts])
        start = np.concatenate([each.start for each in parts])
        end = np.concatenate([each.end for each in parts])
        order = np.argsort(rows, kind="stable")
        size = part.size if all(each.size == part.size for each in parts) else None
        part = Part(part.kind, rows[order], start[order], end[order], size)
    return part if good is None else part.take(good[_rows_of(part)])


def _copied(data: Bytes, part: Part) -> Bytes:
    """Return the values of all records, of one size each, one behind the other."""
    if not part.size:
        return np.empty(0, np.uint8)
    rows: Bytes = np.ndarray((len(data) - part.size + 1,), f"V{part.size}", data, 0, (1,))[part.start].view(np.uint8)
    return rows


def _floats(data: Bytes, part: Part, record: Ints, ones: Ints) -> Values:  # noqa: ARG001 - as all readers are called
    if part.size is None:
        values, bounds = bytes_of(gather(data, part.start, part.end))
        return Values(FLOAT, values.view("<f4"), np.diff(bounds) // FLOAT_BYTES)
    if part.size == FLOAT_BYTES:
        words = numbers_at(data, part.start, "<u4") if part.words is None else part.words.astype("<u4")
        return Values(FLOAT, words.view("<f4"), ones, True)
    return Values(FLOAT, _copied(data, part).view("<f4"), ones * (part.size // FLOAT_BYTES))


def _ints(data: Bytes, part: Part, record: Ints, ones: Ints) -> Values:
    sizes = part.end - part.start if part.size is None else np.array([part.size])
    if len(record) and sizes.min() > 0 and (longest := int(sizes.max())) <= _WORD:
        words = numbers_at(data, part.start, "<u8") if part.words is None else part.words
        used = np.uint64((1 << 64) - 1) >> (8 * (_WORD - sizes)).astype(np.uint64)
        # One number each, if of its bytes the last one alone does not say that another follows.
        if (words & (used & np.uint64(_HIGH)) == used >> np.uint64(8) & np.uint64(_HIGH)).all():
            folded = _folded(words & (used & np.uint64(_LOW)), longest)
            return Values(INT64, folded.view(np.int64), ones, True)
    values, counts = packed_ints(data, Spans(part.start, part.end, record))
    return Values(INT64, values, counts)


def _folded(words: Words, longest: int) -> Words:
    """Return the numbers of 7 bits in each byte of words, of which `longest` are used."""
    bits, width = 7, 8
    while width < 8 * longest:
        low = sum(((1 << bits) - 1) << at for at in range(0, 64, 2 * width))
        words = (words & np.uint64(low)) | ((words >> np.uint64(width - bits)) & np.uint64(low << bits & (1 << 64) - 1))
        bits, width = 2 * bits, 2 * width
    return words


def _bytes(data: Bytes, part: Part, record: Ints, ones: Ints) -> Values:
    total = (part.size or 0) * len(record)
    if not part.size or total > np.iinfo(np.int32).max:
        return Values(BYTES, gather(data, part.start, part.end), ones, True)
    offsets = np.arange(0, total + 1, part.size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_copied(data, part))]
    return Values(BYTES, pa.Array.from_buffers(pa.binary(), len(record), buffers), ones, True)


_READERS = {BYTES: _bytes, FLOAT: _floats, INT64: _ints}
