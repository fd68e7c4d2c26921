"""What a column is in numpy; and what it can't be, by its name, with the row that shows it."""

import re
from decimal import Decimal

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.columns import Kind, kind_of, merge, summarize
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import ColumnSummary
from tests.support.columns import VECTOR, dense, own_kind


def refusal(column, **options):
    """What is said of a column that can't be had like that: its rows are those from 40 on of partition 7."""
    summary = summarize(pa.record_batch({"x": column}), 7, 40)["x"]
    with pytest.raises(FeedError) as caught:
        kind_of("x", column.type, summary, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [
        (pa.int8(), "int8"), (pa.int16(), "int16"), (pa.int32(), "int32"), (pa.int64(), "int64"),
        (pa.float32(), "float32"), (pa.float64(), "float64"), (pa.bool_(), "bool"), (pa.string(), "object"),
        (pa.large_string(), "object"), (pa.binary(), "object"), (pa.large_binary(), "object"), (pa.date32(), "int32"),
        (pa.timestamp("us"), "int64"), (pa.timestamp("us", "UTC"), "int64"), (pa.duration("us"), "int64"),
        (pa.time64("ns"), "int64"), (pa.decimal128(10, 2), "float64"), (pa.list_(pa.int8()), "int8"),
        (pa.list_(pa.list_(pa.date32())), "int32"),
    ],
    ids=str,
)  # fmt: skip
def test_each_type_has_a_dtype(type_, dtype):
    depth = str(type_).count("list")
    assert kind_of("x", type_, ColumnSummary(), shape=(2,) * depth or None).dtype == np.dtype(dtype)


def test_arrays_of_one_length_have_it_as_their_shape():
    assert own_kind(pa.array([[1, 2], [3, 4]])).shape == (2,)
    assert own_kind(pa.array([[[1, 2, 3]], [[4, 5, 6]]])).shape == (1, 3)
    assert own_kind(pa.array([dense([1, 2])], VECTOR)) == Kind(np.dtype("float64"), (2,))
    assert own_kind(pa.array([[], []], pa.list_(pa.list_(pa.int8())))).shape == (0, 0)


def test_strings_and_bytes_are_single_values():
    assert own_kind(pa.array(["a", "bc"])) == Kind(np.dtype(object), (), text=True)
    assert own_kind(pa.array([b"a", b"bc"])) == Kind(np.dtype(object), ())
    assert own_kind(pa.array([[b"a", b"bc"]])).shape == (2,)


def test_bytes_are_numbers_where_a_shape_or_a_cast_is_declared():
    column = pa.array([b"abcd", b"efgh"])
    assert own_kind(column, shape=(2, 2)) == Kind(np.dtype("uint8"), (2, 2), decoded=True)
    assert own_kind(column, cast="float32") == Kind(np.dtype("float32"), (4,), decoded=True)
    assert own_kind(column, shape=(None,)).ragged


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (pa.array([[1, 2, 3, 4]]), (2, 2)),
        (pa.array([[1, 2, 3, 4]]), [4, 1]),
        (pa.array([[1, 2, 3, 4]]), (np.int64(4),)),
        (pa.array([[[1, 2], [3, 4]]]), (4,)),
        (pa.array([[1], [1, 2]]), (None,)),
        (pa.array([[[1, 2]], []]), (None, 2)),
        (pa.array([[[1, 2, 3, 4]], []]), (None, 2, 2)),
        (pa.array([[[1], [2, 3]]]), (None, None)),
        (pa.array([[1, 2]]), (None,)),
        (pa.array([[[1, 2]]]), (None, None)),
        (pa.array([1]), (1,)),
        (pa.array([1]), ()),
        (pa.array([[1]]), ()),
        (pa.array([], pa.list_(pa.int8())), (3,)),
        (pa.array([[]], pa.list_(pa.list_(pa.int8()))), (0, 5)),
        (pa.array([[]], pa.list_(pa.list_(pa.int8()))), (None, 5)),
    ],
)
def test_a_declared_shape_is_the_shape(column, shape):
    assert own_kind(column, shape=shape).shape == tuple(shape)


def test_what_differs_is_distinguished_from_what_does_not():
    kind = own_kind(pa.array([[[1, 2]], []]), shape=(None, 2))
    assert (kind.ragged, kind.varying, kind.inner) == (True, 1, (2,))
    assert not own_kind(pa.array([1])).ragged


# ---- nulls


