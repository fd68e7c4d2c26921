"""The wire format of Protocol Buffers: spans of a buffer, and the numbers at many positions at once.

The format is described at https://protobuf.dev/programming-guides/encoding/. A message is a *span* of one buffer, from
`start` to `end`. It belongs to a *record*, the number of the outermost message around it. One `BadRecords` names all
records that can't be read, so that the reader can leave them out and try again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Which = npt.NDArray[np.generic] | slice  # a mask, positions or a range

# Zero bytes after the last record: a number that is cut off ends in them, so that no read needs a check of bounds.
PADDING_BYTES = 16
FLOAT_BYTES = 4
VARINT, EIGHT_BYTES, LENGTH, BEGIN_GROUP, END_GROUP, FOUR_BYTES = range(6)  # the wire types
LONGEST_VARINT = 10  # bytes
MORE = 0x80  # the bit of a varint's byte that means that another follows
TOO_LONG = np.int64(1) << 40  # stands for any length beyond all buffers


class BadRecords(Exception):
    """Some records can't be read: a position in the buffer and the error there, by the number of the record."""

    def __init__(self, records: Iterable[int], positions: Iterable[int], reason: str) -> None:
        super().__init__(reason)
        self.reasons = {int(record): (int(at), reason) for record, at in zip(records, positions, strict=True)}


class UnfitRecords(BadRecords):
    """Some records are whole, and do not fit the schema."""


@dataclass(frozen=True)
class Spans:
    """Spans of the buffer, in the order of their records."""

    start: Ints
    end: Ints
    record: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, which: Which) -> "Spans":
        """Return some of the spans."""
        return Spans(self.start[which], self.end[which], self.record[which])


def joined(spans: Sequence[Spans]) -> Spans:
    """Return several spans as one."""
    none = np.empty(0, np.int64)
    return Spans(
        np.concatenate([none, *(each.start for each in spans)]),
        np.concatenate([none, *(each.end for each in spans)]),
        np.concatenate([none, *(each.record for each in spans)]),
    )


def gather(data: npt.NDArray[np.uint8], start: Ints, end: Ints) -> pa.Array:
    """Return spans of a buffer as a binary array, copied by native code.

    The copy takes every second value of an array whose offsets are all starts and ends. The spans must be in ascending
    order and must not overlap.
    """
    count = len(start)
    wide = len(data) > np.iinfo(np.int32).max
    offsets = np.zeros(2 * count + 1, np.int64 if wide else np.int32)
    offsets[1::2] = start
    offsets[2::2] = end
    kind = pa.large_binary() if wide else pa.binary()
    all_spans = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return all_spans.take(pa.array(np.arange(1, 2 * count, 2)))


def varints(data: npt.NDArray[np.uint8], at: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Return the numbers at some positions, and the positions after them (-1 for a number without an end)."""
    first = data[at]
    value = first.astype(np.uint64)
    behind = at + 1
    if not len(at) or first.max() < MORE:
        return value, behind
    more = np.flatnonzero(first >= MORE)
    value[more] &= np.uint64(0x7F)
    for count in range(1, LONGEST_VARINT):
        byte = data[np.minimum(at[more] + count, len(data) - 1)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        behind[more] += 1
        more = more[byte >= MORE]
        if not more.size:
            break
    behind[more] = -1
    return value, behind


def lengths(data: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Return the start and end of the data after the lengths at some positions (-1 for an invalid length)."""
    length, begin = varints(data, at)
    end = begin + np.minimum(length, np.uint64(TOO_LONG)).astype(np.int64)
    if len(at) and begin.min() < 0:
        end[begin < 0] = -1
    return begin, end


def numbers_at(array: Bytes, at: Ints, kind: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the numbers at some positions, which need no alignment."""
    size = np.dtype(kind).itemsize
    found: npt.NDArray[np.unsignedinteger] = np.ndarray((max(0, len(array) - size + 1),), kind, array, 0, (1,))[at]
    return found


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return one number and the position after it, which is beyond the buffer if the number has no end."""
    value = 0
    for count in range(LONGEST_VARINT):
        byte = view[at + count] if at + count < len(view) else 0
        value |= (byte & 0x7F) << 7 * count
        if byte < MORE:
            return value & (1 << 64) - 1, at + count + 1
    return 0, len(view) + 1
