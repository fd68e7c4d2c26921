"""Conversion of Arrow columns to numpy arrays, dense or ragged, and operations on their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import layout
from tensorflowonspark.columns.kinds import Kind
from tensorflowonspark.errors import FeedError

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: one flat array of values, and the row splits of each level of nesting.

    The splits are as in `tf.RaggedTensor.from_nested_row_splits`: each starts with 0 and has one more entry than its
    level has lists.
    """

    values: Array  # shape (values, ...)
    splits: tuple[Numbers, ...]  # int64, outermost level first

    def __len__(self) -> int:
        return len(self.splits[0]) - 1

    def __getitem__(self, rows: slice) -> "Ragged":
        """Return a slice of the rows as a view."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        splits = []
        for level in self.splits:
            bounds = level[start : stop + 1]
            start, stop = int(bounds[0]), int(bounds[-1])
            splits.append(bounds - start)
        return Ragged(self.values[start:stop], tuple(splits))

    def rows(self) -> Array:
        """Return an object array with an array, or a list of arrays, for each row.

        Examples
        --------
        >>> Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)).rows()
        array([array([1]), array([2, 3])], dtype=object)
        """
        parts: Any = self.values
        for level in reversed(self.splits):
            parts = [parts[start:stop] for start, stop in pairwise(level.tolist())]
        return objects(parts)


def objects(rows: Sequence[Any]) -> Array:
    """Return an array of objects, one for each row, which may be arrays.

    Examples
    --------
    >>> objects([[1, 2], [3, 4]]).shape
    (2,)
    """
    out = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):  # one assignment would make a dimension of equal lengths
        out[number] = row
    return out


def split_at(lengths: npt.NDArray[Any]) -> Numbers:
    """Return the row splits of lists of these lengths.

    Examples
    --------
    >>> split_at(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def concatenate(pieces: Sequence[Array | Ragged]) -> Array | Ragged:
    """Return the rows of several arrays of one kind as one array.

    Examples
    --------
    >>> one = Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),))
    >>> concatenate([one, one]).splits
    (array([0, 1, 3, 4, 6]),)
    """
    if len(pieces) == 1:
        return pieces[0]
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    if not ragged:
        return np.concatenate(cast("Sequence[Array]", pieces))
    levels = zip(*(piece.splits for piece in ragged), strict=True)
    splits = tuple(split_at(np.concatenate([np.diff(level) for level in pieces])) for pieces in levels)
    return Ragged(np.concatenate([piece.values for piece in ragged]), splits)


def repeat_rows(rows: Array | Ragged, numbers: Numbers) -> Array | Ragged:
    """Return rows by their numbers; a number may occur several times.

    Examples
    --------
    >>> repeat_rows(Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)), np.array([1, 0, 1])).values
    array([2, 3, 1, 2, 3])
    """
    if not isinstance(rows, Ragged):
        return rows[numbers]
    splits = []
    for level in rows.splits:
        starts, lengths = level[numbers], level[numbers + 1] - level[numbers]
        splits.append(split_at(lengths))
        numbers = np.repeat(starts - splits[-1][:-1], lengths) + np.arange(splits[-1][-1])
    return Ragged(rows.values[numbers], tuple(splits))


def zeros(rows: int, kind: Kind) -> Array | Ragged:
    """Return rows of zeros or empty strings, or empty rows if the kind is ragged."""
    empty: object = 0 if kind.dtype.kind != "O" else "" if kind.text else b""
    if not kind.ragged:
        return np.full((rows, *kind.inner), empty, dtype=kind.dtype)
    splits = (np.zeros(rows + 1, np.int64), *(np.zeros(1, np.int64) for _ in range(kind.varying - 1)))
    return Ragged(np.full((0, *kind.inner), empty, dtype=kind.dtype), splits)


def view(column: pa.Array, kind: Kind) -> Array | None:
    """Return a column as an array of shape ``(rows, *kind.shape)`` in Arrow's own memory, or None if that needs a copy.

    Its dtype is the stored one, which may differ from `kind.dtype`.

    Examples
    --------
    >>> view(pa.array([[1, 2], [3, 4]]), Kind(np.dtype("float32"), (2,)))
    array([[1, 2],
           [3, 4]])
    """
    if kind.ragged:
        return None
    rows = len(column)
    for level in layout.levels(column):
        if level.null_count:
            return None
        column = level
    flat = layout.bytes_of(column)[0] if kind.decoded else _plain(column)
    if flat is None:
        return None
    flat = flat[:]
    flat.flags.writeable = False  # Arrow marks only some of its memory so
    return flat.reshape(rows, *kind.inner)


def _plain(column: pa.Array) -> Array | None:
    """Return the values of a numeric column without a copy, or None if it is not numeric."""
    column = layout.integers(column)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return column.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


def to_array(column: pa.Array, kind: Kind) -> Array | Ragged:
    """Return a column as an array of shape ``(rows, *kind.shape)`` and dtype ``kind.dtype``, or as `Ragged`.

    A null becomes ``kind.fill``, and a null array is filled with it; a null array of varying length becomes empty.

    Examples
    --------
    >>> to_array(pa.array([True, None]), Kind(np.dtype("float32"), (), fill=0))
    array([1., 0.], dtype=float32)
    """
    seen = view(column, kind)
    if seen is not None:
        return convert(seen, kind)
    if kind.ragged:
        return _ragged(column, kind)
    return _fixed(column, prod(kind.inner), kind).reshape(len(column), *kind.inner)


def _ragged(column: pa.Array, kind: Kind) -> Ragged:
    splits = []
    for _ in range(kind.varying):
        splits.append(split_at(layout.counts(column)))
        column = column.flatten() if layout.is_list(column.type) else column.drop_null()
    values = _fixed(column, prod(kind.inner), kind)
    return Ragged(values.reshape(int(splits[-1][-1]), *kind.inner), tuple(splits))


def _fixed(column: pa.Array, count: int, kind: Kind) -> Array:
    """Return the values of a column as a flat array with `count` values for each entry, null or not."""
    if column.null_count and (layout.is_list(column.type) or kind.decoded or layout.is_vector(column.type)):
        out = np.empty((len(column), count), kind.dtype)
        out.fill(kind.fill)  # np.full would drop the zeros at the end of bytes
        present = column.drop_null()
        out[column.is_valid().to_numpy(zero_copy_only=False)] = _fixed(present, count, kind).reshape(
            len(present), count
        )
        return out.reshape(-1)
    if layout.is_list(column.type):
        values = column.flatten()
        return _fixed(values, count * len(column) // max(1, len(values)), kind)
    return _leaves(column, kind)


def _leaves(column: pa.Array, kind: Kind) -> Array:
    """Return the innermost values as a flat array; a vector or binary entry has several."""
    if layout.is_vector(column.type):
        return convert(_vectors(column), kind)
    if kind.decoded:
        return convert(layout.bytes_of(column)[0], kind)
    column = layout.integers(column)
    if pa.types.is_decimal(column.type):
        # A whole number of more than 15 digits, as in a key, would not survive a conversion by way of a float.
        number = {"i": pa.int64(), "u": pa.uint64()}.get(kind.dtype.kind, pa.float64())
        try:
            column = pc.cast(column, options=pc.CastOptions(number, allow_decimal_truncate=True))
        except pa.ArrowInvalid:
            low, high = pc.min_max(column).values()
            raise _refused(kind, f"{low} to {high}") from None
    if not column.null_count:
        values: Array = column.to_numpy(zero_copy_only=False)
        return convert(values, kind)
    if kind.dtype.kind == "O":
        return pc.fill_null(column, kind.fill).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    # The fill is stored last: the column's own type may not hold it, such as NaN for integers cast to floats.
    zero = pa.scalar(0, pa.int8()).cast(column.type)
    flat = np.array(convert(pc.fill_null(column, zero).to_numpy(zero_copy_only=False), kind))
    flat[column.is_null().to_numpy(zero_copy_only=False)] = kind.fill
    return flat


def convert(values: Array, kind: Kind, into: Array | None = None) -> Array:
    """Return values as a kind's dtype: fractions are cut off and floats rounded, but no value becomes another.

    Raises FeedError if the dtype can't hold a value, or is one of integers and there are NaN. `into` takes the result.

    Examples
    --------
    >>> convert(np.array([300]), Kind(np.dtype("uint8"), name="x"))
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: column 'x' holds 300, which uint8 can't hold: ask for another dtype, as in \
dtypes={'x': 'int64'}
    """
    dtype = kind.dtype
    same_bits = kind.decoded and dtype.itemsize == 1  # bytes are stored, of which int8 is a view
    if dtype.kind in "iu" and values.size and not same_bits and not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        for each in (values.min(), values.max()):
            if not (np.isfinite(each) and limits.min <= int(each) <= limits.max):
                raise _refused(kind, each)
    try:
        with np.errstate(over="raise"):
            if into is None:
                return values.astype(dtype, copy=False)
            np.copyto(into, values, casting="unsafe")
            return into
    except FloatingPointError:
        raise _refused(kind, f"{values.min()} to {values.max()}") from None


def _refused(kind: Kind, value: object) -> FeedError:
    return FeedError(
        f"column {kind.name!r} holds {value}, which {kind.dtype} can't hold: ask for another dtype, as in "
        f"dtypes={{{kind.name!r}: '{'int64' if kind.dtype.kind in 'iu' else 'float64'}'}}",
        skippable=True,
    )


def spread(values: pa.Array, at: npt.NDArray[np.int64], rows: int) -> pa.Array:
    """Return a column with values at the given rows and nulls at all others.

    Examples
    --------
    >>> spread(pa.array(["a", "b"]), np.array([0, 2]), 4).to_pylist()
    ['a', None, 'b', None]
    """
    place = np.zeros(rows, np.int64)
    place[at] = np.arange(len(at))
    absent = np.ones(rows, np.bool_)
    absent[at] = False
    return values.take(pa.array(place, mask=absent))


def vector_lists(column: pa.Array) -> pa.Array:
    """Return Spark ML vectors, dense or sparse, as lists of float64."""
    present = column.drop_null()
    lists = pa.ListArray.from_arrays(split_at(layout.counts(present)).astype(np.int32), pa.array(_vectors(present)))
    return spread(lists, np.flatnonzero(~_nulls(column)), len(column)) if column.null_count else lists


def lists_as_vectors(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists of float64 as dense Spark ML vectors of the given struct type."""
    ones = pa.array(np.ones(len(column), np.int8))
    parts = [ones, pa.nulls(len(column), kind[1].type), pa.nulls(len(column), kind[2].type), column]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(_nulls(column)))


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _vectors(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return the values of vectors, dense or sparse, as one flat array, sparse ones with their zeros."""
    values = column.field("values")
    stored: npt.NDArray[np.float64] = values.flatten().to_numpy(zero_copy_only=False)
    sparse = pc.equal(column.field("type"), 0).to_numpy(zero_copy_only=False)
    if not sparse.any():
        return stored
    starts, counts = split_at(layout.counts(column)), layout.counts(values)
    # A dense vector's values keep their positions; a sparse one's take those of its indices.
    places = np.arange(len(stored)) - np.repeat(split_at(counts)[:-1], counts)
    places[np.repeat(sparse, counts)] = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    out = np.zeros(starts[-1])
    out[np.repeat(starts[:-1], counts) + places] = stored
    return out
