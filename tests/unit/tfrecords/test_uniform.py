"""Records that are read by position: equal to those that are parsed message by message."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorflowonspark.tfrecords import checksums, decode, uniform
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT, INT64
from tensorflowonspark.tfrecords.framing import framed
from tensorflowonspark.tfrecords.wire_format import BadRecords
from tests.support.tfrecord_mutations import mutated, records_in


def varint(value):
    value &= (1 << 64) - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(name, kind, values, packed=True):
    if kind == BYTES:
        listed = b"".join(field(1, value) for value in values)
    elif kind == FLOAT:
        each = [struct.pack("<f", value) for value in values]
        listed = field(1, b"".join(each)) if packed else b"".join(b"\x0d" + value for value in each)
    else:
        each = [varint(value) for value in values]
        listed = field(1, b"".join(each)) if packed else b"".join(b"\x08" + value for value in each)
    return field(1, field(1, name.encode()) + field(2, field(kind, listed)))


def message(*entries):
    return field(1, b"".join(entries))


VALUES = {
    BYTES: st.one_of(st.binary(max_size=3), st.binary(min_size=100, max_size=400)),
    FLOAT: st.floats(width=32, allow_nan=False),
    INT64: st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1)),
}
NAMES = ["a", "text", "a longer name", "n" * 130]


@st.composite
def columns(draw):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    return [(name, draw(st.sampled_from([BYTES, FLOAT, INT64])), draw(st.booleans())) for name in names]


@st.composite
def usual(draw, names):
    return message(*(entry(*draw(feature(name, kind, several))) for name, kind, several in names))


@st.composite
def feature(draw, name, kind, several):
    sizes = {"min_size": 0, "max_size": 5} if several else {"min_size": 1, "max_size": 1}
    return name, kind, draw(st.lists(VALUES[kind], **sizes))


@st.composite
def odd(draw, names):
    """Return a message that Protocol Buffers allow, and that few writers make, or a damaged one."""
    entries = [entry(*draw(feature(*each)), packed=draw(st.booleans())) for each in names]
    how = draw(st.integers(0, 7))
    if how == 0:
        entries = draw(st.permutations(entries))
    elif how == 1:
        del entries[draw(st.integers(0, len(entries) - 1))]
    elif how == 2:
        entries.append(draw(st.sampled_from(entries)))
    elif how == 3:
        entries.insert(draw(st.integers(0, len(entries))), field(1, field(1, names[0][0].encode())))  # no value
    elif how == 4:
        entries.insert(draw(st.integers(0, len(entries))), entry("other", draw(st.sampled_from([1, 2, 3])), []))
    elif how == 5:
        name, kind, several = draw(st.sampled_from(names))
        entries.append(entry(*draw(feature(name, kind % 3 + 1, several))))
    elif how == 6:
        return mutated(message(*entries), np.random.default_rng(draw(st.integers(0, 1000))))
    else:
        return message(*entries) + draw(st.sampled_from([b"", b"\x18\x05", message(*entries), b"\x13\x14"]))
    return message(*entries)


@st.composite
def files(draw):
    names = draw(columns())
    patterns = draw(st.lists(usual(names), min_size=1, max_size=6)) + draw(st.lists(odd(names), max_size=3))
    numbers = draw(st.lists(st.integers(0, len(patterns) - 1), min_size=13, max_size=60))
    inner = {BYTES: pa.binary(), FLOAT: pa.float32(), INT64: pa.int64()}
    wanted = [pa.field(name, pa.list_(inner[kind]) if several else inner[kind]) for name, kind, several in names]
    return [patterns[each] for each in numbers], draw(st.permutations([*wanted, pa.field("none", pa.int64())]))


def found(function, records, columns):
    """Return the columns of all records that can be read, and the numbers of the others."""
    bad = set()
    while True:
        good = records.spans.take(~np.isin(records.spans.record, list(bad)))
        try:
            return function(type(records)(records.data, good), columns, False), bad
        except BadRecords as error:
            bad.update(error.reasons)


@pytest.mark.deep
@settings(deadline=None, max_examples=50)
@given(files())
def test_the_same_as_message_by_message(file):
    messages, columns = file
    records = records_in(messages)
    arrays, bad = found(decode.decode, records, columns)
    expected, bad_expected = found(decode.decode_any, records, columns)
    assert bad == bad_expected
    for array, other in zip(arrays, expected, strict=True):
        array.validate(full=True)
        assert array.type == other.type
        assert repr(array.to_pylist()) == repr(other.to_pylist())  # nan is not equal to itself


def counted(monkeypatch):
    """Return a list of the number of records that are parsed message by message, call by call."""
    counts = []
    whole = decode.decode_any
    monkeypatch.setattr(decode, "decode_any", lambda *given: counts.append(len(given[0])) or whole(*given))
    return counts


COLUMNS = [pa.field("n", pa.int64()), pa.field("x", pa.list_(pa.float32())), pa.field("t", pa.binary())]


def row(number):
    return [
        entry("n", INT64, [number * number]),
        entry("x", FLOAT, [number] * 64),
        entry("t", BYTES, [b"t" * (number % 300)]),
    ]


def test_usual_records_are_not_parsed(monkeypatch):
    counts = counted(monkeypatch)
    arrays = decode.decode(records_in([message(*row(number)) for number in range(1000)]), COLUMNS, False)
    assert not counts
    assert arrays[0].to_pylist() == [number * number for number in range(1000)]
    assert arrays[2].to_pylist() == [b"t" * (number % 300) for number in range(1000)]


def test_records_without_a_feature_are_not_parsed(monkeypatch):
    counts = counted(monkeypatch)
    rows = [row(number)[number % 3 == 0 :] for number in range(100)]
    arrays = decode.decode(records_in([message(*each) for each in rows]), COLUMNS, False)
    assert not counts
    assert arrays[0].to_pylist() == [None if number % 3 == 0 else number * number for number in range(100)]


def test_only_odd_records_are_parsed(monkeypatch):
    counts = counted(monkeypatch)
    messages = [message(*row(number)) for number in range(1000)]
    messages[7] = message(*row(7), entry("n", INT64, [-7]))  # the last one counts
    messages[500] = message(entry("n", INT64, [1, 2][:1], packed=False), *row(500)[1:])
    arrays = decode.decode(records_in(messages), COLUMNS, False)
    assert counts == [2]
    expected = [number * number for number in range(1000)]
    expected[7], expected[500] = -7, 1
    assert arrays[0].to_pylist() == expected


def test_values_at_the_end_of_the_buffer():
    long, short = message(*row(299)), message(entry("n", INT64, [5]))
    arrays = decode.decode(records_in([long] * 20 + [short]), COLUMNS, False)
    assert arrays[0].to_pylist() == [299 * 299] * 20 + [5]
    assert arrays[2].to_pylist() == [b"t" * 299] * 20 + [None]


def test_features_in_any_order_are_parsed_after_few_steps(monkeypatch):
    rng = np.random.default_rng(1)
    names = [f"f{number}" for number in range(40)]
    messages = [message(*(entry(name, INT64, [1]) for name in rng.permutation(names))) for _ in range(200)]
    steps, counts = [], counted(monkeypatch)
    step = uniform._Walk._step
    monkeypatch.setattr(uniform._Walk, "_step", lambda *given: steps.append(1) or step(*given))
    arrays = decode.decode(records_in(messages), [pa.field(name, pa.int64()) for name in names], False)
    assert all(array.to_pylist() == [1] * 200 for array in arrays)
    assert len(steps) < 20
    assert counts == [200]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=2000), min_size=33, max_size=80), st.data())
@example([b""] * 40, None)
@example([b"x" * 50_000] * 40, None)
def test_checksums_of_all_records(records, data):
    whole = framed(pa.array(records, pa.binary())).copy()
    ends = np.cumsum([len(each) + 16 for each in records]) - 4
    starts = ends - [len(each) for each in records]
    assert checksums._all_match(whole, starts, ends)
    assert not checksums.wrong_data(whole, starts, ends).size
    if data is None:
        return
    damaged = data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1, max_size=5))
    for number in damaged:  # in its data, or in its checksum
        at = data.draw(st.integers(int(starts[number]), int(ends[number]) + 3))
        whole[at] ^= data.draw(st.integers(1, 255))
    assert not checksums._all_match(whole, starts, ends)
    assert checksums.wrong_data(whole, starts, ends).tolist() == sorted(damaged)


@pytest.mark.parametrize("bit", range(32))
def test_each_bit_of_a_checksum(bit):
    whole = framed(pa.array([b"record"] * 40, pa.binary())).copy()
    ends = np.arange(18, len(whole), 22)
    whole[ends[17] + bit // 8] ^= 1 << bit % 8
    assert checksums.wrong_data(whole, ends - 6, ends).tolist() == [17]
