"""Bytes that nobody has written as a TFRecord file: what is read is what a plain reader reads, and the rest is told."""

import gzip
import io
import struct
import zlib

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from tensorflowonspark.tfrecords import decode
from tensorflowonspark.tfrecords.framing import BrokenFile, blocks, compression_of, decompressed, framed
from tests.support.fuzz import SECONDS, fuzz
from tests.support.tfrecord_mutations import mutated, records_in
from tests.unit.tfrecords import test_uniform

pytestmark = pytest.mark.timeout(120 + 2 * SECONDS)
_ROTATION, _ADDED = 15, 0xA282EAD8
_LENGTHS = [0, 1, 2**31, 2**32 - 16, 2**63 - 1, 2**63, 2**64 - 17, 2**64 - 16, 2**64 - 1]


def masked(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> _ROTATION | crc << 32 - _ROTATION) + _ADDED) & 0xFFFFFFFF)


def read_plainly(data):
    """Return the records of a file, None for one with a wrong checksum; and the offset from which nothing is known."""
    found, at = [], 0
    while at < len(data):
        head = data[at : at + 8]
        if len(head) < 8 or data[at + 8 : at + 12] != masked(head):
            return found, at
        (length,) = struct.unpack("<Q", head)
        content, footer = data[at + 12 : at + 12 + length], data[at + 12 + length : at + 16 + length]
        if len(footer) < 4:
            return found, at
        found.append(content if footer == masked(content) else None)
        at += 16 + length
    return found, None


def read_by_blocks(file, size):
    found = []
    try:
        for block in blocks(file, size=size):
            spans = zip(block.spans.start, block.spans.end, strict=True)
            wrong = set(block.wrong.tolist())
            found += [None if n in wrong else bytes(block.data[s:e]) for n, (s, e) in enumerate(spans)]
    except BrokenFile as error:
        return found, error.offset
    return found, None


@st.composite
def files(draw):
    """Return the bytes of records, some of them damaged, cut or with a length of their own; or any bytes."""
    records = draw(st.lists(st.one_of(st.binary(max_size=40), st.just(b"same")), max_size=30))
    data = bytearray(framed(pa.array(records, pa.binary())).tobytes()) if records else bytearray()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.integers(0, 4))
        if how == 0:
            del data[at:]
        elif how == 1:
            data[at : at + 1] = draw(st.binary(max_size=3))
        elif how == 2:
            data[at:at] = length_of(draw(st.sampled_from(_LENGTHS)))
        elif how == 3 and len(data) > at + 4:
            data[at : at + 4] = masked(bytes(data[:at]))
        else:
            data[at:at] = draw(st.binary(max_size=24))
    return bytes(data), draw(st.sampled_from([16, 100, 1 << 21]))


def length_of(number):
    return struct.pack("<Q", number) + masked(struct.pack("<Q", number))


def test_frames():
    def check(drawn):
        data, size = drawn
        found, end = read_by_blocks(io.BytesIO(data), size)
        expected, broken = read_plainly(data)
        assert (found, end) == (expected, broken)

    kept = [(length_of(number), size) for number in (2**63 - 1, 2**64 - 16, 2**64 - 1) for size in (16, 1 << 21)]
    kept += [(framed(pa.array([b"x"] * 40)).tobytes() + length_of(2**64 - 17) + bytes(4), 1 << 21)]
    fuzz(files(), check, kept)


@st.composite
def compressed(draw):
    data, size = draw(files())
    data = bytearray(draw(st.sampled_from([gzip.compress, zlib.compress]))(data))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(data), size


def test_compressed_files():
    def check(drawn):
        data, size = drawn
        found, end = read_by_blocks(decompressed(io.BytesIO(data), compression_of(data[:12])), size)
        assert end is None or end >= sum(16 + len(each or b"") for each in found if each is not None)

    fuzz(compressed(), check, [(gzip.compress(b""), 16), (gzip.compress(b"") * 3 + b"\x1f\x8b", 16), (b"\x78\x9c", 16)])


@st.composite
def damaged(draw):
    """Return records of which many are damaged alike: the heads of the others are compared with theirs."""
    messages, columns = draw(test_uniform.files())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    patterns = [mutated(draw(st.sampled_from(messages)), rng) for _ in range(draw(st.integers(1, 4)))]
    patterns += draw(st.lists(st.binary(max_size=60), max_size=2))
    return draw(st.lists(st.sampled_from([*patterns, *messages]), min_size=33, max_size=80)), columns


def test_heads():
    def check(drawn):
        messages, columns = drawn
        records = records_in(messages)
        arrays, bad = test_uniform.found(decode.decode, records, columns)
        expected, bad_expected = test_uniform.found(decode.decode_any, records, columns)
        assert bad == bad_expected
        for array, other in zip(arrays, expected, strict=True):
            array.validate(full=True)
            assert repr(array.to_pylist()) == repr(other.to_pylist())

    fuzz(damaged(), check, examples=20)
