"""Rows are found by their number, over any batches, as if they were in one list."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import Kind, Ragged
from tensorflowonspark.node.feed import shard as shards
from tensorflowonspark.node.feed.rows import RowQueue
from tensorflowonspark.node.feed.shard import Reader, Shard

OBJECT = np.dtype(object)
KINDS = {
    "id": Kind(np.dtype("int64")),
    "cast": Kind(np.dtype("float32")),
    "wide": Kind(np.dtype("float32"), (2, 3)),
    "bytes": Kind(np.dtype("float32"), (2,), decoded=True),
    "flag": Kind(np.dtype("bool")),
    "name": Kind(OBJECT, text=True),
    "holes": Kind(np.dtype("int64"), (2,), fill=-1),
    "ragged": Kind(np.dtype("int64"), (None,)),
}


def rows_of(ids):
    """A batch with a column of each sort, all of which follow from the row's id."""
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "cast": pa.array(ids, pa.int32()),
            "wide": pa.array([[id_ + k for k in range(6)] for id_ in ids], pa.list_(pa.float32())),
            "bytes": pa.array([bytes([id_, id_ + 1]) for id_ in ids], pa.binary()),
            "flag": pa.array([id_ % 2 == 0 for id_ in ids], pa.bool_()),
            "name": pa.array([str(id_) for id_ in ids], pa.string()),
            "holes": pa.array([[id_, None] if id_ % 3 else None for id_ in ids], pa.list_(pa.int64())),
            "ragged": pa.array([[id_] * (id_ % 4) for id_ in ids], pa.list_(pa.int64())),
        }
    )


def expected(ids):
    return {
        "id": ids,
        "cast": [float(id_) for id_ in ids],
        "wide": [[[id_, id_ + 1, id_ + 2], [id_ + 3, id_ + 4, id_ + 5]] for id_ in ids],
        "bytes": [[id_, id_ + 1] for id_ in ids],
        "flag": [id_ % 2 == 0 for id_ in ids],
        "name": [str(id_) for id_ in ids],
        "holes": [[id_, -1] if id_ % 3 else [-1, -1] for id_ in ids],
        "ragged": [[id_] * (id_ % 4) for id_ in ids],
    }


def as_lists(taken):
    return {
        name: [row.tolist() for row in values.rows()] if isinstance(values, Ragged) else values.tolist()
        for name, values in taken.items()
    }


def shard_of(sizes):
    """Rows 0, 1, 2, ... in parts of batches of these sizes, each a slice out of a longer one."""
    start, parts = 0, []
    for part in sizes:
        batches = []
        for size in part:
            batches.append(rows_of(range(start, start + size + 2)).slice(0, size))
            start += size
        parts.append(batches)
    return Shard(parts), start


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=3), st.data())
def test_rows_are_taken_by_number_in_any_order_and_as_often_as_asked(sizes, data):
    shard, total = shard_of(sizes)
    assert shard.rows == total
    numbers = data.draw(st.lists(st.integers(0, total - 1), max_size=20)) if total else []
    taken = shard.reader(KINDS).take(np.array(numbers, np.int64))
    assert as_lists(taken) == expected(numbers)
    assert all(values.dtype == KINDS[name].dtype for name, values in taken.items() if not isinstance(values, Ragged))
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert as_lists(shard.reader(KINDS).take(np.arange(start, stop))) == expected(list(range(start, stop)))


def test_neighbours_in_one_batch_are_not_copied():
    batch = rows_of(range(10))
    taken = Shard([[batch]]).reader({name: KINDS[name] for name in ("id", "wide")}).take(np.arange(2, 6))
    assert taken["id"].ctypes.data == batch.column("id").buffers()[1].address + 2 * 8
    assert taken["wide"].ctypes.data == batch.column("wide").values.buffers()[1].address + 2 * 6 * 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=3), st.integers(-2, 40), st.integers(-2, 40))
def test_a_range_of_rows_is_sliced(sizes, start, stop):
    shard, total = shard_of(sizes)
    ids = [id_ for batch in shard.slices(start, stop) for id_ in batch.column("id").to_pylist()]
    assert ids == [id_ for id_ in range(total) if start <= id_ < stop]
    assert all(batch.num_rows for batch in shard.slices(start, stop))


def test_a_row_has_the_bytes_of_the_columns_that_are_asked_for():
    shard, _ = shard_of([[10, 10]])
    assert shard.bytes_per_row(["id"]) == 8
    assert shard.bytes_per_row(["id", "cast"]) == 12
    assert shard.bytes_per_row([]) == 0
    assert Shard([]).bytes_per_row(["id"]) == 0


