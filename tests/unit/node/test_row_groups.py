"""Row groups of Parquet files: filters, statistics, partition columns, and files whose columns differ."""

from dataclasses import replace
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.parquet_source import ParquetSource
from tensorflowonspark.node.feed.row_groups import RowGroup
from tensorflowonspark.node.feed.source import Source
from tensorflowonspark.storage.partition_columns import directory_of


def groups_of(path, columns=None, rows=None):
    listed = ParquetSource([str(path)], columns=columns, filter=rows).find()
    return listed.splits, listed.schema


def rows_of(groups):
    return [row for group in groups for batch in group.batches() for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def table():
    ids = np.arange(1000)
    x = [None if each % 7 == 0 else float(each % 50) for each in ids]
    s = [None if each % 11 == 0 else {"a": int(each % 3)} for each in ids]
    text = [f"row {each % 13}" for each in ids]
    return pa.table({"id": ids, "x": x, "s": s, "t": text, "day": ids // 250})


@pytest.fixture(scope="module")
def days(table, tmp_path_factory):
    """A directory for each day, which the files themselves do not have; row groups of 50."""
    path = tmp_path_factory.mktemp("days")
    for day in range(4):
        (path / f"day={day}").mkdir()
        rows = table.filter(pc.field("day") == day).drop(["day"])
        pq.write_table(rows, path / f"day={day}" / "rows.parquet", row_group_size=50)
    return path


comparisons = st.one_of(
    st.builds(lambda n: pc.field("id") >= n, st.integers(-5, 1005)),
    st.builds(lambda n: pc.field("x") < n, st.floats(-1, 51)),
    st.builds(lambda n: pc.field("s", "a") == n, st.integers(0, 3)),
    st.builds(lambda n: pc.field("t") == f"row {n}", st.integers(0, 14)),
    st.builds(lambda n: pc.field("day") <= n, st.integers(-1, 4)),
    st.just(pc.field("x").is_null()),
)
filters = st.recursive(
    comparisons,
    lambda some: st.one_of(
        st.builds(lambda a, b: a & b, some, some), st.builds(lambda a, b: a | b, some, some), some.map(lambda a: ~a)
    ),
    max_leaves=4,
)


@pytest.mark.deep
@settings(max_examples=25, deadline=None)
@given(filters, st.sampled_from([["id"], ["t", "id"], ["day", "x", "s", "t", "id"]]))
def test_a_filter_passes_the_rows_that_arrow_passes(table, days, expression, columns):
    groups, schema = groups_of(days, columns, expression)
    assert schema.names == columns
    expected = table.filter(expression).select(columns)
    counted = [group.count() for group in groups]
    assert sum(counted) == expected.num_rows
    assert counted == [sum(batch.num_rows for batch in group.batches()) for group in groups]
    assert rows_of(groups) == expected.to_pylist()


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        (pc.field("id") < 120, [0, 1, 2]),
        (pc.field("day") == 2, [0, 1, 2, 3, 4]),
        ((pc.field("day") > 2) & (pc.field("id") > 900.5), [3, 4]),
        (pc.field("day") == 7, []),
        (pc.field("id") > 5000, []),
    ],
)
def test_row_groups_are_excluded_by_statistics_and_directories(days, expression, numbers):
    groups, _ = groups_of(days, ["t"], expression)
    assert [group.number for group in groups] == numbers


DAYS = {"2024-01-01": 0, "2024-01-02": 1, "2024-02-01": 2, None: 3}  # with the rows of each


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pc.field("day") == date(2024, 1, 2), [1]),
        (pc.field("day") > date(2024, 1, 1), [1, 2]),
        (~(pc.field("day") == date(2024, 1, 2)), [0, 2]),
        (pc.field("day").isin([date(2024, 1, 1), date(2024, 2, 1)]), [0, 2]),
        (pc.field("day").is_null(), [3]),
        (pc.field("day").is_valid() & (pc.field("id") > 0), [1, 2]),
        (pc.field("day").is_null() | (pc.field("id") == 1), None),  # any directory may have such rows
        (pc.month(pc.field("day")) == 2, [2]),
        (pc.field("id") == 1, None),
    ],
)
def test_files_of_directories_that_a_filter_excludes_are_not_opened(tmp_path, expression, expected):
    """But the first one, which has the columns: others are no Parquet files, unless they may have rows that pass."""
    for day, number in DAYS.items():
        folder = tmp_path / directory_of("day", day)
        folder.mkdir()
        pq.write_table(pa.table({"id": [number]}), folder / "rows.parquet")
    whole = rows_of(groups_of(tmp_path, ["day", "id"])[0])
    first = min(folder.name for folder in tmp_path.iterdir())
    for day, number in DAYS.items():
        folder = directory_of("day", day)
        if expected is not None and number not in expected and folder != first:
            (tmp_path / folder / "rows.parquet").write_bytes(b"damaged")
    found = rows_of(groups_of(tmp_path, ["day", "id"], expression)[0])
    schema = pa.schema({"day": pa.date32(), "id": pa.int64()})
    assert found == pa.Table.from_pylist(whole, schema).filter(expression).to_pylist()
    assert expected is None or sorted(row["id"] for row in found) == expected


