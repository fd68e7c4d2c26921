"""Conversion of Arrow columns to serialised ``Example`` or ``SequenceExample`` messages, one for each row.

For each column numpy computes the bytes before a row's values (names, kinds, lengths) for all rows at once; native code
joins these with the values row by row (see `wire_format` for the format).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import spread
from tensorflowonspark.columns.arrays import split_at
from tensorflowonspark.columns.layout import bytes_of, counts, integers, is_list
from tensorflowonspark.tfrecords.decode import kinds_for
from tensorflowonspark.tfrecords.examples import BYTES, FLOAT
from tensorflowonspark.tfrecords.wire_format import LENGTH, Ints

_FIELD_1, _FIELD_2 = bytes([1 << 3 | LENGTH]), bytes([2 << 3 | LENGTH])
_LARGEST_IN_BYTES = np.array(
    [1 << 7 * count for count in range(1, 10)], np.uint64
)  # the numbers of n bytes are below the nth


def encode(batch: pa.RecordBatch, sequences: bool) -> pa.Array:
    r"""Return a binary array with a message for each row.

    A null becomes no feature, an empty array a feature without values. Of `sequences` (``SequenceExample``), arrays of
    arrays become feature lists, other columns the context. Raises ValueError if an array holds a null, which a feature
    can't represent.

    Examples
    --------
    >>> encode(pa.RecordBatch.from_pydict({"y": [1, None]}), sequences=False).to_pylist()
    [b'\n\x0c\n\n\n\x01y\x12\x05\x1a\x03\n\x01\x01', b'\n\x00']
    """
    context, lists = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if is_list(column.type) and is_list(column.type.value_type):
            lists.append(_entry(name, _steps(name, column), column))
        else:
            context.append(_entry(name, _feature(name, column, b""), column))
    parts = _message(_FIELD_1, context, len(batch))
    if sequences:
        parts += _message(_FIELD_2, lists, len(batch))
    return _join(parts)


def _message(field: bytes, entries: list[list[pa.Array]], rows: int) -> list[pa.Array]:
    """Return the parts of a map field: its length, followed by all entries."""
    parts = [part for entry in entries for part in entry]
    length = np.zeros(rows, np.int64)
    for part in parts:
        length += _sizes(part)
    return [_headers([field, length], rows), *parts]


def _entry(name: str, message: list[pa.Array], column: pa.Array) -> list[pa.Array]:
    """Return the parts of a map entry, with nulls for the rows in which the column is null."""
    key = name.encode()
    size = sum((_sizes(part) for part in message), np.zeros(len(message[0]), np.int64))
    fixed = _headers([_FIELD_1, np.full(1, len(key)), key, _FIELD_2], 1)[0].as_py()
    whole = len(fixed) + _varint_sizes(size) + size
    parts = [_headers([_FIELD_1, whole, fixed, size], len(size)), *message]
    if not column.null_count:
        return parts
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    return [spread(part, present, len(column)) for part in parts]


def _feature(name: str, column: pa.Array, before: bytes) -> list[pa.Array]:
    """Return the parts of a ``Feature`` for each non-null value; `before` is a tag, which precedes its length."""
    column = column.drop_null()
    if is_list(column.type):
        offsets, elements = split_at(counts(column)), column.flatten()
        if elements.null_count:
            raise ValueError(f"column {name!r} has an array with a null in it, which a feature can't have: fill it")
    else:
        offsets, elements = np.arange(len(column) + 1), column
    kind = kinds_for(elements.type)[0]
    data, bounds = _packed(elements, kind)
    values = _binary(data, bounds[offsets])
    size = np.diff(bounds[offsets])
    tag = bytes([kind << 3 | LENGTH])
    if kind == BYTES:
        inner: list[bytes | Ints] = [tag, size]
        whole = size
    else:
        # An empty list is written without a field.
        whole = np.where(size > 0, 1 + _varint_sizes(size) + size, 0)
        inner = [tag, whole, _FIELD_1, size]
    outer: list[bytes | Ints] = [before, 1 + _varint_sizes(whole) + whole] if before else []
    header = _headers([*outer, *inner], len(size))
    if kind != BYTES and not size.all():
        short = _headers([*outer, tag, whole], len(size))
        header = pc.if_else(pa.array(size > 0), header, short)
    return [header, values]


def _steps(name: str, column: pa.Array) -> list[pa.Array]:
    """Return the parts of a ``FeatureList`` for each non-null row: a ``Feature`` for each of its steps."""
    column = column.drop_null()
    steps = column.flatten()
    if steps.null_count:
        raise ValueError(f"column {name!r} has an array with a null in it, which a feature list can't have: fill it")
    data, bounds = bytes_of(_join(_feature(name, steps, _FIELD_1)))
    return [_binary(data, bounds[split_at(counts(column))])]


def _packed(elements: pa.Array, kind: int) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of all values as encoded in a list, and their bounds: the start of each and the end."""
    if kind == BYTES:
        if pa.types.is_decimal(elements.type):
            elements = elements.cast(pa.string())
        values = elements.cast(pa.binary())
        return bytes_of(_join([_headers([_FIELD_1, _sizes(values)], len(values)), values]))
    if kind == FLOAT:
        floats = np.ascontiguousarray(elements.cast(pa.float32()).to_numpy(zero_copy_only=False), "<f4")
        return floats.view(np.uint8), np.arange(len(floats) + 1, dtype=np.int64) * 4
    numbers = integers(elements).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return bytes_of(_headers([numbers], len(numbers)))


def _binary(data: npt.NDArray[np.uint8], bounds: Ints) -> pa.Array:
    """Return a binary array of the adjacent values of a buffer."""
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    )


def _sizes(array: pa.Array) -> Ints:
    """Return the number of bytes of each value of a binary array; a null has none."""
    sizes: Ints = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _join(parts: list[pa.Array]) -> pa.Array:
    """Join binary arrays, value by value; a null adds nothing."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()), null_handling="skip")


def _varint_sizes(numbers: Ints) -> Ints:
    """Return the number of bytes of each number as a varint."""
    return np.searchsorted(_LARGEST_IN_BYTES, numbers.astype(np.uint64), side="right") + 1


def _headers(parts: Sequence[bytes | Ints], rows: int) -> pa.Array:
    """Return a binary array that joins parts for each row: constant bytes, or the row's number as a varint."""
    sizes = [len(part) if isinstance(part, bytes) else _varint_sizes(part) for part in parts]
    bounds = np.zeros(rows + 1, np.int64)
    np.cumsum(sum(sizes, np.zeros(rows, np.int64)), out=bounds[1:])
    data = np.empty(bounds[-1], np.uint8)
    at = bounds[:-1].copy()
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, bytes):
            for place, byte in enumerate(part):
                data[at + place] = byte
        else:
            _write_varints(data, at, part.astype(np.uint64), size)  # type: ignore[arg-type]
        at += size
    return _binary(data, bounds)


def _write_varints(data: npt.NDArray[np.uint8], at: Ints, numbers: npt.NDArray[np.uint64], sizes: Ints) -> None:
    data[at] = (numbers & np.uint64(0x7F)).astype(np.uint8)
    longer = np.flatnonzero(sizes > 1)
    count = 1
    while longer.size:
        data[at[longer] + count - 1] |= 0x80
        data[at[longer] + count] = (numbers[longer] >> np.uint64(7 * count) & np.uint64(0x7F)).astype(np.uint8)
        count += 1
        longer = longer[sizes[longer] > count]
