"""Conversion of a program's results, numpy arrays, to Arrow columns of the types of a result schema."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout
from tensorflowonspark.columns.arrays import Array, Ragged, objects, split_at
from tensorflowonspark.errors import FeedError

_SHOWN_CHARACTERS = 60  # of a value in an error, which is to stay a line
_ADVICE_UNSIGNED = (
    ". Spark has no unsigned integers: return those from 2^63 as text (tf.strings.as_string), or as the int64 of the "
    "same bits (tf.bitcast)"
)


def to_batch(results: Any, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a program's results for some rows as a batch of the schema.

    They are arrays, lists, tensors or ragged tensors of shape ``(rows, ...)`` by column name; or, for a schema of one
    column, just its array. The values of a struct are a mapping of arrays by field, those of a vector a two-dimensional
    array. Dates and timestamps may be datetimes, or integers as in `Kind`. A cast may round between floats, and
    otherwise must not change a value; None is a null.

    Raises FeedError if a column is missing, or has another number of rows, another shape, or values of another type.

    Examples
    --------
    >>> to_batch(np.array([[1, 2], [3, 4]]), pa.schema({"y": pa.list_(pa.float32())}), 2).to_pydict()
    {'y': [[1.0, 2.0], [3.0, 4.0]]}
    """
    named = _by_name(results, schema.names)
    return pa.RecordBatch.from_arrays([_column(named[field.name], field, rows) for field in schema], schema=schema)


def _by_name(results: Any, names: list[str]) -> Mapping[str, Any]:
    if not isinstance(results, Mapping):
        if len(names) != 1:
            raise FeedError(
                f"the program returned a {type(results).__name__}, and the result schema has the columns "
                f"{names}: return a dict of arrays by these names"
            )
        return {names[0]: results}
    missing = [name for name in names if name not in results]
    if missing:
        raise FeedError(
            f"the program's result has no {', '.join(map(repr, missing))}, only {sorted(map(str, results))}"
        )
    return results


def _column(values: Any, field: pa.Field, rows: int) -> pa.Array:
    if pa.types.is_struct(field.type) and not layout.is_vector(field.type):
        named = _by_name(values, [each.name for each in field.type])
        return pa.StructArray.from_arrays(
            [_column(named[each.name], each, rows) for each in field.type], fields=list(field.type)
        )
    array = _as_array(values)
    if array.ndim == 0 or len(array) != rows:
        have = f"the single value {_shown(values)}" if array.ndim == 0 else f"{len(array)} values"
        raise FeedError(
            f"result column {field.name!r}: {rows} rows went in, and {have} came out: there must be as many"
        )
    depth = _list_depth(field.type)
    if not depth and array.shape[1:] == (1,):
        array = array[:, 0]  # as the output of a Dense(1) layer
    if array.ndim - 1 > depth or (array.ndim - 1 < depth and array.dtype.kind != "O"):
        raise FeedError(
            f"result column {field.name!r} has type {field.type}, and the program's values have shape "
            f"{array.shape[1:]}: ask for {'array<...>' if array.ndim - 1 > depth else 'a scalar type'} or change them"
        )
    try:
        return _typed(array, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        first = f", first: {_shown(array[0])}" if len(array) else ""
        advice = (
            _ADVICE_UNSIGNED if array.dtype == np.uint64 and pa.types.is_int64(layout.leaf_type(field.type)) else ""
        )
        raise FeedError(
            f"result column {field.name!r}: the program's values ({array.dtype}{first}) can't be turned into "
            f"{field.type}: {error}{advice}"
        ) from error


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _list_depth(kind: pa.DataType) -> int:
    return 1 + _list_depth(kind.value_type) if layout.is_list(kind) else int(layout.is_vector(kind))


def _as_array(values: Any) -> Array:
    """Return values as an array: an object array with one entry for each row if rows differ in length."""
    if hasattr(values, "nested_row_splits"):  # a tf.RaggedTensor
        values = Ragged(values.flat_values.numpy(), tuple(each.numpy() for each in values.nested_row_splits))
    if isinstance(values, Ragged):
        return values.rows()
    if not isinstance(values, (list, tuple)):
        return np.asarray(values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return objects(values)
    if array.size and array.dtype.kind not in "SU":
        return array
    return np.array(values, dtype=object)  # numpy's strings drop trailing zeros, and an empty list has no type


def joined(pieces: Sequence[Any]) -> Array:
    """Return results for some rows after the other as one array, of objects if rows differ in shape.

    Examples
    --------
    >>> joined([np.zeros((1, 2)), np.ones((1, 3))]).tolist()
    [array([0., 0.]), array([1., 1., 1.])]
    """
    arrays = [_as_array(each) for each in pieces]
    if len(arrays) == 1 or not all(each.ndim for each in arrays):
        return arrays[0]  # which is refused unless it has all the rows
    if len({each.shape[1:] for each in arrays}) == 1:
        return np.concatenate(arrays)
    return objects([row for each in arrays for row in each])


def _typed(array: Array, kind: pa.DataType) -> pa.Array:
    if layout.is_vector(kind):
        return _vectors(array, kind)
    if not layout.is_list(kind):
        return _scalars(array, kind)
    if array.ndim > 1:
        lengths = np.full(len(array), array.shape[1])
        return _lists(lengths, array.reshape(lengths.sum(), *array.shape[2:]), np.zeros(len(array), np.bool_), kind)
    rows = [np.empty(0) if row is None else _as_array(row) for row in array]
    if any(not row.ndim for row in rows):
        raise ValueError("some rows have single values instead of arrays")
    lengths = np.array([len(row) for row in rows], np.int64)
    return _lists(lengths, _joined(rows), np.array([row is None for row in array], np.bool_), kind)


def _vectors(array: Array, kind: pa.DataType) -> pa.Array:
    """Return an array as dense Spark ML vectors."""
    values = _typed(array, kind.field("values").type)
    parts = {"type": pa.array(np.ones(len(array), np.int8)), "values": values}
    columns = [parts.get(each.name, pa.nulls(len(array), each.type)) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=values.is_null())


def _lists(lengths: npt.NDArray[Any], values: Array, nulls: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    offsets = pa.array(split_at(lengths), pa.int32(), mask=np.append(nulls, False))
    return pa.ListArray.from_arrays(offsets, _typed(values, kind.value_type)).cast(kind)


def _joined(rows: list[Array]) -> Array:
    """Return the values of several arrays as one array, of objects if they differ in shape."""
    rows = [row for row in rows if len(row)]
    if rows and len({row.shape[1:] for row in rows}) == 1:
        return np.concatenate(rows)
    return objects([value for row in rows for value in row])


def _scalars(array: Array, kind: pa.DataType) -> pa.Array:
    if array.ndim > 1:
        raise ValueError(f"some rows have arrays of shape {array.shape[1:]} instead of single values")
    if array.dtype.kind == "V" or array.dtype == np.float16:  # bfloat16, which Arrow does not have
        array = array.astype(np.float32)
    # No type is given, since it would silently cut off fractions.
    plain = pa.array(array.tolist() if array.dtype.kind == "O" else array)
    is_number = pa.types.is_integer(plain.type) or pa.types.is_floating(plain.type)
    if pa.types.is_boolean(kind) and is_number and not pc.all(pc.is_in(plain, pa.array([0, 1, None]))).as_py():
        raise ValueError("expected booleans, or nothing but 0 and 1")
    if pa.types.is_integer(plain.type) and pa.types.is_temporal(kind):
        plain = plain.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    return plain.cast(kind)
