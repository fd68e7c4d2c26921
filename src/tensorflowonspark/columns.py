"""Arrow columns and numpy arrays: the only file that knows both layouts."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import ColumnSummary

__all__ = ["check_types", "merge", "row_dtype", "row_shape", "summarize", "to_numpy", "zeros"]

Array = npt.NDArray[np.generic]


def check_types(schema: pa.Schema) -> None:
    """Refuse a schema with a column that no tensor can hold.

    Raises
    ------
    FeedError
        It names all such columns, with their types.

    Examples
    --------
    >>> check_types(pa.schema({"when": pa.date32()}))
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: column 'when' has type date32[day], which can't be fed: select the columns \
that the program needs, and cast them to numbers, booleans, strings, binary or arrays of these
    """
    bad = [field for field in schema if not _supported(field.type)]
    if bad:
        names = " and ".join(f"column {field.name!r} has type {field.type}" for field in bad)
        raise FeedError(
            f"{names}, which can't be fed: select the columns that the program needs, and cast them to numbers, "
            "booleans, strings, binary or arrays of these"
        )


def _supported(kind: pa.DataType) -> bool:
    if _is_list(kind):
        return _supported(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_text(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


# ---- what a column holds


def summarize(batch: pa.RecordBatch) -> dict[str, ColumnSummary]:
    """Return, for each column, its nulls at any level and the range of its arrays' lengths at each."""
    return {name: _summarize(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _summarize(column: pa.Array) -> ColumnSummary:
    nulls: int = column.null_count
    lengths: list[tuple[int, int]] = []
    while _is_list(column.type):
        bounds = pc.min_max(pc.list_value_length(column))
        if bounds["min"].as_py() is not None:
            lengths.append((bounds["min"].as_py(), bounds["max"].as_py()))
        column = column.flatten()
        nulls += column.null_count
    return ColumnSummary(nulls, tuple(lengths))


def merge(summaries: Iterable[dict[str, ColumnSummary]]) -> dict[str, ColumnSummary]:
    """Return the summary of several batches or parts together.

    Examples
    --------
    >>> merge([{"x": ColumnSummary(1, ((2, 2),))}, {"x": ColumnSummary(0, ((3, 3),))}])
    {'x': ColumnSummary(nulls=1, lengths=((2, 3),))}
    """
    total: dict[str, ColumnSummary] = {}
    for summary in summaries:
        for name, column in summary.items():
            total[name] = _merged(total[name], column) if name in total else column
    return total


def _merged(one: ColumnSummary, other: ColumnSummary) -> ColumnSummary:
    longer, shorter = sorted((one.lengths, other.lengths), key=len, reverse=True)
    both = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(longer, shorter, strict=False)]
    return ColumnSummary(one.nulls + other.nulls, (*both, *longer[len(shorter) :]))


# ---- what a row of it is in numpy


def row_shape(name: str, summary: ColumnSummary) -> tuple[int, ...]:
    """Return the shape of one row's value: ``()`` for a scalar, ``(n,)`` for arrays of n values.

    Raises
    ------
    FeedError
        If the column holds a null, or arrays of several lengths.
    """
    if summary.nulls:
        raise FeedError(
            f"column {name!r} holds {summary.nulls} nulls, which a tensor can't: drop those rows (df.dropna) or fill "
            "them (df.fillna) before feeding"
        )
    for shortest, longest in summary.lengths:
        if shortest != longest:
            raise FeedError(
                f"column {name!r} holds arrays of {shortest} to {longest} values, where all rows must have as many: "
                "cut or pad them before feeding"
            )
    return tuple(longest for _, longest in summary.lengths)


def row_dtype(kind: pa.DataType) -> np.dtype[np.generic]:
    """Return the dtype of a column in numpy; ``object`` for strings and binary.

    Examples
    --------
    >>> row_dtype(pa.list_(pa.float32()))
    dtype('float32')
    """
    while _is_list(kind):
        kind = kind.value_type
    return np.dtype(object) if _is_text(kind) else np.dtype(kind.to_pandas_dtype())


def to_numpy(column: pa.Array, shape: tuple[int, ...]) -> Array:
    """Return a column as an array of shape ``(rows, *shape)``: a view of Arrow's memory where its layout allows.

    Parameters
    ----------
    column : pyarrow.Array
        Without nulls, its arrays all of the given shape.
    shape : tuple of int
        The shape of one row's value.

    Examples
    --------
    >>> to_numpy(pa.array([[1, 2], [3, 4]]), (2,))
    array([[1, 2],
           [3, 4]])
    """
    rows = len(column)
    while _is_list(column.type):
        column = column.flatten()
    flat: Array = column.to_numpy(zero_copy_only=_is_plain(column.type))
    return flat.reshape(rows, *shape)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def zeros(rows: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """Return rows of zeros, or of empty strings."""
    return np.full((rows, *shape), b"" if dtype.kind == "O" else 0, dtype=dtype)
