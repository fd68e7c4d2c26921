"""Files of records: equal to TensorFlow's, compressed or not, and found again from any place in the file."""

import gzip
import io
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.tfrecords.framing import BrokenFile, blocks, compression_of, decompressed, first_header, framed
from tensorflowonspark.tfrecords.options import Compression

records = st.lists(st.binary(max_size=300), max_size=30)


def contents(file, begin=0, end=None, size=1 << 12):
    return [
        bytes(block.data[start:stop])
        for block in blocks(file, begin, end, size)
        for start, stop in zip(block.spans.start, block.spans.end, strict=True)
    ]


@settings(deadline=None, max_examples=50)
@given(records)
def test_files_are_tensorflows(tmp_path_factory, data):
    path = str(tmp_path_factory.mktemp("files") / "file")
    with tf.io.TFRecordWriter(path) as writer:
        for each in data:
            writer.write(each)
    with open(path, "rb") as file:
        assert file.read() == framed(pa.array(data, pa.binary())).tobytes()


@settings(deadline=None)
@given(records, st.integers(1, 500), st.integers(1, 7))
def test_each_record_is_in_one_part(data, size, parts):
    file = io.BytesIO(framed(pa.array(data, pa.binary())).tobytes())
    length = len(file.getvalue())
    bounds = [length * part // parts for part in range(parts + 1)]
    found = []
    for begin, end in pairwise(bounds):
        start = first_header(file, begin, end) if begin else 0
        file.seek(start)
        found += contents(file, start, end, size)
    assert found == data


def test_a_file_of_records_in_a_record_is_not_taken_for_records():
    inner = framed(pa.array([bytes([each]) * 50 for each in range(200)], pa.binary())).tobytes()
    data = [b"before", inner, b"between", inner, *[b"after"] * 50]
    file = io.BytesIO(framed(pa.array(data, pa.binary())).tobytes())
    length = len(file.getvalue())
    found = []
    for begin, end in [(0, length // 3), (length // 3, length // 2), (length // 2, length)]:
        start = first_header(file, begin, end) if begin else 0
        file.seek(start)
        found += contents(file, start, end)
    assert found == data


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.ZLIB])
def test_compressed_files(tmp_path, kind):
    data = [np.random.default_rng(each).bytes(1000) for each in range(100)] + [b"x" * 5_000_000]
    path = str(tmp_path / "file")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=kind.name)) as writer:
        for each in data:
            writer.write(each)
    with open(path, "rb") as file:
        whole = file.read()
    assert compression_of(whole[:12]) is kind
    assert contents(decompressed(io.BytesIO(whole), kind)) == data
    for cut in (1, 2, 11, len(whole) // 2, len(whole) - 1):
        with pytest.raises(BrokenFile, match="ends within its compressed data"):
            contents(decompressed(io.BytesIO(whole[:cut]), kind))
    with pytest.raises(BrokenFile, match="damaged"):
        contents(decompressed(io.BytesIO(whole[:1000] + b"?" + whole[1001:]), kind))


def test_compressed_files_one_behind_the_other():
    one, two = (framed(pa.array([each], pa.binary())).tobytes() for each in (b"one", b"two"))
    assert contents(decompressed(io.BytesIO(gzip.compress(one) + gzip.compress(two)), Compression.GZIP)) == [
        b"one",
        b"two",
    ]
    both = zlib.compress(one) + zlib.compress(two)
    assert contents(decompressed(io.BytesIO(both), Compression.ZLIB)) == [b"one", b"two"]


def test_records_that_are_longer_than_what_is_read_at_once():
    data = [b"a" * 10_000, b"", b"b" * 100_000, b"c"]
    assert contents(io.BytesIO(framed(pa.array(data, pa.binary())).tobytes()), size=100) == data
