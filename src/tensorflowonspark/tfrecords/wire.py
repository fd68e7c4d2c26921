"""The wire format of Protocol Buffers, parsed by numpy for many messages at once.

Each step parses one field of every message, so the number of steps is the number of fields of the longest message. The
format is described at https://protobuf.dev/programming-guides/encoding/.

A message is a *span* of one buffer, from `start` to `end`. It belongs to a *record*, the number of the outermost
message around it. One `BadRecords` names all records that can't be read, so that the reader can leave them out and try
again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

# Zero bytes after the last record: a number that is cut off ends in them, so that no read needs a check of bounds.
PADDING_BYTES = 16
FLOAT_BYTES = 4


class BadRecords(Exception):
    """Some records can't be read.

    Attributes
    ----------
    reasons : dict
        A position in the buffer and the error there, by the number of the record.
    """

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

    def take(self, which: npt.NDArray[np.generic]) -> "Spans":
        """Return some of the spans, by a mask or by their positions."""
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


VARINT, EIGHT_BYTES, LENGTH, BEGIN_GROUP, END_GROUP, FOUR_BYTES = range(6)  # the wire types
_LONGEST_VARINT = 10
_TOO_LONG = np.int64(1) << 40  # stands for any length beyond all buffers
_DEEPEST_GROUP = 100  # levels, as in Protocol Buffers
_SIZES = {EIGHT_BYTES: 8, FOUR_BYTES: 4, BEGIN_GROUP: 0, END_GROUP: 0}  # of values after the tag, by wire type
_NOWHERE = 1 << 62  # stands for a position beyond all buffers
_MORE = 0x80  # the bit of a varint's byte that means that another follows
FEW_MESSAGES = 12  # up to this number a plain loop is faster than numpy's calls


@dataclass(frozen=True)
class Fields:
    """The fields of some messages, message by message, in the order in which they are written.

    Attributes
    ----------
    message : array of int
        The position of each field's message.
    number, kind : array of int
        The field number and wire type of each.
    spans : Spans
        The value of each, without its length.
    """

    message: Ints
    number: Ints
    kind: Ints
    spans: Spans

    def where(self, number: int, kind: int = LENGTH) -> "Fields":
        """Return the fields of one number and wire type; Protocol Buffers skip all others as unknown."""
        return self.only((self.number == number) & (self.kind == kind))

    def only(self, mask: npt.NDArray[np.bool_]) -> "Fields":
        """Return some of the fields, by a mask that often keeps all."""
        return self if mask.all() else self.take(mask)

    def take(self, which: npt.NDArray[np.generic]) -> "Fields":
        """Return some of the fields, by a mask or by their positions."""
        return Fields(self.message[which], self.number[which], self.kind[which], self.spans.take(which))


def varints(data: npt.NDArray[np.uint8], at: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Return the numbers at some positions, and the positions after them (-1 for a number without an end)."""
    first = data[at]
    value = first.astype(np.uint64)
    behind = at + 1
    if not len(at) or first.max() < _MORE:
        return value, behind
    more = np.flatnonzero(first >= _MORE)
    value[more] &= np.uint64(0x7F)
    for count in range(1, _LONGEST_VARINT):
        byte = data[np.minimum(at[more] + count, len(data) - 1)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        behind[more] += 1
        more = more[byte >= _MORE]
        if not more.size:
            break
    behind[more] = -1
    return value, behind


def lengths(data: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Return the start and end of the data after the lengths at some positions (-1 for an invalid length)."""
    length, begin = varints(data, at)
    end = begin + np.minimum(length, np.uint64(_TOO_LONG)).astype(np.int64)
    if len(at) and begin.min() < 0:
        end[begin < 0] = -1
    return begin, end


def _only(data: npt.NDArray[np.uint8], messages: Spans) -> "Fields | None":
    """Return the fields of messages of one length-delimited field each, as most in an Example are, or None."""
    if not len(messages) or (messages.start >= messages.end).any():
        return None
    tags = data[messages.start]
    tag = int(tags[0])
    if tag & 7 != LENGTH or not LENGTH < tag < _MORE or (tags != tag).any():
        return None
    begin, end = lengths(data, messages.start + 1)
    if (end != messages.end).any():
        return None
    count = len(messages)
    number, kind = np.full(count, tag >> 3), np.full(count, LENGTH)
    return Fields(np.arange(count), number, kind, Spans(begin, end, messages.record))


def fields(data: npt.NDArray[np.uint8], messages: Spans) -> Fields:
    """Return the fields of messages.

    Parameters
    ----------
    data : array of uint8
        The buffer, with `PADDING_BYTES` after the last message.
    messages : Spans
        The spans of the messages.

    Returns
    -------
    Fields
        Message by message.

    Raises
    ------
    BadRecords
        If some of the spans are not messages.
    """
    if (single := _only(data, messages)) is not None:
        return single
    bad: dict[int, int] = {}
    steps: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    active = np.flatnonzero(messages.start < messages.end)
    at = messages.start[active]
    odd: list[tuple[Ints, Ints]] = []
    while active.size > FEW_MESSAGES or (active.size and not steps):
        number, kind, begin, stop = _one_field(data, at)
        good = (stop >= 0) & (stop <= messages.end[active]) & (number > 0)
        if not good.all():
            odd.append((active[~good], at[~good]))
            active, number, kind, begin, stop = active[good], number[good], kind[good], begin[good], stop[good]
        steps.append((active, number, kind, begin, stop))
        further = stop < messages.end[active]
        active, at = active[further], stop[further]
    odd.append((active, at))
    for message, position in zip(*(np.concatenate(each).tolist() for each in zip(*odd, strict=True)), strict=True):
        table, stopped = _rest(memoryview(data.data), position, int(messages.end[message]))
        steps.append((np.full(len(table), message), *table.T))
        if stopped >= 0:
            bad[int(messages.record[message])] = stopped
    if bad:
        raise BadRecords(bad, bad.values(), "no field of a message can be read here")
    message, number, kind, begin, stop = _in_order(steps)
    return Fields(message, number, kind, Spans(begin, stop, messages.record[message]))


def _one_field(data: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return number, wire type, start and end of the field at each position; the end is -1 for errors and groups."""
    tag, begin = varints(data, at)
    kind = (tag & np.uint64(7)).astype(np.int64)
    number = (tag >> np.uint64(3)).astype(np.int64)
    begin = np.where((begin < 0) | (begin >= len(data)) | (tag >> np.uint64(32) > 0), len(data) - 1, begin)
    value, stop = varints(data, begin)
    lengths = kind == LENGTH
    if not lengths.all():
        stop = np.select([kind == FOUR_BYTES, kind == EIGHT_BYTES], [begin + 4, begin + 8], stop)
        stop[(kind != VARINT) & (kind != EIGHT_BYTES) & (kind != FOUR_BYTES) & ~lengths] = -1
        begin = np.where(lengths, stop, begin)
    else:
        begin = stop
    inside = np.minimum(value, np.uint64(_TOO_LONG)).astype(np.int64)
    stop = np.where(lengths & (stop >= 0), stop + inside, stop)
    return number, kind, begin, stop


def _rest(view: memoryview, at: int, end: int) -> tuple[Ints, int]:
    """Parse the rest of one message field by field, for the few messages with many more or unusual fields.

    Groups, which begin and end with a field, are skipped as unknown. Like Protocol Buffers this accepts any fields in
    them, even of number 0.

    Returns number, wire type, start and end of each field, and the position of one that can't be read, or -1.
    """
    found: list[tuple[int, int, int, int]] = []
    groups: list[int] = []  # the numbers of the groups around `at`
    while at < end:
        number, kind, begin, stop = _field(view, at)
        if stop > end or (number == 0 and not groups):
            break
        if kind == END_GROUP and not (groups and groups.pop() == number):
            break
        if kind == BEGIN_GROUP and len(groups) == _DEEPEST_GROUP:
            break
        if kind == BEGIN_GROUP:
            groups.append(number)
        elif kind != END_GROUP and not groups:
            found.append((number, kind, begin, stop))
        at = stop
    return np.array(found, np.int64).reshape(-1, 4), at if at < end or groups else -1


def _field(view: memoryview, at: int) -> tuple[int, int, int, int]:
    """Return number, wire type, start and end of the field at a position; the end of an invalid one is `_NOWHERE`."""
    tag, begin = varint(view, at)
    number, kind = tag >> 3, tag & 7
    if tag >> 32:
        return number, kind, begin, _NOWHERE
    if kind == LENGTH:
        length, begin = varint(view, begin)
        return number, kind, begin, begin + length
    if kind == VARINT:
        return number, kind, begin, varint(view, begin)[1]
    return number, kind, begin, begin + _SIZES.get(kind, _NOWHERE)


def numbers_at(array: Bytes, at: Ints, kind: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the numbers at some positions, which need no alignment."""
    size = np.dtype(kind).itemsize
    found: npt.NDArray[np.unsignedinteger] = np.ndarray((max(0, len(array) - size + 1),), kind, array, 0, (1,))[at]
    return found


def varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return one number and the position after it, which is beyond the buffer if the number has no end."""
    value = 0
    for count in range(_LONGEST_VARINT):
        byte = view[at + count] if at + count < len(view) else 0
        value |= (byte & 0x7F) << 7 * count
        if byte < _MORE:
            return value & (1 << 64) - 1, at + count + 1
    return 0, len(view) + 1


def _in_order(steps: list[tuple[Ints, Ints, Ints, Ints, Ints]]) -> tuple[Ints, ...]:
    """Return the fields of all steps in the order of their messages."""
    if not steps:
        return tuple(np.empty(0, np.int64) for _ in range(5))
    if len(steps) == 1:
        return steps[0]
    columns = list(zip(*steps, strict=True))
    if all(np.array_equal(step[0], steps[0][0]) for step in steps):  # all messages have as many fields
        return tuple(np.stack(column, axis=1).ravel() for column in columns)
    joined = [np.concatenate(column) for column in columns]
    order = np.argsort(joined[0], kind="stable")
    return tuple(column[order] for column in joined)
