"""Arrow columns to numpy arrays: views of Arrow's memory where its layout allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout
from tensorflowonspark.columns.kinds import Kind

__all__ = ["Array", "Ragged", "concatenate", "flat_columns", "repeat_rows", "to_array", "view", "zeros"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: all values in one array, and for each level of nesting where its lists are split.

    `splits` are as in `tf.RaggedTensor.from_nested_row_splits`: each starts with 0, and has one more entry than there
    are lists.
    """

    values: Array
    splits: tuple[npt.NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.splits[0]) - 1

    def __getitem__(self, rows: slice) -> "Ragged":
        """Return some neighbouring rows."""
        start, stop, _ = rows.indices(len(self))
        splits = []
        for level in self.splits:
            level = level[start : stop + 1]
            start, stop = int(level[0]), int(level[-1])
            splits.append(level - start)
        return Ragged(self.values[start:stop], tuple(splits))

    def rows(self) -> Array:
        """Return an object array with an array, or a list of arrays, for each row.

        Examples
        --------
        >>> Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)).rows()
        array([array([1]), array([2, 3])], dtype=object)
        """
        parts: list[Any] = np.split(self.values, self.splits[-1][1:-1]) if len(self.splits[-1]) > 1 else []
        for level in reversed(self.splits[:-1]):
            parts = [parts[start:stop] for start, stop in zip(level[:-1], level[1:], strict=True)]
        out = np.empty(len(parts), dtype=object)
        out[:] = [None] * len(parts)
        for number, part in enumerate(parts):
            out[number] = part
        return out


def flat_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with a column for each field of its structs, named ``struct.field``; nothing is copied.

    Examples
    --------
    >>> flat_columns(pa.record_batch({"s": [{"a": 1, "b": 2}]})).schema.names
    ['s.a', 's.b']
    """
    if not any(_is_plain_struct(field.type) for field in batch.schema):
        return batch
    names: list[str] = []
    columns: list[pa.Array] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        nested = _is_plain_struct(field.type)
        names += [f"{field.name}.{child.name}" for child in field.type] if nested else [field.name]
        columns += column.flatten() if nested else [column]
    return flat_columns(pa.RecordBatch.from_arrays(columns, names))


def _is_plain_struct(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and not layout.is_vector(kind))


def view(column: pa.Array, kind: Kind) -> Array | None:
    """Return a column as an array of shape ``(rows, *kind.shape)`` in Arrow's own memory, or None if it isn't there.

    Its dtype is what is stored; `kind.dtype` may be another.

    Examples
    --------
    >>> view(pa.array([[1, 2], [3, 4]]), Kind(np.dtype("float32"), (2,)))
    array([[1, 2],
           [3, 4]])
    """
    if kind.ragged:
        return None
    rows, shape = len(column), [size for size in kind.shape if size is not None]
    while layout.is_list(column.type):
        if column.null_count:
            return None
        column = column.flatten()
    if column.null_count:
        return None
    if layout.is_binary(column.type):
        return _bytes_of(column).reshape(rows, *shape) if kind.decoded else None
    plain = _plain(column)
    return None if plain is None else plain.reshape(rows, *shape)


def _plain(column: pa.Array) -> Array | None:
    """Return numbers without a copy; None for what is not laid out as numbers."""
    if pa.types.is_date(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        column = column.view(pa.int64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return column.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


def _bytes_of(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values of a binary column, one after the other."""
    wide = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


def to_array(column: pa.Array, kind: Kind) -> Array | Ragged:
    """Return a column as an array of shape ``(rows, *kind.shape)`` and dtype ``kind.dtype``, or as a ragged one.

    Examples
    --------
    >>> to_array(pa.array([True, None]), Kind(np.dtype("float32"), (), fill=0))
    array([1., 0.], dtype=float32)
    """
    seen = view(column, kind)
    if seen is not None:
        return seen.astype(kind.dtype, copy=False)
    if kind.ragged:
        return _ragged(column, kind)
    if column.null_count and (layout.is_list(column.type) or kind.shape):
        return _with_missing_rows(column, kind)
    rows = len(column)
    while layout.is_list(column.type):
        column = column.flatten()
    return _leaves(column, kind).reshape(rows, *(size for size in kind.shape if size is not None))


