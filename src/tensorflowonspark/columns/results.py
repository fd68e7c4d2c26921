"""Numpy arrays to Arrow columns of the types that were asked for: what a program answers, as rows for Spark."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import layout
from tensorflowonspark.errors import FeedError

__all__ = ["to_batch"]


def to_batch(results: Any, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return what a program has made of some rows, as a batch of the schema.

    Parameters
    ----------
    results : mapping, sequence or array
        Arrays by column name; or, for a schema of one column, just its array.
    schema : pyarrow.Schema
        What the result must be.
    rows : int
        How many rows it must have.

    Raises
    ------
    FeedError
        If a column is missing, or has another number of rows, another shape, or values of another type.

    Examples
    --------
    >>> to_batch(np.array([[1, 2], [3, 4]]), pa.schema({"y": pa.list_(pa.float32())}), 2).to_pydict()
    {'y': [[1.0, 2.0], [3.0, 4.0]]}
    """
    named = results if isinstance(results, Mapping) else {schema.names[0]: results}
    if not isinstance(results, Mapping) and len(schema.names) != 1:
        raise FeedError(
            f"the program answered with a {type(results).__name__}, and the result schema has the columns "
            f"{schema.names}: return a dict of arrays by these names"
        )
    missing = [name for name in schema.names if name not in named]
    if missing:
        raise FeedError(f"the program's answer has no {', '.join(map(repr, missing))}, only {sorted(map(str, named))}")
    return pa.RecordBatch.from_arrays([_column(named[field.name], field, rows) for field in schema], schema=schema)


def _column(values: Any, field: pa.Field, rows: int) -> pa.Array:
    array = np.asarray(values) if not isinstance(values, (list, tuple)) else _as_array(values)
    if array.ndim == 0 or len(array) != rows:
        have = "a single value" if array.ndim == 0 else f"{len(array)} values"
        raise FeedError(
            f"result column {field.name!r}: {rows} rows went in, and {have} came out: there must be as many"
        )
    depth, kind = 0, field.type
    while layout.is_list(kind):
        depth, kind = depth + 1, kind.value_type
    if array.dtype.kind != "O" and array.ndim == 2 and array.shape[1] == 1 and depth == 0:
        array = array[:, 0]  # what a Dense(1) layer gives for a scalar
    if array.dtype.kind != "O" and array.ndim - 1 != depth:
        raise FeedError(
            f"result column {field.name!r} has type {field.type}, and the program's values have shape "
            f"{array.shape[1:]}: ask for {'array<...>' if array.ndim - 1 > depth else 'a scalar type'} or change them"
        )
    try:
        return _typed(array, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FeedError(
            f"result column {field.name!r}: the program's values ({array.dtype}, first: {array[0]!r}) can't be "
            f"turned into {field.type}: {error}"
        ) from error


def _as_array(values: Any) -> Any:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out


def _typed(array: Any, kind: pa.DataType) -> pa.Array:
    if array.dtype.kind == "O":
        return pa.array(array.tolist(), kind)
    if not layout.is_list(kind):
        plain = pa.array(array)
        return plain if plain.type == kind else plain.cast(kind, safe=_is_narrowing(array, kind))
    inner = _typed(array.reshape(-1, *array.shape[2:]), kind.value_type)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * array.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner).cast(kind)


def _is_narrowing(array: Any, kind: pa.DataType) -> bool:
    """Whether a cast must keep every value: all but those between floats, which round."""
    return not (array.dtype.kind == "f" and pa.types.is_floating(kind))
