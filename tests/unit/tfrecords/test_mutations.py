"""Damaged files: no crash, no hang, and no row that Protocol Buffers' own parser would not have read so too."""

import io
import os

import numpy as np
import pyarrow as pa
import pytest
from tensorflow.core.example import example_pb2

from tensorflowonspark.errors import TFRecordError
from tensorflowonspark.storage.listing import File
from tensorflowonspark.tfrecords.framing import framed
from tensorflowonspark.tfrecords.options import Mode, Options
from tensorflowonspark.tfrecords.reading import read
from tensorflowonspark.tfrecords.splits import RecordSplit
from tests.support.tfrecord_mutations import NotJudged, mutated, parsed, wholly_read

COLUMNS = [
    pa.field("bytes", pa.list_(pa.binary())),
    pa.field("float", pa.list_(pa.float32())),
    pa.field("int", pa.list_(pa.int64())),
    pa.field("why", pa.string()),
]
LISTS = {"bytes": "bytes_list", "float": "float_list", "int": "int64_list"}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
PERMISSIVE = Options(mode=Mode.PERMISSIVE, column_name_of_corrupt_record="why", case_sensitive=True)


def example(rng):
    message = example_pb2.Example()
    for name, kind in LISTS.items():
        if rng.random() < 0.1:
            continue
        values = getattr(message.features.feature[name], kind).value
        count = int(rng.integers(0, 6))
        if name == "bytes":
            values.extend([rng.bytes(int(rng.integers(0, 300 if rng.random() < 0.1 else 9))) for _ in range(count)])
        elif name == "float":
            values.extend(rng.random(count).tolist())
        else:
            values.extend(
                [int(value) >> int(rng.integers(0, 63)) for value in rng.integers(-(2**63), 2**63 - 1, count)]
            )
    return message.SerializeToString(deterministic=True)  # else a map's order is another one each time


def rows_of(path, data, options=PERMISSIVE):
    with open(path, "wb") as file:
        file.write(data)
    split = RecordSplit(File(str(path), len(data), 0.0), 0, len(data))
    return [row for batch in read([split], COLUMNS, options) for row in batch.to_pylist()]


def judged(message):
    """Return the row that a message is, None if it is none."""
    found = parsed(message)
    if found is None:
        return None
    row = {}
    for name, kind in LISTS.items():
        held, values = found.get(name, (kind, None))
        if name == "float" and held == "int64_list":
            values = np.array(values, np.float64).astype(np.float32).tolist()
        elif held not in (kind, None):
            return None
        row[name] = values
    return row


def agree(row, message):
    try:
        expected = judged(message)
    except NotJudged:
        return True
    if expected is None:
        if row["why"] is None:
            return not wholly_read(message)
        return all(row[name] is None for name in LISTS)
    return row["why"] is None and repr([row[name] for name in LISTS]) == repr([expected[name] for name in LISTS])


def check_messages(path, rng, count):
    """Files of records of which some are damaged, with the right checksums: 40 records at once, and few."""
    for _ in range(count):
        messages = [example(rng) for _ in range(int(rng.choice([3, 40])))]
        messages = [mutated(each, rng) if rng.random() < 0.3 else each for each in messages]
        rows = rows_of(path, framed(pa.array(messages, pa.binary())))
        assert len(rows) == len(messages)
        for row, message in zip(rows, messages, strict=True):
            assert agree(row, message), (message, row)


def check_files(path, rng, count):
    """Files that were damaged after they were written: what is read is what was written, and the rest is told."""
    messages = [example(rng) for _ in range(20)]
    whole = framed(pa.array(messages, pa.binary())).tobytes()
    frames = {repr({**judged(each), "why": None}): framed(pa.array([each])).tobytes() for each in messages}
    for _ in range(count):
        data = mutated(whole, rng)
        rows = rows_of(path, data)
        read_well = [repr(row) for row in rows if row["why"] is None]
        assert set(read_well) <= set(frames)
        if len(read_well) == len(rows):  # nothing was told: then the file is nothing but these records
            assert b"".join(frames[row] for row in read_well) == data


@pytest.mark.deep
@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_messages(tmp_path, seed):
    check_messages(tmp_path / "file", np.random.default_rng(seed), 60)


@pytest.mark.deep
@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_files(tmp_path, seed):
    check_files(tmp_path / "file", np.random.default_rng(seed), 200)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_damaged_files(tmp_path):
    files = int(os.environ.get("TFOS_TEST_FILES", "20000"))
    rng = np.random.default_rng(int(os.environ.get("TFOS_TEST_SEED", "7")))
    for _ in range(files // 500):
        check_messages(tmp_path / "file", rng, 100)
        check_files(tmp_path / "file", rng, 400)


@pytest.mark.deep
def test_every_cut_and_every_bit(tmp_path):
    messages = [b"", b"\n\x00", b"\n\x00" * 3]
    whole = framed(pa.array(messages, pa.binary())).tobytes()
    ends = [16, 34, 56]
    path = tmp_path / "file"
    for cut in range(1, len(whole)):
        if cut in ends:
            continue
        with pytest.raises(TFRecordError, match="ends within") as caught:
            rows_of(path, whole[:cut], Options())
        assert caught.value.offset == max(end for end in [0, *ends] if end <= cut)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TFRecordError, match="checksum|ends within") as caught:
            rows_of(path, bytes(damaged), Options())
        record = sum(end <= bit // 8 for end in ends)
        assert [0, *ends][record] <= caught.value.offset <= bit // 8


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("depth", [1, 2, 100, 101])
def test_groups_are_skipped(tmp_path, count, depth):
    message = example(np.random.default_rng(1))
    message += b"\x13" * depth + b"\x14" * depth
    rows = rows_of(tmp_path / "file", framed(pa.array([message] * count, pa.binary())))
    assert len(rows) == count
    for row in rows:
        assert (row["why"] is None) == (depth <= 100)
        assert agree(row, message)


def test_a_length_of_two_gigabytes(tmp_path):
    from tensorflowonspark.tfrecords.framing import blocks

    with pytest.raises(Exception, match="ends within a record of 2,147,483,648 bytes: 3 of them are there"):
        list(blocks(io.BytesIO(header(2**31) + b"abc"), longest=2**64 - 1))
    with pytest.raises(Exception, match="ends within a record of 18,446,744,073,709,551,615 bytes"):
        list(blocks(io.BytesIO(header(2**64 - 1) + b"abc"), longest=2**64 - 1))


def header(length):
    from tensorflowonspark.tfrecords.checksums import length_crc

    raw = np.array([length], "<u8")
    return raw.tobytes() + length_crc(raw).astype("<u4").tobytes()
