"""Arrow layouts of the types that Spark sends: lists, text, vectors and structs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Spark ML's VectorUDT in Arrow: a sparse vector (type 0) has size, indices and values, a dense one only values.
_VECTOR_FIELDS = ["type", "size", "indices", "values"]


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is an array in Spark."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_vector(kind: pa.DataType) -> bool:
    """Return whether a type is a Spark ML vector, dense or sparse."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != _VECTOR_FIELDS:
        return False
    return bool(pa.types.is_int8(kind[0].type) and is_list(kind[3].type))


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values inside all lists.

    Examples
    --------
    >>> leaf_type(pa.list_(pa.list_(pa.int8())))
    DataType(int8)
    """
    while is_list(kind):
        kind = kind.value_type
    return kind


def array_depth(kind: pa.DataType) -> int:
    """Return the number of dimensions of a value: one for each level of lists, and one for a vector or bytes.

    Examples
    --------
    >>> array_depth(pa.list_(pa.int8())), array_depth(pa.list_(pa.binary())), array_depth(pa.string())
    (1, 2, 0)
    """
    depth = 0
    while is_list(kind):
        depth, kind = depth + 1, kind.value_type
    return depth + bool(is_binary(kind) or is_vector(kind))


def levels(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the column, then the values of its non-null lists, level by level."""
    yield column
    while is_list(column.type):
        column = column.flatten()
        yield column


def lengths(column: pa.Array) -> pa.Array | None:
    """Return the length of each list, of each binary value in bytes, or of each vector; None for other types."""
    if is_list(column.type):
        return pc.list_value_length(column)
    if is_binary(column.type):
        return pc.binary_length(column)
    if is_vector(column.type):
        return pc.if_else(
            pc.equal(pc.struct_field(column, "type"), 1),
            pc.list_value_length(pc.struct_field(column, "values")),
            pc.struct_field(column, "size"),
        )
    return None


def counts(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of values of each entry of a column; a null has none.

    Examples
    --------
    >>> counts(pa.array([[1, 2], None])).tolist()
    [2, 0]
    """
    counted: npt.NDArray[np.int64] = pc.fill_null(lengths(column), 0).to_numpy(zero_copy_only=False)
    return counted


def bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of all values of a binary or text column without nulls, not copied, and the bounds of each.

    Examples
    --------
    >>> data, bounds = bytes_of(pa.array([b"ab", b"", b"c"]))
    >>> data.tobytes(), bounds.tolist()
    (b'abc', [0, 2, 2, 3])
    """
    _, offsets, values = column.buffers()
    if not len(column) or values is None:
        return np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(values, np.uint8)[bounds[0] : bounds[-1]], (bounds - bounds[0]).astype(np.int64)


def integers(column: pa.Array) -> pa.Array:
    """Return dates, times and durations as their stored integers, without a copy; other columns unchanged.

    Examples
    --------
    >>> integers(pa.array([1, None], pa.date32())).to_pylist()
    [1, None]
    """
    kind = column.type
    if pa.types.is_date32(kind):
        return column.view(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return column.view(pa.int64())
    return column


def flat_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with a column for each field of its structs, named ``struct.field``; nothing is copied.

    Where a struct is null, all its fields are null.

    Examples
    --------
    >>> flat_columns(pa.record_batch({"s": [{"a": 1, "b": 2}, None]})).to_pydict()
    {'s.a': [1, None], 's.b': [2, None]}
    """
    if not any(_is_plain_struct(field.type) for field in batch.schema):
        return batch
    flat = [pair for field, column in zip(batch.schema, batch.columns, strict=True) for pair in _fields(field, column)]
    return pa.RecordBatch.from_arrays([column for _, column in flat], [name for name, _ in flat])


def _fields(field: pa.Field, column: pa.Array) -> Iterator[tuple[str, Any]]:
    if not _is_plain_struct(field.type):
        yield field.name, column
        return
    for child, values in zip(field.type, column.flatten(), strict=True):
        yield from _fields(child.with_name(f"{field.name}.{child.name}"), values)


def _is_plain_struct(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and not is_vector(kind))