def _leaves(column: pa.Array, kind: Kind) -> Array:
    """Return the innermost values as a flat array; vectors and bytes give several for each."""
    if layout.is_vector(column.type):
        return _dense(column).astype(kind.dtype, copy=False)
    if layout.is_binary(column.type) and kind.decoded:
        return _bytes_of(column).astype(kind.dtype, copy=False)
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64())
    elif pa.types.is_date(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        column = column.view(pa.int64())
    if column.null_count:
        column = _filled(column, kind)
    flat: Array = column.to_numpy(zero_copy_only=False)
    return flat.astype(kind.dtype, copy=False)


def _filled(column: pa.Array, kind: Kind) -> pa.Array:
    """Return the column with the fill for nulls, in a type that can hold both."""
    if pa.types.is_integer(column.type) and kind.dtype.kind == "f":
        column = pc.cast(column, pa.from_numpy_dtype(kind.dtype), safe=False)
    elif pa.types.is_boolean(column.type) and kind.dtype.kind != "b":
        column = pc.cast(column, pa.from_numpy_dtype(kind.dtype))
    return pc.fill_null(column, pa.scalar(kind.fill, column.type))


def _with_missing_rows(column: pa.Array, kind: Kind) -> Array:
    """Return a column in which whole arrays or vectors are null: those rows are the fill throughout."""
    present = column.is_valid().to_numpy(zero_copy_only=False)
    shape = [size for size in kind.shape if size is not None]
    out = np.full((len(column), *shape), kind.fill, dtype=kind.dtype)
    out[present] = to_array(column.drop_null(), kind)
    return out


def _dense(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return vectors of one size, dense or sparse, as one flat array."""
    is_dense = pc.equal(column.field("type"), 1).to_numpy(zero_copy_only=False)
    values = column.field("values")
    flat = values.flatten().to_numpy(zero_copy_only=False)
    if is_dense.all():
        return np.asarray(flat, np.float64)
    counts = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    size = int(counts[is_dense][0]) if is_dense.any() else 0
    size = int(pc.max(column.field("size")).as_py() or size)
    out = np.zeros((len(column), size))
    rows = np.repeat(np.arange(len(column)), counts)
    of_dense = np.repeat(is_dense, counts)
    out[is_dense] = flat[of_dense].reshape(-1, size)
    out[rows[~of_dense], column.field("indices").flatten().to_numpy(zero_copy_only=False)] = flat[~of_dense]
    return out.reshape(-1)


def _ragged(column: pa.Array, kind: Kind) -> Ragged:
    inner = [size for size in kind.shape if size is not None]
    splits = []
    for _ in range(len(kind.shape) - len(inner)):
        counts = (
            pc.binary_length(column) if layout.is_binary(column.type) and kind.decoded else pc.list_value_length(column)
        )
        lengths = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False)
        splits.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))
        if layout.is_list(column.type):
            column = column.flatten()
    while layout.is_list(column.type):
        column = column.flatten()
    return Ragged(_leaves(column, kind).reshape(-1, *inner), tuple(splits))


def concatenate(pieces: Sequence[Array | Ragged]) -> Array | Ragged:
    """Return the rows of several arrays of one kind, in one."""
    if len(pieces) == 1:
        return pieces[0]
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    if not ragged:
        return np.concatenate(cast("Sequence[Array]", pieces))
    splits = []
    for levels in zip(*(piece.splits for piece in ragged), strict=True):
        starts = np.cumsum([0, *(level[-1] for level in levels)])
        splits.append(np.concatenate([[0], *(level[1:] + at for level, at in zip(levels, starts, strict=False))]))
    return Ragged(np.concatenate([piece.values for piece in ragged]), tuple(splits))


def repeat_rows(rows: Array | Ragged, numbers: npt.NDArray[np.int64]) -> Array | Ragged:
    """Return rows by their numbers; a row may come several times."""
    if isinstance(rows, Ragged):
        return concatenate([rows[number : number + 1] for number in numbers.tolist()])
    return rows[numbers]


def zeros(rows: int, kind: Kind) -> Array | Ragged:
    """Return rows of zeros, of empty strings, or of nothing where they are ragged."""
    empty = b"" if kind.dtype.kind == "O" else 0
    inner = [size for size in kind.shape if size is not None]
    if not kind.ragged:
        return np.full((rows, *inner), empty, dtype=kind.dtype)
    depth = len(kind.shape) - len(inner)
    splits = (np.zeros(rows + 1, np.int64), *(np.zeros(1, np.int64) for _ in range(depth - 1)))
    return Ragged(np.full((0, *inner), empty, dtype=kind.dtype), splits)
