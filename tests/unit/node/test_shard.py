"""Rows are found by their number, over any batches, as if they were in one list."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import Kind, Ragged
from tensorflowonspark.node.feed.shard import Shard

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