def test_a_null_is_refused_by_column_row_and_partition():
    assert refusal(pa.array([1, None, None])) == (
        "column 'x' holds 2 nulls, the first in row 41 of partition 7: df.where(\"x is null\") shows them; drop or "
        "replace in Spark (df.dropna, df.fillna), or declare what stands for a null, as in fill={'x': 0}"
    )


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([[1], [2], None]), 'partition 7: df.where("x is null or exists(x, v -> v is null)") shows it; drop'),
        (pa.array([[1], [None, 2]]), "1 null, the first in row 41 of partition 7, item [0] of [None, 2]"),
        (pa.array(["a", None]), r"fill={'x': ''}"),
        (pa.array([b"a", None]), r"fill={'x': b''}"),
        (pa.array([True, None]), r"fill={'x': False}"),
        (pa.array([None, dense([1])], VECTOR), 'row 40 of partition 7: df.where("x is null") shows it; drop'),
        (pa.array([{"a": 1}]), "column 'x' has type struct<a: int64>, which no tensor can hold"),
    ],
)
def test_nulls_and_types_of_all_kinds_are_reported(column, told):
    assert told in refusal(column)


@pytest.mark.parametrize(
    ("column", "fill", "options"),
    [
        (pa.array([1, None]), 0, {}),
        (pa.array([1, None]), np.int8(-3), {}),
        (pa.array([1, None]), 2.0, {}),
        (pa.array([1, None]), float("nan"), {"cast": "float32"}),
        (pa.array([1.5, None]), 0.1, {"cast": "float32"}),
        (pa.array([1.5, None]), Decimal("0.1"), {}),
        (pa.array([True, None]), 0, {}),
        (pa.array(["a", None]), "", {}),
        (pa.array([b"a", None]), b"-", {}),
        (pa.array([b"a", None]), 0, {"shape": (1,)}),
        (pa.array([None, 1], pa.date32()), -1, {}),
        (pa.array([None, 1], pa.timestamp("us", "UTC")), 2**60, {}),
        (pa.array([1, 2]), 0, {}),
    ],
)
def test_a_fill_stands_for_nulls(column, fill, options):
    assert own_kind(column, fill=fill, **options).fill is fill


@pytest.mark.parametrize(
    ("column", "fill", "options"),
    [
        (pa.array([1, 2]), "abc", {}),
        (pa.array([1, 2]), "5", {}),
        (pa.array([1, 2]), 0.5, {}),
        (pa.array([1, 2]), float("nan"), {}),
        (pa.array([1, 2]), 2**80, {}),
        (pa.array([1, 2], pa.int8()), 128, {}),
        (pa.array([b"a"]), -1, {"shape": (1,)}),
        (pa.array([True]), 2, {}),
        (pa.array([1.5]), "5", {}),
        (pa.array([1.5]), [0.0], {}),
        (pa.array([[1, 2]]), [0, 0], {}),
        (pa.array([1.5]), object(), {}),
        (pa.array([1], pa.timestamp("us")), np.datetime64("2020-01-01"), {}),
        (pa.array(["a"]), 0, {}),
        (pa.array(["a"]), b"", {}),
        (pa.array([b"a"]), "", {}),
    ],
)
def test_a_fill_of_another_type_is_refused_even_if_there_is_no_null(column, fill, options):
    assert refusal(column, fill=fill, **options).startswith(f"fill={{'x': {fill!r}}}: column 'x' ")


# ---- dtypes


@pytest.mark.parametrize(
    "cast", ["float32", "int64", "bool", "uint8", "complex64", np.float32, "f4", ml_dtypes.bfloat16]
)
def test_numbers_can_be_cast(cast):
    assert own_kind(pa.array([1, 2]), cast=cast).dtype == np.dtype(cast)


@pytest.mark.parametrize("cast", ["flaot32", "", "str", "object", "U5", "V8", "f4,f4", "(2,)f4", "datetime64[us]", 5])
def test_casts_to_what_is_no_number_are_refused(cast):
    assert refusal(pa.array([1, 2]), cast=cast) == (
        f"dtypes={{'x': {cast!r}}}: expected the dtype of a number, as in 'float32' or 'int64'"
    )
    assert "expected the dtype of a number" in refusal(pa.array([b"a"]), cast=cast)
    for strings in (pa.array(["1"]), pa.array([["1"]])):
        told = "column 'x' holds strings, which can't be cast to 'float32': convert it in Spark"
        assert refusal(strings, cast="float32") == told


# ---- shapes


def test_arrays_of_several_lengths_are_refused_by_column_row_partition_and_value():
    assert refusal(pa.array([[1, 2], [3], [4]])) == (
        "column 'x' holds arrays of different lengths (1 to 2 values), and without a declared shape all must have one "
        "length; see row 41 of partition 7: [3], and row 40 of partition 7: [1, 2]. Pad or cut them in Spark, or "
        "declare a ragged column, as in shapes={'x': (None,)}"
    )


