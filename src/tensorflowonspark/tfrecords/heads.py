"""The heads of features: all bytes before their values, parsed in one record and compared with those of others."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64
from tensorflowonspark.tfrecords.wire_format import FLOAT_BYTES, LENGTH, LONGEST_VARINT, Bytes, Ints, lengths, varint

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.unsignedinteger]

_FIELD_1, _FIELD_2 = 1 << 3 | LENGTH, 2 << 3 | LENGTH  # the tags of fields with a length
_KINDS = {kind << 3 | LENGTH: kind for kind in (BYTES, FLOAT, INT64)}  # by the tags
_ONE_BYTE = 0x7F  # the largest length in one byte
_LONGEST_NAME = 1 << 10  # bytes: a head is compared with each record's bytes, and a longer one pays no more


@dataclass(frozen=True)
class Head:
    """The bytes of one feature before its values."""

    name: str
    kind: int  # `BYTES`, `FLOAT` or `INT64`
    data: bytes  # the head itself
    lengths: tuple[int, ...]  # the positions of the lengths that include the values; the last: of these alone
    size: int  # of the values, in bytes
    most: int  # bytes of values with which all lengths take one byte; negative if some take more
    common: bytes  # the head without the size of the values in its lengths, if they take one byte


class Part(NamedTuple):
    """The values of one feature in some records, whose positions are `rows`: None for all of them.

    The lengths of the values are `size`, if all are equal. `words` are the first 8 bytes of each, read with the head
    while it is in the processor's cache.
    """

    kind: int
    rows: Ints | None
    start: Ints
    end: Ints
    size: int | None = None
    words: Words | None = None

    def take(self, which: Mask) -> "Part":
        """Return the values in some of the records."""
        rows = np.flatnonzero(which) if self.rows is None else self.rows[which]
        words = None if self.words is None else self.words[which]
        return Part(self.kind, rows, self.start[which], self.end[which], self.size, words)


def find_head(data: Bytes, at: int, limit: int) -> Head | None:
    """Return the head of the feature at a position, or None if it is encoded in another way."""
    view = data.data
    size = view[at + 3] + 4 + 2 * 3  # if all lengths take one byte
    if at + size <= limit and (short := _short_head(bytes(view[at : at + size]))):
        return short if at + size + short.size <= limit else None
    return _parsed(view, at, limit)


@lru_cache(4096)  # blocks of a file have the same heads
def _short_head(data: bytes) -> Head | None:
    """Return the head if it is one, and all of its lengths take one byte."""
    size = data[-1]
    head = _parsed(memoryview(data + bytes(size)), 0, len(data) + size)
    return head if head and len(head.data) == len(data) and head.most >= 0 else None


def _parsed(view: memoryview, at: int, limit: int) -> Head | None:
    entry, entry_end = _field(view, at, _FIELD_1)
    name, name_end = _field(view, entry, _FIELD_1)
    if entry_end > limit or not name <= name_end < min(entry_end, name + _LONGEST_NAME):
        return None
    feature, feature_end = _field(view, name_end, _FIELD_2)
    kind = _KINDS.get(view[feature]) if feature < entry_end else None
    if kind is None:
        return None
    values, values_end = _field(view, feature, view[feature])
    start, end = _field(view, values, _FIELD_1)
    if not feature_end == values_end == end == entry_end or (kind == FLOAT and (end - start) % FLOAT_BYTES):
        return None
    try:
        decoded = bytes(view[name:name_end]).decode()
    except UnicodeDecodeError:
        return None  # `examples` reports it
    places = (1, name_end + 1 - at, feature + 1 - at, values + 1 - at)
    common = bytearray(view[at:start])
    most = -1
    if max(common[place] for place in places) <= _ONE_BYTE:
        for place in places:
            common[place] -= end - start
        most = _ONE_BYTE - max(common[place] for place in places)
    return Head(decoded, kind, bytes(view[at:start]), places, end - start, most, bytes(common))


def _field(view: memoryview, at: int, tag: int) -> tuple[int, int]:
    """Return start and end of a field with a length; the end is -1 if no such field is there."""
    if not 0 <= at < len(view) or view[at] != tag:
        return at, -1
    size, start = varint(view, at + 1)
    return start, start + size


def match_head(data: Bytes, at: Ints, limit: Ints, head: Head) -> tuple[Part, Mask | None]:
    """Return the values of the features at some positions, and whether each has a head like the given one.

    None stands for all that end within their limit.
    """
    size = len(head.data)
    begin = at + size
    last = len(data) - size
    inside = at[-1] <= last  # as all are, then
    rows = np.ndarray((last + 1,), f"V{size}", data, 0, (1,))[at if inside else np.minimum(at, last)]
    if rows.tobytes() == head.data * len(at):
        end = begin + head.size
        return Part(head.kind, None, begin, end, head.size), None if inside else (end <= limit) & (at <= last)
    if head.most < 0:
        return _match_long(data, at, limit, head)
    # Lengths of one byte each: without the size of the values in them, all heads are equal.
    matrix = rows.view(np.uint8).reshape(len(at), size)
    sizes = matrix[:, -1].copy()
    for place in head.lengths:
        matrix[:, place] -= sizes
    end = begin + sizes
    part = Part(head.kind, None, begin, end, None)
    alike = matrix.tobytes() == head.common * len(at)
    if alike and inside and head.kind != FLOAT and sizes.max() <= head.most:
        return part, None
    same: Mask = (end <= limit) & (at <= last) & (sizes <= head.most)
    if not alike:
        same &= (matrix == np.frombuffer(head.common, np.uint8)).all(axis=1)
    if head.kind == FLOAT:
        same &= sizes % FLOAT_BYTES == 0
    return part, same


def _match_long(data: Bytes, at: Ints, limit: Ints, head: Head) -> tuple[Part, Mask]:
    """Do the same for lengths of any number of bytes."""
    same = np.ones(len(at), np.bool_)
    last = len(data) - 2 - LONGEST_VARINT

    def field(place: Ints, tag: int) -> tuple[Ints, Ints]:
        nonlocal same
        place = np.minimum(np.maximum(place, 0), last)
        begin, end = lengths(data, place + 1)
        same &= (data[place] == tag) & (end <= limit) & (end >= begin) & (begin >= 0)
        return begin, end

    entry, entry_end = field(at, _FIELD_1)
    name, name_end = field(entry, _FIELD_1)
    wanted = head.name.encode()
    same &= name_end - name == len(wanted)
    if wanted:
        names = np.ndarray((len(data) - len(wanted) + 1,), f"V{len(wanted)}", data, 0, (1,))
        found = names[np.where(same, name, 0)]
        if found.tobytes() != wanted * len(at):
            same &= (found.view(np.uint8).reshape(len(at), -1) == np.frombuffer(wanted, np.uint8)).all(axis=1)
    feature, feature_end = field(name_end, _FIELD_2)
    values, values_end = field(feature, head.kind << 3 | LENGTH)
    start, end = field(values, _FIELD_1)
    same &= (feature_end == entry_end) & (values_end == entry_end) & (end == entry_end)
    if head.kind == FLOAT:
        same &= (end - start) % FLOAT_BYTES == 0
    return Part(head.kind, None, start, end, None), same
