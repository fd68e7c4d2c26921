"""What a program answers becomes rows of the types that were asked for, or is refused by column and value."""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import Ragged, to_array, to_batch
from tensorflowonspark.errors import FeedError
from tests.support.columns import columns, filled, own_kind

UTC = timezone.utc


def answered(values, kind):
    """The rows that values become as a column of a type."""
    rows = len(values) if isinstance(values, (list, np.ndarray, Ragged)) else 2
    batch = to_batch(values, pa.schema({"y": kind}), rows)
    assert batch.schema.field("y").type == kind
    batch.validate(full=True)
    return batch.column("y").to_pylist()


def refusal(values, kind, rows=2):
    with pytest.raises(FeedError) as caught:
        to_batch(values, pa.schema({"y": kind}), rows)
    return str(caught.value)


def objects(*rows):
    """Rows as a ragged column's come: an object array."""
    out = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        out[number] = row
    return out


def depth(value):
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@pytest.mark.parametrize(
    ("values", "kind", "rows"),
    [
        (np.array([1, 2]), pa.int64(), [1, 2]),
        (np.array([1, 2]), pa.int8(), [1, 2]),
        (np.array([1.0, 2.0]), pa.int32(), [1, 2]),
        (np.array([1, 2]), pa.float32(), [1.0, 2.0]),
        (np.array([1.5, 1e300]), pa.float32(), [1.5, float("inf")]),
        (np.array([1 / 3]), pa.float32(), [float(np.float32(1 / 3))]),
        (np.array([1.5, 2.5], np.float16), pa.float64(), [1.5, 2.5]),
        (np.array([1, 2], np.uint8), pa.int16(), [1, 2]),
        (np.array([[1.5], [2.5]]), pa.float32(), [1.5, 2.5]),
        (np.array([[1, 2], [3, 4]]), pa.float32(), None),
        (np.arange(6)[::2], pa.int64(), [0, 2, 4]),
        (np.arange(6).reshape(2, 3).T, pa.int64(), None),
        (np.array([True, False]), pa.bool_(), [True, False]),
        (np.array([1, 0]), pa.bool_(), [True, False]),
        (np.array([True, False]), pa.float32(), [1.0, 0.0]),
        (np.array(["a", "ü"]), pa.string(), ["a", "ü"]),
        (np.array(["a", "ü"]), pa.large_string(), ["a", "ü"]),
        (np.array([b"a", "ü".encode()], object), pa.string(), ["a", "ü"]),
        (np.array([["a"], ["b"]]), pa.string(), ["a", "b"]),
        (np.array([["a"], ["b"]], object), pa.string(), ["a", "b"]),
        (["a\0", "b"], pa.string(), ["a\0", "b"]),
        ([b"a\0", b"b"], pa.binary(), [b"a\0", b"b"]),
        ([1, None], pa.int32(), [1, None]),
        ([None, None], pa.float32(), [None, None]),
        ([True, None], pa.bool_(), [True, None]),
        ([np.float32(1.5), np.float64(2.5)], pa.float32(), [1.5, 2.5]),
        ([Decimal("1.5"), None], pa.decimal128(10, 2), [Decimal("1.50"), None]),
        (np.array([1.5, 2.0]), pa.decimal128(10, 2), [Decimal("1.50"), Decimal("2.00")]),
        ([date(2020, 1, 1), None], pa.date32(), [date(2020, 1, 1), None]),
        (np.array([0, 31]), pa.date32(), [date(1970, 1, 1), date(1970, 2, 1)]),
        (np.array(["2020-01-01"], "M8[D]"), pa.date32(), [date(2020, 1, 1)]),
        (np.array([0, 10**6]), pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, 0, 0, s, tzinfo=UTC) for s in (0, 1)]),
        (np.array([7], np.int32), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 0, 7)]),
        (np.array(["2020-01-01T01"], "M8[ns]"), pa.timestamp("us", "UTC"), [datetime(2020, 1, 1, 1, tzinfo=UTC)]),
        ([datetime(2020, 1, 1, 1)], pa.timestamp("us"), [datetime(2020, 1, 1, 1)]),
        (np.array([5]), pa.duration("us"), [timedelta(microseconds=5)]),
        ([[1, 2], [3]], pa.int64(), None),
        (objects(np.array([1.0]), None, np.array([2.0, 3.0])), pa.float32(), [[1.0], None, [2.0, 3.0]]),
        ([[], [[1, 2], []]], pa.int64(), [[], [[1, 2], []]]),
        ([[["a"], ["b", "c\0"]], []], pa.string(), None),
        ([np.zeros((1, 2)), np.ones((2, 1))], pa.float32(), [[[0.0, 0.0]], [[1.0], [1.0]]]),
        ([[1, None], [3, 4]], pa.int64(), None),
        (np.zeros((2, 0)), pa.float32(), [[], []]),
        (np.zeros((2, 1, 3)), pa.float32(), None),
        (Ragged(np.arange(3), (np.array([0, 1, 3]),)), pa.float32(), [[0.0], [1.0, 2.0]]),
        (np.array([[[b"a"]], [[b"b"]]], object), pa.binary(), None),
    ],
)  # fmt: skip
def test_arrays_lists_and_ragged_rows_become_columns(values, kind, rows):
    expected = rows if rows is not None else values if isinstance(values, list) else values.tolist()
    for _ in range(depth(expected) - 1):
        kind = pa.list_(pa.field("element", kind))  # as Spark names it
    assert answered(values, kind) == expected


