"""A summary tells the nulls of a column and the lengths of its arrays, and where the first of each stands."""

import re
from datetime import datetime
from time import perf_counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import merge, summarize
from tensorflowonspark.messages import ColumnSummary
from tests.support.columns import VECTOR, columns, dense, pieces, sparse, vectors


def summary_of(column, *where):
    return summarize(pa.record_batch({"x": column}), *where)["x"]


def walk(value, depth, level=0, path=()):
    """Each value of a nested one with its level, where it stands in it, and its length if it is an array."""
    yield level, path, value
    if level < depth and value is not None:
        for index, each in enumerate(value):
            yield from walk(each, depth, level + 1, (*path, index))


def naive_summary(rows, depth, leaf_has_length):
    """The nulls, the first one's place, and each level's shortest and longest with their first places."""
    found = [(level, row, path, value) for row, whole in enumerate(rows) for level, path, value in walk(whole, depth)]
    found.sort(key=lambda each: (each[0], each[1], each[2]))
    nulls = [(row, path) for _, row, path, value in found if value is None]
    extents = []
    for level in range(depth + leaf_has_length):
        lengths = [(len(value), row, path) for at, row, path, value in found if at == level and value is not None]
        if lengths:
            low, high = min(lengths, key=lambda each: each[0]), max(lengths, key=lambda each: each[0])
            extents.append((low[0], low[1:], high[0], high[1:]))
    return len(nulls), nulls[0] if nulls else None, extents


def place(told):
    """The row and the place in it that a summary's text tells."""
    match = re.match(r"row (\d+) of partition 3(?:, item ((?:\[\d+\])+) of |: |$)", told)
    return int(match[1]) - 100, tuple(map(int, re.findall(r"\d+", match[2] or "")))


@settings(max_examples=100, deadline=None)
@given(columns(sizes=(None, None)) | columns(sizes=(None,)) | columns(sizes=(2, None)) | columns())
def test_nulls_and_lengths_and_where_they_are_first_seen(column):
    depth = len(column.sizes)
    found = summary_of(column.array, 3, 100)
    nulls, null_at, extents = naive_summary(column.array.to_pylist(), depth, "binary" in str(column.leaf))
    assert found.nulls == nulls
    assert (place(found.null_at) if found.null_at else None) == null_at
    assert [(each.shortest, each.longest) for each in found.lengths] == [(low, high) for low, _, high, _ in extents]
    for told, (_, low_at, _, high_at) in zip(found.lengths, extents, strict=True):
        assert (place(told.shortest_at), place(told.longest_at)) == (low_at, high_at)


@given(st.data())
def test_the_length_of_a_vector_is_its_size(data):
    rows = data.draw(st.lists(st.none() | st.integers(0, 4).flatmap(vectors), max_size=6))
    column = data.draw(pieces(pa.array(rows, VECTOR)))
    sizes = [len(row["values"]) if row["type"] else row["size"] for row in column.to_pylist() if row is not None]
    found = summary_of(column)
    assert found.nulls == column.null_count
    assert [(each.shortest, each.longest) for each in found.lengths] == ([(min(sizes), max(sizes))] if sizes else [])


@pytest.mark.deep
@settings(deadline=None)
@given(columns(sizes=(None, None), max_rows=9), st.data())
def test_summaries_of_pieces_add_up_to_that_of_the_whole(column, data):
    rows = len(column.array)
    cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1)))) if rows > 1 else []
    parts = [column.array.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)]
    starts = [0, *cuts]
    pieces = [
        summarize(pa.record_batch({"x": part}), 5, start)
        for part, start in zip(parts, starts, strict=True)
        if len(part)
    ]
    whole = summary_of(column.array, 5, 0)
    together = merge(pieces).get("x", ColumnSummary())
    assert together.nulls == whole.nulls
    assert [(each.shortest, each.longest) for each in together.lengths] == [
        (each.shortest, each.longest) for each in whole.lengths
    ]


def test_of_equals_the_first_is_shown():
    batches = [pa.record_batch({"x": [[1, 2]]}), pa.record_batch({"x": [[3, 4]]})]
    (extent,) = merge(summarize(batch, number) for number, batch in enumerate(batches))["x"].lengths
    assert extent.shortest_at == extent.longest_at == "row 0 of partition 0: [1, 2]"


@pytest.mark.parametrize("order", [1, -1])
def test_a_level_that_some_batches_do_not_show_is_that_of_the_others(order):
    batches = [pa.record_batch({"x": pa.array(rows, pa.list_(pa.list_(pa.int8())))}) for rows in ([[]], [[[1]], [[2]]])]
    merged = merge(map(summarize, batches[::order]))["x"]
    assert [(each.shortest, each.longest) for each in merged.lengths] == [(0, 1), (1, 1)]


def test_columns_of_several_batches_are_put_together_by_name():
    assert list(merge([summarize(pa.record_batch({"x": [1]})), summarize(pa.record_batch({"y": [1]}))])) == ["x", "y"]


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([list(range(784))]), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1..."),
        (pa.array([[[0] * 50] * 50]), "[[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0..."),
        (pa.array([[[], [None, 1.5]]]), "[[], [None, 1.5]]"),
        (pa.array([b"ab" * 100]), "b'" + "ab" * 29 + "..."),
        (pa.array([["a", "b\n"]]), r"['a', 'b\n']"),
        (pa.array([[datetime(2020, 1, 1)]]), "[2020-01-01 00:00:00]"),
        (pa.array([[10**18]], pa.list_(pa.timestamp("us", "UTC"))), "[1000000000000000000 (timestamp[us, tz=UTC])]"),
        (pa.array([[1]], pa.list_(pa.timestamp("us", "No/Where"))), "[1 (timestamp[us, tz=No/Where])]"),
        (pa.array([dense([1.0, 2.0])], VECTOR), "[1.0, 2.0]"),
        (pa.array([sparse(5, {1: 1.0, 3: 2.0})], VECTOR), "(5, [1, 3], [1.0, 2.0])"),
    ],
)
def test_a_value_is_shown_as_python_writes_it_and_cut_where_it_is_long(column, shown):
    assert summary_of(column).lengths[0].longest_at == f"row 0 of partition 0: {shown}"


def test_a_null_in_an_array_is_shown_in_its_row():
    told = summary_of(pa.array([[[1], [2, None]]]), 7, 40).null_at
    assert told == "row 40 of partition 7, item [1][1] of [[1], [2, None]]"


def test_wide_rows_are_summarized_quickly():
    rows = 10_000
    values = pa.array(np.zeros(rows * 784, np.float32))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 784)
    wide = pa.record_batch({"x": pa.ListArray.from_arrays(offsets, values), "b": pa.array([b"a" * 784] * rows)})
    start = perf_counter()
    for _ in range(10):
        summarize(wide)
    assert perf_counter() - start < 0.5  # it takes 2 ms; to convert all rows takes seconds
