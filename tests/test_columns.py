import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.columns import check_types, merge, row_dtype, row_shape, summarize, to_numpy, zeros
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import ColumnSummary

NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_scalars(kind, rows):
    column = pa.array(range(rows), kind)
    values = to_numpy(column, ())
    assert values.dtype == row_dtype(kind)
    assert values.tolist() == column.to_pylist()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3)], ids=str
)
def test_arrays_are_views_of_arrows_memory(kind):
    column = pa.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], kind)
    values = to_numpy(column, (3,))
    assert values.tolist() == column.to_pylist()
    assert not values.flags.owndata
    assert to_numpy(column.slice(1, 1), (3,)).tolist() == [[4, 5, 6]]


def test_nested_arrays():
    column = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]])
    (summary,) = summarize(pa.record_batch({"x": column})).values()
    assert summary == ColumnSummary(0, ((3, 3), (2, 2)))
    assert row_shape("x", summary) == (3, 2)
    assert to_numpy(column, (3, 2)).tolist() == column.to_pylist()


def test_booleans_strings_and_bytes():
    assert to_numpy(pa.array([True, False]), ()).tolist() == [True, False]
    assert to_numpy(pa.array([[True], [False]]), (1,)).tolist() == [[True], [False]]
    assert to_numpy(pa.array(["a", "ü"]), ()).tolist() == ["a", "ü"]
    assert to_numpy(pa.array([b"a\0", b""]), ()).tolist() == [b"a\0", b""]
    assert row_dtype(pa.list_(pa.string())).kind == "O"
    assert zeros(2, row_dtype(pa.binary()), ()).tolist() == [b"", b""]


def test_a_null_names_its_column():
    summary = summarize(pa.record_batch({"x": [1, None, None]}))["x"]
    with pytest.raises(FeedError, match="column 'x' holds 2 nulls"):
        row_shape("x", summary)
    inner = summarize(pa.record_batch({"x": pa.array([[1.0, None]])}))["x"]
    with pytest.raises(FeedError, match="column 'x' holds 1 nulls"):
        row_shape("x", inner)


def test_arrays_of_several_lengths_name_them():
    summary = summarize(pa.record_batch({"x": pa.array([[1], [2, 3]])}))["x"]
    with pytest.raises(FeedError, match="column 'x' holds arrays of 1 to 2 values"):
        row_shape("x", summary)


@pytest.mark.parametrize("kind", [pa.date32(), pa.map_(pa.string(), pa.int32()), pa.list_(pa.timestamp("us"))], ids=str)
def test_types_that_no_tensor_holds_are_refused(kind):
    with pytest.raises(FeedError, match="column 'bad' has type"):
        check_types(pa.schema([("good", pa.int32()), ("bad", kind)]))


@given(st.lists(st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=4), min_size=1, max_size=5))
def test_summaries_of_pieces_add_up_to_that_of_the_whole(rows):
    whole = pa.record_batch({"x": pa.array(rows, pa.list_(pa.list_(pa.int64())))})
    pieces = [whole.slice(start, 1) for start in range(whole.num_rows)]
    assert merge(map(summarize, pieces)) == summarize(whole)


@given(st.integers(0, 6), st.integers(1, 4), st.sampled_from(NUMBERS))
def test_there_and_back(rows, width, kind):
    values = np.arange(rows * width).reshape(rows, width).astype(row_dtype(kind))
    column = pa.array(values.tolist(), pa.list_(kind))
    assert np.array_equal(to_numpy(column, (width,)), values)