def test_nan_stays_nan():
    assert np.isnan(answered(np.array([np.nan, 1.0]), pa.float32())[0])


def test_bytes_that_stand_for_a_null_keep_their_zeros():
    kind = own_kind(pa.array([None, [b"a"]], pa.list_(pa.binary())), shape=(1,), fill=b"b\0")
    assert to_array(pa.array([None, [b"a"]], pa.list_(pa.binary())), kind).tolist() == [[b"b\0"], [b"a"]]


@settings(max_examples=100, deadline=None)
@given(columns())
def test_what_was_read_can_be_answered(column):
    kind = own_kind(column.array, shape=column.sizes or None, fill=column.fill)
    wanted = column.array.type
    back = to_batch(to_array(column.array, kind), pa.schema({"y": wanted}), len(column.array)).column("y")
    assert back.type == wanted
    expected = [filled(row, column.sizes, column.fill) for row in column.array.to_pylist()]
    assert [filled(row, column.sizes, None) for row in back.to_pylist()] == expected


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([(None,), (None, None), (None, 2)]), st.data())
def test_what_was_read_as_ragged_can_be_answered(sizes, data):
    column = data.draw(columns(sizes=sizes, nulls=False))
    values = to_array(column.array, own_kind(column.array, shape=sizes))
    rows = len(column.array)
    for answer in (values, values.rows(), list(values.rows())):
        back = to_batch(answer, pa.schema({"y": column.array.type}), rows).column("y")
        assert back.to_pylist() == column.array.to_pylist()


def test_tensors_are_answers_too():
    tf = pytest.importorskip("tensorflow")
    assert answered(tf.constant([[1.5], [2.5]]), pa.float32()) == [1.5, 2.5]
    assert answered(tf.constant([1.5, 2.5], tf.bfloat16), pa.float32()) == [1.5, 2.5]
    assert answered(tf.constant(["a", "ü"]), pa.string()) == ["a", "ü"]
    assert answered([tf.constant(1), tf.constant(2)], pa.int64()) == [1, 2]
    ragged = tf.ragged.constant([[[1], []], [[2, 3]]])
    assert answered(ragged, pa.list_(pa.list_(pa.float32()))) == [[[1.0], []], [[2.0, 3.0]]]


def test_columns_are_found_by_name_and_others_left_out():
    schema = pa.schema({"b": pa.float32(), "a": pa.string()})
    batch = to_batch({"a": ["x", "y"], "b": np.array([1, 2]), "more": 7}, schema, 2)
    assert batch.schema == schema
    assert batch.to_pydict() == {"b": [1.0, 2.0], "a": ["x", "y"]}


def test_several_columns_need_a_dict_with_all_of_them():
    schema = pa.schema({"a": pa.int8(), "b": pa.int8()})
    with pytest.raises(FeedError, match=r"returned a ndarray, .* columns \['a', 'b'\]: return a dict"):
        to_batch(np.zeros((2, 2)), schema, 2)
    with pytest.raises(FeedError, match=r"result has no 'b', only \['a', 'c'\]"):
        to_batch({"a": [1], "c": [1]}, schema, 1)


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        (np.zeros(3), pa.int8(), "column 'y': 2 rows went in, and 3 values came out: there must be as many"),
        (7, pa.int8(), "2 rows went in, and the single value 7 came out"),
        (None, pa.int8(), "2 rows went in, and the single value None came out"),
        ("ab", pa.string(), "2 rows went in, and the single value 'ab' came out"),
        (
            np.zeros((2, 3)),
            pa.float32(),
            "has type float, and the program's values have shape (3,): ask for array<...>",
        ),
        (np.zeros((2, 3, 1)), pa.list_(pa.float32()), "shape (3, 1): ask for array<...>"),
        (np.zeros(2), pa.list_(pa.float32()), "shape (): ask for a scalar type"),
        (np.array([1.5, 2]), pa.int32(), "values (float64, first: 1.5) can't be turned into int32: Float value 1.5"),
        (np.array([np.nan, 2]), pa.int32(), "can't be turned into int32"),
        (np.array([1, 2**40]), pa.int32(), "Integer value 1099511627776 not in range"),
        ([1.5, None], pa.int32(), "values (object, first: 1.5) can't be turned into int32"),
        (
            [np.array([1.5]), np.array([1, 2])],
            pa.list_(pa.int32()),
            "can't be turned into list<item: int32>: Float value",
        ),
        (np.array([0.3, 1.0]), pa.bool_(), "expected booleans, or nothing but 0 and 1"),
        (["a", 1], pa.string(), "values (object, first: 'a') can't be turned into string"),
        (["a", "b"], pa.float32(), "can't be turned into float"),
        ([b"\xff", b""], pa.string(), "can't be turned into string"),
        (np.array([1j, 2]), pa.float32(), "values (complex128, first: 1j) can't be turned into float"),
        ([object(), 1], pa.float32(), "values (object, first: <object object at"),
        ([1, [2]], pa.list_(pa.int64()), "some rows have single values instead of arrays"),
        ([[1], [[2]]], pa.list_(pa.int64()), "can't be turned into list<item: int64>"),
        ([[1], [2, 3]], pa.int64(), "can't be turned into int64"),
        (["x" * 100, 1], pa.string(), f"first: '{'x' * 59}...) can't"),
        (np.zeros(2, "i4,f4"), pa.float32(), "can't be turned into float"),
    ],
)
def test_what_does_not_fit_is_refused_by_column_and_value(values, kind, told):
    assert told in refusal(values, kind)
    assert "result column 'y'" in refusal(values, kind)
