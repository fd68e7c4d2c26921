"""Structs become columns; what is inside of lists is found again."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.columns import flat_columns
from tensorflowonspark.columns.layout import is_vector
from tests.support.columns import VECTOR, dense, pieces

KIND = pa.struct([("a", pa.int32()), ("in", pa.struct([("b", pa.list_(pa.string())), ("v", VECTOR)]))])
inner = st.fixed_dictionaries({"b": st.none() | st.lists(st.text(max_size=2)), "v": st.none() | st.just(dense([1.0]))})
structs = st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "in": st.none() | inner})


@given(st.lists(structs), st.data())
def test_a_structs_fields_are_columns_and_null_where_it_is(rows, data):
    column = data.draw(pieces(pa.array(rows, KIND)))
    flat = flat_columns(pa.record_batch({"s": column, "x": pa.array(range(len(column)))}))
    rows = column.to_pylist()
    inside = [row and row["in"] for row in rows]
    assert flat.to_pydict() == {
        "s.a": [row and row["a"] for row in rows],
        "s.in.b": [each and each["b"] for each in inside],
        "s.in.v": [each and each["v"] for each in inside],
        "x": list(range(len(rows))),
    }
    assert flat.num_rows == len(rows)


def test_nothing_is_copied_where_no_struct_is_null():
    column = pa.array([{"a": 1.0}, {"a": 2.0}])
    flat = flat_columns(pa.record_batch({"s": column}))
    assert flat.column("s.a").buffers()[1].address == column.field("a").buffers()[1].address


def test_a_batch_without_structs_stays_as_it_is():
    batch = pa.record_batch({"x": [1], "v": pa.array([dense([1])], VECTOR)})
    assert flat_columns(batch) is batch


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("type", pa.string()), ("size", pa.int32()), ("indices", pa.int32()), ("values", pa.int32())]),
        pa.struct([("type", pa.int8()), ("size", pa.int32()), ("indices", pa.int32()), ("values", pa.int32())]),
        pa.struct([("type", pa.int8())]),
        pa.list_(VECTOR),
        pa.int8(),
    ],
    ids=str,
)
def test_only_what_has_a_vectors_fields_and_types_is_one(kind):
    assert is_vector(VECTOR)
    assert not is_vector(kind)
