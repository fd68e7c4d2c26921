"""Columns become what slow, plain Python makes of them; without a copy where Arrow's layout allows."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import Kind, to_array, view
from tests.support.columns import (
    LEAVES,
    VECTOR,
    array_of,
    as_lists,
    columns,
    dense,
    expand,
    filled,
    leaf_values,
    own_kind,
    pieces,
    sparse,
    vectors,
)

NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64()]
STORED_AS_NUMBERS = [*NUMBERS, pa.date32(), pa.timestamp("us", "UTC"), pa.duration("us"), pa.time64("ns")]


# ---- whatever the type, the nesting and the layout


@settings(max_examples=100, deadline=None)
@given(columns())
def test_a_column_of_fixed_shape_is_what_plain_python_makes_of_it(column):
    kind = own_kind(column.array, shape=column.sizes or None, fill=column.fill)
    values = to_array(column.array, kind)
    assert values.dtype == kind.dtype
    assert values.shape == (len(column.array), *kind.shape)
    assert values.tolist() == [filled(row, column.sizes, column.fill) for row in column.array.to_pylist()]


@settings(max_examples=100, deadline=None)
@given(columns(nulls=False))
def test_a_shape_need_not_be_declared(column):
    assume(len(column.array))
    assert array_of(column.array).tolist() == [filled(row, column.sizes, None) for row in column.array.to_pylist()]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([(None,), (None, None), (None, 3), (None, 2, 1), (None, None, 2)]))
def test_a_ragged_column_is_what_plain_python_makes_of_it(data, sizes):
    column = data.draw(columns(sizes=sizes))
    kind = own_kind(column.array, shape=sizes, fill=column.fill)
    values = to_array(column.array, kind)
    assert values.values.dtype == kind.dtype
    assert as_lists(values) == [filled(row, sizes, column.fill) for row in column.array.to_pylist()]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(0, 4), st.booleans())
def test_vectors_dense_and_sparse_are_their_values(data, size, holes):
    rows = data.draw(st.lists(vectors(size) | st.none() if holes else vectors(size), max_size=6))
    column = data.draw(pieces(pa.array(rows, VECTOR)))
    expected = [filled(expand(row), (size,), 7.5) for row in column.to_pylist()]
    assert array_of(column, shape=(size,), fill=7.5).tolist() == expected


@pytest.mark.deep
@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from([(st.integers(0, 4).flatmap(vectors), VECTOR), (st.binary(max_size=4), pa.binary())]),
    st.booleans(),
)
def test_vectors_and_bytes_of_several_sizes_are_ragged(data, kind, holes):
    values, type_ = kind
    column = data.draw(pieces(pa.array(data.draw(st.lists(values | st.none() if holes else values)), type_)))
    expected = [filled(expand(row), (None,), 0) for row in column.to_pylist()]
    assert as_lists(array_of(column, shape=(None,), fill=0)) == expected


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 4), st.booleans())
def test_bytes_are_numbers_where_they_are_cast(data, kind, size, holes):
    values = st.binary(min_size=size, max_size=size)
    column = data.draw(pieces(pa.array(data.draw(st.lists(values | st.none() if holes else values)), kind)))
    pixels = array_of(column, shape=(size,), cast="float32", fill=9)
    assert pixels.dtype == np.float32
    assert pixels.tolist() == [filled(expand(row), (size,), 9) for row in column.to_pylist()]


# ---- without a copy


@pytest.mark.parametrize("kind", STORED_AS_NUMBERS, ids=str)
@pytest.mark.parametrize("listed", [None, pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_numbers_are_views_of_arrows_memory(kind, listed):
    rows = [1, 2, 3] if listed is None else [[1, 2], [3, 4], [5, 6]]
    column = pa.array(rows, listed(kind) if listed else kind).slice(1)
    values = array_of(column)
    assert values.tolist() == rows[1:]
    addresses = [each.address for each in column.buffers() if each is not None]
    assert any(address <= values.ctypes.data < address + 64 for address in addresses)
    assert np.shares_memory(values, view(column, own_kind(column)))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bytes_are_views_of_arrows_memory(kind):
    column = pa.array([b"ab", b"cd", b"ef"], kind).slice(1)
    values = array_of(column, shape=(2,))
    assert values.tolist() == [[99, 100], [101, 102]]
    assert values.ctypes.data == column.buffers()[2].address + 2


def test_a_view_has_the_type_that_is_stored_and_a_cast_is_a_copy():
    column = pa.array([[1, 2], [3, 4]], pa.list_(pa.int8()))
    kind = own_kind(column, cast="float32", shape=(2, 1))
    assert view(column, kind).dtype == np.int8
    assert to_array(column, kind).dtype == np.float32
    assert to_array(column, kind).tolist() == [[[1], [2]], [[3], [4]]]


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (pa.array([1, None]), {"fill": 0}),
        (pa.array([[1], None]), {"fill": 0}),
        (pa.array([[1], [None]]), {"fill": 0}),
        (pa.array([[1], [2, 3]]), {"shape": (None,)}),
        (pa.array([True]), {}),
        (pa.array(["a"]), {}),
        (pa.array([b"a"]), {}),
        (pa.array([dense([1])], VECTOR), {}),
    ],
)
def test_what_is_not_laid_out_as_an_array_has_no_view(column, options):
    assert view(column, own_kind(column, **options)) is None


# ---- in particular


def test_flat_arrays_are_folded_into_a_declared_shape():
    column = pa.array([list(range(6)), None, list(range(6, 12))])
    values = array_of(column, shape=(2, 3, 1), fill=-1)
    assert values.shape == (3, 2, 3, 1)
    assert values[2].ravel().tolist() == [6, 7, 8, 9, 10, 11]
    assert np.all(values[1] == -1)


@pytest.mark.parametrize(
    ("column", "options", "rows"),
    [
        (pa.array([[[1, 2], None], None, [None, [None, 3]]]), {"shape": (4,), "fill": 0},
         [[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]]),
        (pa.array([None, None], pa.list_(pa.float32())), {"shape": (3,), "fill": 1}, [[1, 1, 1]] * 2),
        (pa.array([[None, None]], pa.list_(pa.list_(pa.float32()))), {"shape": (2, 3), "fill": 1}, [[[1, 1, 1]] * 2]),
        (pa.array([1, 2]), {"shape": (1,)}, [[1], [2]]),
        (pa.array(["a", None]), {"shape": (1,), "fill": "b"}, [["a"], ["b"]]),
        (pa.array([[b"ab", b"cd"], [b"ef"]]), {"shape": (None,)}, [[b"ab", b"cd"], [b"ef"]]),
        (pa.array([[b"ab", b"cd"], [b"ef"]]), {"shape": (None, 2), "cast": "uint8"},
         [[[97, 98], [99, 100]], [[101, 102]]]),
        (pa.array([True, None]), {"cast": "float32", "fill": 0.5}, [1, 0.5]),
        (pa.array([1.5, None]), {"cast": "int32", "fill": 2**30}, [1, 2**30]),
        (pa.array([1, None], pa.int8()), {"cast": "int32", "fill": 1000}, [1, 1000]),
        (pa.array([Decimal(2**62 + 1), None], pa.decimal128(38, 0)), {"cast": "int64", "fill": 0}, [2**62 + 1, 0]),
        (pa.array([Decimal("-1.75")]), {"cast": "int32"}, [-1]),
        (pa.array([sparse(2, {}), dense([1, 2]), sparse(2, {1: 5.0})], VECTOR), {}, [[0, 0], [1, 2], [0, 5]]),
    ],
)  # fmt: skip
def test_in_particular(column, options, rows):
    assert as_lists(array_of(column, **options)) == rows


def test_a_fill_may_be_no_number():
    assert np.array_equal(array_of(pa.array([1, None]), cast="float32", fill=np.nan), [1, np.nan], equal_nan=True)


@pytest.mark.parametrize("shape", [(784,), (28, 28, 1)])
def test_images_of_bytes_become_floats(shape):
    pixels = np.arange(2 * 784, dtype=np.uint8).reshape(2, *shape)
    column = pa.array([each.tobytes() for each in pixels])
    values = array_of(column, shape=shape, cast="float32")
    assert values.dtype == np.float32
    assert np.array_equal(values, pixels)


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_no_rows_are_an_array_too(kind):
    column = pa.array([], pa.list_(kind))
    declared = own_kind(pa.array([], kind))
    values = to_array(column, Kind(declared.dtype, (3,), text=declared.text))
    assert (values.shape, values.dtype) == ((0, 3), declared.dtype)


@settings(deadline=None)
@given(st.sampled_from(LEAVES), st.data())
def test_an_array_that_is_taken_apart_by_arrow_is_the_same(leaf, data):
    rows = data.draw(st.lists(st.lists(leaf_values(leaf), min_size=2, max_size=2), min_size=1, max_size=5))
    column = pa.array(rows, pa.list_(leaf))
    kind = own_kind(column)
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    assert to_array(column.take(pa.array(numbers)), kind).tolist() == to_array(column, kind)[numbers].tolist()
