"""Damaged files, and what Protocol Buffers' own parser makes of each record: the judge of what ours makes of it."""

import numpy as np
from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError
from tensorflow.core.example import example_pb2

from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64, Encoded, read_values
from tensorflowonspark.tfrecords.wire_format import PADDING_BYTES, BadRecords, Spans

# Fields with other fields in them, which Protocol Buffers had before messages: some of them are no whole group.
GROUPS = [b"\x13\x14", b"\x13\x08\x05\x14", b"\x1b\x13\x12\x02ab\x14\x1c", b"\x13\x1b\x14\x1c", b"\x13", b"\x14"]


class NotJudged(Exception):
    pass


def records_in(messages):
    """Put serialised messages into one buffer."""
    ends = np.cumsum([len(each) for each in messages])
    starts = ends - [len(each) for each in messages]
    data = np.frombuffer(b"".join(messages) + bytes(PADDING_BYTES), np.uint8)
    return Encoded(data, Spans(starts.astype(np.int64), ends.astype(np.int64), np.arange(len(messages))))


def parsed(message):
    """Return what a message holds by name as (kind, values), by Protocol Buffers; None if it is none.

    The parser that Python has keeps an entry with an unknown field in it apart, as unknown (the one of C++ does not).
    Such a message gives an exception.
    """
    try:
        features = example_pb2.Example.FromString(message).features
    except DecodeError:
        return None
    if any(field.field_number == 1 for field in unknown_fields.UnknownFieldSet(features)):
        raise NotJudged
    return {name: _values(feature) for name, feature in features.feature.items()}


def _values(feature):
    kind = feature.WhichOneof("kind")
    return (kind, list(getattr(feature, kind).value)) if kind else (None, [])


def wholly_read(message):
    """Whether our decoder reads all features of a message; in a file it looks only at those that are wanted."""
    try:
        features = records_in([message]).features
        for name in features.names:
            there, messages = features.of(name)
            read_values(features.data, messages, len(there), (BYTES, FLOAT, INT64), name)
    except BadRecords:
        return False
    return True


def mutated(message, rng):
    """Return a message with some of its bytes changed, left out, doubled or put in; sometimes they are a group."""
    data = bytearray(message)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, max(1, len(data))))
        how = rng.integers(0, 6)
        if how == 0 and data:
            data[at % len(data)] = rng.integers(0, 256)
        elif how == 1 and data:
            data[at % len(data)] ^= 1 << int(rng.integers(0, 8))
        elif how == 2:
            del data[at : at + int(rng.integers(1, 9))]
        elif how == 3:
            data[at:at] = data[at : at + int(rng.integers(1, 33))]
        elif how == 4:
            data[at:at] = rng.bytes(int(rng.integers(1, 5)))
        else:
            data[at:at] = GROUPS[int(rng.integers(0, len(GROUPS)))]
    return bytes(data)
