"""The fields of messages of Protocol Buffers, parsed by numpy for many messages at once.

Each step parses one field of every message, so the number of steps is the number of fields of the longest message. Some
kilobytes of compressed data can stand for a message of millions of fields: what a reader does not ask for is not kept,
a long message is parsed for itself (`scan`), and values are read in parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorflowonspark.tfrecords.scan import UnreadableField, Wanted, scan
from tensorflowonspark.tfrecords.wire_format import (
    EIGHT_BYTES,
    FOUR_BYTES,
    LENGTH,
    MORE,
    TOO_LONG,
    VARINT,
    BadRecords,
    Bytes,
    Ints,
    Spans,
    Which,
    joined,
    lengths,
    varints,
)

FEW_MESSAGES = 12  # up to this number a plain loop is faster than numpy's calls
_WHOLE_BYTES = 4 << 20  # of a buffer that is parsed at once: more than a block has, unless a record is long
_STEPS = 1024  # that are kept as they are: more are joined, without the fields that nobody asked for
_MOST_FIELDS = 1 << 17  # of a buffer whose fields are shorter than a reader expects
LEAST_BYTES = 8  # of a field that is no value: by far less than any writer's, and more than zero

_Step = tuple[Ints, Ints, Ints, Ints, Ints]  # message, number, wire type, start and end of a field of each message
_Small = npt.NDArray[np.signedinteger]  # numbers of fields, wire types
_FIRST = Wanted()
_UNREADABLE = "no field of a message can be read here"


@dataclass(frozen=True)
class Fields:
    """The fields of some messages, message by message, in the order in which they are written."""

    message: Ints  # the position of each field's message
    number: _Small  # the field number of each
    kind: _Small  # the wire type of each
    spans: Spans  # the value of each, without its length

    def where(self, number: int) -> "Fields":
        """Return the fields of one number."""
        return self.only(self.number == number)

    def wanted(self, wanted: Wanted) -> "Fields":
        """Return the fields that a reader asks for."""
        return self.only(_mask(self.number, self.kind, wanted))

    def only(self, mask: npt.NDArray[np.bool_]) -> "Fields":
        """Return some of the fields, by a mask that often keeps all."""
        return self if mask.all() else self.take(mask)

    def take(self, which: Which) -> "Fields":
        """Return some of the fields."""
        return Fields(self.message[which], self.number[which], self.kind[which], self.spans.take(which))


def _only(data: npt.NDArray[np.uint8], messages: Spans) -> "Fields | None":
    """Return the fields of messages of one length-delimited field each, as most in an Example are, or None."""
    if not len(messages) or (messages.start >= messages.end).any():
        return None
    tags = data[messages.start]
    tag = int(tags[0])
    if tag & 7 != LENGTH or not LENGTH < tag < MORE or (tags != tag).any():
        return None
    begin, end = lengths(data, messages.start + 1)
    if (end != messages.end).any():
        return None
    count = len(messages)
    number, kind = np.full(count, tag >> 3), np.full(count, LENGTH)
    return Fields(np.arange(count), number, kind, Spans(begin, end, messages.record))


def fields(data: Bytes, messages: Spans, wanted: Wanted = _FIRST, least_bytes: int = LEAST_BYTES) -> Fields:
    """Return the wanted fields of messages, by default those of number 1 with a length, message by message.

    The buffer has `PADDING_BYTES` after the last message, and `least_bytes` for each field, from some hundred thousand
    fields on, if messages have more than one of each number: what is kept of a field takes about a hundred bytes.
    Raises BadRecords if some of the spans are not messages, or there are more fields than that.
    """
    parts, count = [], 0
    most = max(_MOST_FIELDS, len(data) // least_bytes, wanted.last * len(messages))
    for part in field_parts(data, messages, wanted):
        parts.append(part)
        count += len(part.message)
        if count > most:
            records, counts = np.unique(np.concatenate([each.spans.record for each in parts]), return_counts=True)
            record = records[np.argmax(counts)]
            what = f"a record has {counts.max():,} entries, lists or steps of less than {least_bytes} bytes each"
            raise BadRecords([record], messages.start[messages.record == record][:1], what)
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((each.message, each.number, each.kind) for each in parts), strict=True)
    message, number, kind = (np.concatenate(column) for column in columns)
    return Fields(message, number, kind, joined([each.spans for each in parts]))


def field_parts(data: Bytes, messages: Spans, wanted: Wanted = _FIRST) -> Iterator[Fields]:
    """Yield the same fields in parts, at least one, of which each takes little memory beside the buffer."""
    if (single := _only(data, messages)) is not None:
        yield single.wanted(wanted)
    elif len(data) <= _WHOLE_BYTES:
        yield _fields(data, messages, wanted)
    else:
        sizes = np.cumsum(messages.end - messages.start)
        begin = 0
        while begin < len(messages) or not begin:
            before = sizes[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(sizes, before + _WHOLE_BYTES, side="right")))
            group = messages.take(slice(begin, end))
            for part in _long(data, group, wanted) if len(group) == 1 else [_fields(data, group, wanted)]:
                yield Fields(part.message + begin, part.number, part.kind, part.spans)
            begin = end


def _long(data: Bytes, message: Spans, wanted: Wanted) -> Iterator[Fields]:
    """Yield the wanted fields of one message in parts, at least one."""
    record = int(message.record[0])
    is_empty = True
    try:
        for table in scan(memoryview(data.data), int(message.start[0]), int(message.end[0]), wanted):
            number, kind = table.T[:2].astype(np.int8)
            _, _, begin, stop = table.T
            of_message = np.zeros(len(table), np.int64)
            yield Fields(of_message, number, kind, Spans(begin, stop, np.full(len(table), record)))
            is_empty = False
    except UnreadableField as bad:
        raise BadRecords([record], [bad.at], _UNREADABLE) from None
    if is_empty:
        yield _fields(data, message.take(slice(0)), wanted)


def _fields(data: Bytes, messages: Spans, wanted: Wanted) -> Fields:
    """Return the wanted fields of messages that are parsed together."""
    bad: dict[int, int] = {}
    steps: list[_Step] = []
    kept: list[_Step] = []
    active = np.flatnonzero(messages.start < messages.end)
    at = messages.start[active]
    odd: list[tuple[Ints, Ints]] = []
    while active.size > FEW_MESSAGES or (active.size and not steps and not kept):
        number, kind, begin, stop = _one_field(data, at)
        good = (stop >= 0) & (stop <= messages.end[active]) & (number > 0)
        if not good.all():
            odd.append((active[~good], at[~good]))
            active, number, kind, begin, stop = active[good], number[good], kind[good], begin[good], stop[good]
        steps.append((active, number, kind, begin, stop))
        if len(steps) == _STEPS:
            kept.append(_compacted(steps, wanted))
            steps = []
        further = stop < messages.end[active]
        active, at = active[further], stop[further]
    odd.append((active, at))
    for message, position in zip(*(np.concatenate(each).tolist() for each in zip(*odd, strict=True)), strict=True):
        try:
            tables = list(scan(memoryview(data.data), position, int(messages.end[message]), wanted))
            if tables:
                number, kind, begin, stop = np.concatenate(tables).T
                steps.append((np.full(len(number), message), number, kind, begin, stop))
        except UnreadableField as unreadable:
            bad[int(messages.record[message])] = unreadable.at
    if bad:
        raise BadRecords(bad, bad.values(), _UNREADABLE)
    message, number, kind, begin, stop = _in_order([*kept, *steps], alike=not kept)
    return Fields(message, number, kind, Spans(begin, stop, messages.record[message])).wanted(wanted)


def _compacted(steps: "list[_Step]", wanted: Wanted) -> "_Step":
    """Return the wanted fields of some steps, step by step."""
    message, number, kind, begin, stop = (np.concatenate(column) for column in zip(*steps, strict=True))
    which = _mask(number, kind, wanted)
    return message[which], number[which], kind[which], begin[which], stop[which]


def _mask(number: _Small, kind: _Small, wanted: Wanted) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = number <= wanted.last
    first, *others = wanted.kinds
    of_kind = kind == first
    for other in others:
        of_kind |= kind == other
    mask &= of_kind
    return mask


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
    inside = np.minimum(value, np.uint64(TOO_LONG)).astype(np.int64)
    stop = np.where(lengths & (stop >= 0), stop + inside, stop)
    return number, kind, begin, stop


def _in_order(steps: list[_Step], alike: bool) -> _Step:
    """Return the fields of all steps in the order of their messages; `alike` if each step has one of each message."""
    none = np.empty(0, np.int64)
    if not steps:
        return none, none, none, none, none
    if len(steps) == 1 and alike:
        return steps[0]
    columns = list(zip(*steps, strict=True))
    if alike and all(np.array_equal(step[0], steps[0][0]) for step in steps):  # all messages have as many fields
        message, number, kind, begin, stop = (np.stack(column, axis=1).ravel() for column in columns)
        return message, number, kind, begin, stop
    message, number, kind, begin, stop = (np.concatenate(column) for column in columns)
    order = np.argsort(message, kind="stable")
    return message[order], number[order], kind[order], begin[order], stop[order]
