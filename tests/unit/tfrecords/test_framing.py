"""Files of records: equal to TensorFlow's, compressed or not, and found again from any place in the file."""

import gzip
import io
import itertools
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


class Reader(io.RawIOBase):
    """A file as that of hdfs_native: a raw one that has no `readinto` of its own."""

    def __init__(self, data):
        self._file = io.BytesIO(data)

    def read(self, size=-1):
        return self._file.read(size)

    def readinto(self, _buffer):
        raise NotImplementedError


def test_files_that_read_into_no_buffer():
    data = [b"one" * each for each in range(200)]
    assert contents(Reader(framed(pa.array(data, pa.binary())).tobytes())) == data


@pytest.mark.parametrize("lengths", [[5] * 100, [5] * 40 + [6] * 40 + [5], [5, 6] * 30, [0] * 50, [3] * 5000])
def test_runs_of_one_length(lengths):
    data = [bytes([number % 256]) * length for number, length in enumerate(lengths)]
    whole = framed(pa.array(data, pa.binary())).tobytes()
    assert contents(io.BytesIO(whole)) == data
    starts = np.cumsum([0, *(length + 16 for length in lengths)])
    first_half = data[: np.searchsorted(starts, len(whole) // 2)]
    assert contents(io.BytesIO(whole), end=len(whole) // 2, size=1 << 20) == first_half
    found = blocks(io.BytesIO(whole[:-1]))
    (block,) = itertools.islice(found, 1)
    assert len(block.spans) == len(data) - 1
    with pytest.raises(BrokenFile, match="ends within a record") as caught:
        next(found)
    assert caught.value.offset == len(whole) - lengths[-1] - 16