def test_a_filter_that_does_not_fit_the_first_file_is_applied_to_those_of_other_types(tmp_path):
    for day, value in enumerate([None, "a", "b"]):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"t": [value]}), tmp_path / f"day={day}" / "rows.parquet")
    assert rows_of(groups_of(tmp_path, ["t"], (pc.field("t") == "b") & (pc.field("day") > 1))[0]) == [{"t": "b"}]


def test_a_filter_of_directories_alone_is_counted_without_reading(days, monkeypatch):
    groups, _ = groups_of(days, ["t"], pc.field("day") == 2)
    monkeypatch.setattr(RowGroup, "_stored", None)
    assert [group.count() for group in groups] == [50] * 5


def test_the_columns_of_the_filter_alone_are_read_to_count(days, monkeypatch):
    read, stored = [], RowGroup._stored
    monkeypatch.setattr(RowGroup, "_stored", lambda group, names: read.append(names) or stored(group, names))
    assert groups_of(days, ["t"], pc.field("x") < 3)[0][0].count() > 0
    assert read == [["x"]]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (pc.field("colour") > 3, r"filter=\(colour > 3\): No match for FieldRef.Name\(colour\), only id, x, s, t, day"),
        (pc.field("s", "b") > 3, "No match for FieldRef.Nested"),
        (pc.field("t") > 3, "no kernel matching input types"),
        (pc.field("x") + 1, "of type double, and must be true or false"),
        (pc.field(0) > 1, "name its columns"),
        ([("x", ">", 3)], "expected an expression of Arrow"),
        ("x > 3", "expected an expression of Arrow"),
    ],
)
def test_a_wrong_filter_is_refused_before_anything_is_read(days, monkeypatch, expression, message):
    monkeypatch.setattr(RowGroup, "_stored", None)
    with pytest.raises(SpecError, match=message):
        groups_of(days, ["t"], expression)


def test_a_filter_that_fails_on_a_value_names_file_and_row_group(days):
    groups, _ = groups_of(days, ["t"], (pc.scalar(1000) / pc.field("id")) > 2)
    for read in (RowGroup.count, lambda group: rows_of([group])):
        with pytest.raises(FeedError, match=r"day=0/rows.parquet, row group 0 can't be read: divide by zero"):
            read(groups[0])


def test_a_request_for_a_worker_keeps_its_filter(days):
    import json

    files = ParquetSource([str(days)], columns=["id"], filter=pc.field("x") < 3, cache_limit="1m")
    again = Source.from_json(json.loads(json.dumps(files.to_json())))
    assert again.filter.equals(files.filter)
    assert replace(again, filter=None) == replace(files, filter=None)


# ---- files whose columns differ


def two_files(path, first, second):
    pq.write_table(pa.table(first), path / "1.parquet")
    pq.write_table(pa.table(second), path / "2.parquet")
    return path


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"y": [1]}, "2.parquet has no column x, as .*1.parquet has"),
        ({"x": ["1"]}, "2.parquet: column x is string, and int64 in .*1.parquet"),
        ({"x": [1.5]}, "2.parquet: column x is double, and int64 in .*1.parquet"),
        ({"x": [[1]]}, r"2.parquet: column x is list<element: int64>, and int64 in .*1.parquet"),
        ({"x": [True]}, "2.parquet: column x is bool, and int64 in .*1.parquet"),
    ],
)
def test_files_of_different_columns_are_refused(tmp_path, second, message):
    with pytest.raises(SpecError, match=message):
        groups_of(two_files(tmp_path, {"x": [1, 2]}, second))


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (pa.array([1], pa.int64()), pa.array([2], pa.int8()), [1, 2]),
        (pa.array([1.5]), pa.array([2], pa.int32()), [1.5, 2.0]),
        (pa.array(["a"]), pa.array(["b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([[1]]), pa.array([[2, None]], pa.list_(pa.int16())), [[1], [2, None]]),
        (pa.array([1]), pa.nulls(1), [1, None]),
    ],
)
def test_values_of_fewer_bits_are_converted(tmp_path, first, second, values):
    groups, _ = groups_of(two_files(tmp_path, {"x": first}, {"x": second}))
    assert [row["x"] for row in rows_of(groups)] == values
    assert all(group.batches().__next__().schema == groups[0].file.schema for group in groups)
    kept, _ = groups_of(tmp_path, None, pc.field("x").is_valid())
    assert [row["x"] for row in rows_of(kept)] == [each for each in values if each is not None]


def test_a_value_that_does_not_fit_is_named_by_file_and_row_group(tmp_path):
    groups, _ = groups_of(two_files(tmp_path, {"x": pa.array([1], pa.int8())}, {"x": [300]}))
    with pytest.raises(FeedError, match=r"2.parquet, row group 0 can't be read: column x: Integer value 300 not"):
        rows_of(groups)


def test_a_file_that_changes_while_it_is_listed_and_read(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"x": range(100), "text": ["a"] * 100}), path, row_group_size=50)
    groups, _ = groups_of(path)
    pq.write_table(pa.table({"x": range(100), "text": [f"b{each}" for each in range(100)]}), path, row_group_size=50)
    with pytest.raises(FeedError, match=r"1.parquet, row group 0 has other values than when it was listed"):
        rows_of(groups)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(SpecError, match=r"1.parquet is no Parquet file"):
        groups_of(path)
    with pytest.raises(FeedError, match=r"1.parquet, row group 1 can't be read"):
        groups[1].count() + rows_of(groups[1:])