@pytest.mark.parametrize(
    ("column", "options", "advice"),
    [
        (pa.array([[[1], [2, 3]]]), {}, "(None, None)"),
        (pa.array([[[1, 2]], []]), {}, "(None, 2)"),
        (pa.array([[[1, 2]], [[3]]]), {"shape": (None, 2)}, "(None, None)"),
        (pa.array([[[1, 2]], [[3]]]), {"shape": (2,)}, "(None, None)"),
        (pa.array([b"ab", b"c"]), {"shape": (2,)}, "(None,)"),
        (pa.array([b"ab", b"c"]), {"cast": "float32"}, "(None,)"),
        (pa.array([dense([1]), dense([1, 2])], VECTOR), {}, "(None,)"),
    ],
)
def test_a_ragged_shape_is_proposed_that_fits(column, options, advice):
    told = refusal(column, **options)
    assert re.match(
        r"column 'x' holds arrays of different lengths \(\d to \d values\), and .* one length; see row", told
    )
    assert told.endswith(f"shapes={{'x': {advice}}}")
    cast = options.get("cast")
    assert own_kind(column, shape=eval(advice), cast=cast).ragged


def test_arrays_of_another_size_are_refused_by_column_row_partition_and_value():
    assert refusal(pa.array([[1, 2, 3]]), shape=(2, 2)) == (
        "column 'x' holds 3 values in each row, as in row 40 of partition 7: [1, 2, 3], and shapes={'x': (2, 2)} needs "
        "4; what fits is shapes={'x': (3,)}"
    )


@pytest.mark.parametrize(
    ("column", "shape", "told"),
    [
        (pa.array([b"abc"]), (28, 28), "column 'x' holds 3 values in each row, as in row 40 of partition 7: b'abc'"),
        (pa.array([[1]]), (2,), "holds 1 value in each row"),
        (pa.array([[[1, 2]]]), (None, 3), "holds 2 values in each array of level 1"),
        (pa.array([[[1, 2]]]), (None,), "shapes={'x': (None,)} needs 1; what fits is shapes={'x': (None, 2)}"),
        (pa.array([1]), (3,), "column 'x' holds single values where shapes={'x': (3,)} needs 3"),
        (pa.array(["a"]), (3,), "column 'x' holds single values where"),
        (pa.array([1]), (None,), "holds single values, and shapes={'x': (None,)} wants arrays nested 1 deep"),
        (pa.array([[1]]), (None, None), "holds arrays, and shapes={'x': (None, None)} wants arrays nested 2 deep"),
        (pa.array([[1, 2, 3]]), (None, 3), "holds single values where shapes={'x': (None, 3)} needs 3"),
        (pa.array([[1]]), (3, None), "shapes={'x': (3, None)}: the dimensions that vary must come first"),
        (pa.array([[1]]), (-1,), "shapes={'x': (-1,)}: expected a tuple of sizes"),
        (pa.array([[1]]), (1.5,), "shapes={'x': (1.5,)}: expected a tuple of sizes"),
        (pa.array([[1]]), 1, "shapes={'x': 1}: expected a tuple of sizes"),
        (pa.array([[1]]), "1", "shapes={'x': '1'}: expected a tuple of sizes"),
    ],
)
def test_shapes_that_can_not_be_are_refused(column, shape, told):
    assert told in refusal(column, shape=shape)


def test_arrays_that_are_all_null_need_a_declared_shape():
    empty = pa.array([None, None], pa.list_(pa.int8()))
    assert "of which all are null, so that their shape is unknown" in refusal(empty, fill=0)
    assert own_kind(empty, fill=0, shape=(3,)).shape == (3,)
    inside = pa.array([[None, None]], pa.list_(pa.list_(pa.int8())))
    assert "of which all inner ones are null" in refusal(inside, fill=0)
    assert own_kind(inside, fill=0, shape=(2, 5)).shape == (2, 5)
    assert "holds 2 values in each row" in refusal(inside, fill=0, shape=(3,))


def test_what_is_on_other_workers_counts_too():
    parts = [summarize(pa.record_batch({"x": [[1, 2]]}), 0), summarize(pa.record_batch({"x": [[1, 2, 3]]}), 1)]
    with pytest.raises(FeedError, match=r"2 to 3 .* row 0 of partition 0: \[1, 2\], and row 0 of partition 1: \[1"):
        kind_of("x", pa.list_(pa.int64()), merge(parts)["x"])
