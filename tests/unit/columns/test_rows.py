"""Rows that are ragged or not are cut, joined and repeated like lists of them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.columns import Kind, concatenate, repeat_rows, to_array, zeros
from tests.support.columns import array_of, as_lists, own_kind


def ragged(rows):
    return to_array(pa.array(rows, pa.list_(pa.list_(pa.int64()))), Kind(np.dtype("int64"), (None, None)))


nested = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), max_size=6)


@given(nested, st.integers(-7, 7) | st.none(), st.integers(-7, 7) | st.none())
def test_a_part_of_ragged_rows_is_that_of_their_list(rows, start, stop):
    part = ragged(rows)[start:stop]
    assert as_lists(part) == rows[start:stop]
    assert len(part) == len(rows[start:stop])


@given(st.lists(nested, min_size=1, max_size=4))
def test_ragged_rows_are_joined_like_lists(lists):
    assert as_lists(concatenate([ragged(rows) for rows in lists])) == [row for rows in lists for row in rows]
    assert as_lists(concatenate([ragged(rows)[1:] for rows in lists])) == [row for rows in lists for row in rows[1:]]


@given(nested, st.data())
def test_rows_are_repeated_by_number(rows, data):
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    expected = [rows[number] for number in numbers]
    assert as_lists(repeat_rows(ragged(rows), np.array(numbers, np.int64))) == expected
    plain = np.arange(len(rows) * 2).reshape(-1, 2)
    assert repeat_rows(plain, np.array(numbers, np.int64)).tolist() == [[2 * each, 2 * each + 1] for each in numbers]


def test_arrays_are_joined_by_rows():
    assert concatenate([np.zeros((2, 3)), np.ones((1, 3))]).shape == (3, 3)


def test_ragged_rows_with_a_fixed_size_inside_are_arrays_of_it():
    rows = array_of(pa.array([[[1, 2]], [[3, 4], [5, 6]], []]), shape=(None, 2)).rows()
    assert [row.shape for row in rows] == [(1, 2), (2, 2), (0, 2)]


@pytest.mark.parametrize(
    ("column", "options", "row"),
    [
        (pa.array([1.5]), {}, 0),
        (pa.array([[1, 2]]), {}, [0, 0]),
        (pa.array([True]), {}, False),
        (pa.array(["a"]), {}, ""),
        (pa.array([b"a"]), {}, b""),
        (pa.array([[1, 2]]), {"shape": (None,)}, []),
        (pa.array([[[1, 2]]]), {"shape": (None, 2)}, []),
        (pa.array([[[1, 2]]]), {"shape": (None, None)}, []),
    ],
)
@pytest.mark.parametrize("rows", [0, 3])
def test_zeros_are_rows_of_the_same_kind(column, options, row, rows):
    kind = own_kind(column, **options)
    made = zeros(rows, kind)
    assert as_lists(made) == [row] * rows
    real = to_array(column, kind)
    assert as_lists(concatenate([made, real])) == [row] * rows + as_lists(real)