def test_no_rows_have_kinds_too():
    taken = Shard([]).reader(KINDS).take(np.arange(0))
    assert as_lists(taken) == {name: [] for name in KINDS}
    assert taken["wide"].shape == (0, 2, 3)


@pytest.mark.parametrize("ids", [[3, 1], [5, 5], [0, 7, 3, 7]])
def test_what_was_taken_is_not_changed_by_what_is_taken_next(ids):
    reader = shard_of([[4, 4]])[0].reader(KINDS)
    first = reader.take(np.array(ids))
    before = as_lists(first)
    reader.take(np.array([2, 6, 1]))
    assert as_lists(first) == before


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 5),
    st.sampled_from([1, 3, 20]),
    st.integers(0, 9),
)
def test_a_queue_hands_out_each_row_once_in_its_order_whatever_is_gathered_at_once(sizes, blocks, skip, each, seed):
    shard, total = shard_of(sizes)
    orders = [np.random.default_rng([seed, number]).permutation(total) for number in range(2)]
    released, handed_out, number = [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_ROWS_OF_BATCH", each)
        queue = RowQueue(KINDS, 4)
        queue.add(shard.reader(KINDS), orders[0], skip, lambda: released.append(len(handed_out)))
        queue.add(shard.reader(KINDS), orders[1], release=lambda: released.append(len(handed_out)))
        while queue.count:
            rows = min(queue.count, blocks[number % len(blocks)])
            handed_out.append(as_lists(queue.take(rows, rows)))
            number += 1
    wanted = [*orders[0][skip:].tolist(), *orders[1].tolist()]
    found = {name: [row for block in handed_out for row in block[name]] for name in KINDS}
    assert found == expected(wanted)
    assert queue.taken == len(wanted)
    assert len(released) == 2


DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


def numbers_of(start, rows):
    """A batch with a narrow column of each dtype, all of which follow from the row's number."""
    return pa.record_batch({dtype: (np.arange(start, start + rows) % 101).astype(dtype) for dtype in DTYPES})


def test_narrow_rows_of_all_types_are_gathered_many_blocks_at_once(monkeypatch):
    shard = Shard([[numbers_of(start, 50) for start in range(0, 2000, 50)]])
    reader = shard.reader({dtype: Kind(np.dtype(dtype)) for dtype in DTYPES})
    taken, take = [], Reader.take
    monkeypatch.setattr(Reader, "take", lambda self, rows, *to: taken.append(len(rows)) or take(self, rows, *to))
    monkeypatch.setattr(shards, "_ROWS_OF_BATCH", 20)
    order = np.random.default_rng(1).permutation(2000)
    queue = RowQueue(dict.fromkeys(DTYPES), 10)
    queue.add(reader, order)
    blocks = [queue.take(70, 70) for _ in range(28)]
    for dtype in DTYPES:
        found = np.concatenate([block[dtype] for block in blocks])
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, (order[:1960] % 101).astype(dtype))
    assert taken == [770, 770, 460]  # of 800, whole blocks of 70


def test_what_is_written_to_one_block_is_in_no_other(monkeypatch):
    monkeypatch.setattr(shards, "_ROWS_OF_BATCH", 20)
    shard = Shard([[numbers_of(start, 50) for start in range(0, 200, 50)]])
    kinds = {"int8": Kind(np.dtype("int8"))}
    queue = RowQueue(kinds, 10)
    order = np.random.default_rng(1).permutation(200)
    queue.add(shard.reader(kinds), order)
    found = []
    for _ in range(20):
        block = queue.take(10, 10)["int8"]
        found += block.tolist()
        block[:] = -1
    assert found == (order % 101).tolist()
    assert queue.take(0, 10)["int8"].tolist() == found[-10:]  # to pad with


def test_rows_that_are_wide_or_of_one_batch_are_gathered_block_by_block(monkeypatch):
    shard = Shard([[numbers_of(start, 50) for start in range(0, 2000, 50)]])
    reader = shard.reader({dtype: Kind(np.dtype(dtype)) for dtype in DTYPES})
    order = np.random.default_rng(1).permutation(2000)
    assert reader.stretch(order[:100]) == 400 * 40
    assert reader.stretch(np.arange(100, 110)) == 10
    monkeypatch.setattr(shards, "_STRETCH_BYTES", 2 * 42 * 250)  # of a row as stored and as gathered
    assert reader.stretch(order[:100]) == 200
    assert reader.stretch(order[:300]) == 300
