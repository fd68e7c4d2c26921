"""What one row's value of a column is in numpy: by itself, or as the program declares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import layout
from tensorflowonspark.errors import FeedError
from tensorflowonspark.parts import ColumnSummary

__all__ = ["Kind", "kind_of"]

# What has no type of its own in TensorFlow: days and microseconds since 1970, in UTC where Spark's type says so.
_PLAIN = {
    pa.types.is_date: np.int32,
    pa.types.is_timestamp: np.int64,
    pa.types.is_duration: np.int64,
    pa.types.is_decimal: np.float64,
    layout.is_vector: np.float64,
    layout.is_binary: object,
    layout.is_text: object,
}


@dataclass(frozen=True)
class Kind:
    """What one row's value is.

    Attributes
    ----------
    dtype : numpy.dtype
        ``object`` for strings and binary.
    shape : tuple of int or None
        ``()`` for a scalar; None where rows differ in length, which makes the column a ragged one.
    fill : object
        What stands for a null; None if there is none.
    decoded : bool
        Whether it is a binary column whose bytes are the values (uint8).
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    fill: Any = None
    decoded: bool = False

    @property
    def ragged(self) -> bool:
        """Whether rows differ in length."""
        return None in self.shape


def kind_of(
    name: str,
    type_: pa.DataType,
    summary: ColumnSummary,
    *,
    shape: Sequence[int | None] | None = None,
    cast: str | None = None,
    fill: Any = None,
) -> Kind:
    """Return what a column's values are in numpy, given what is in it and what the program declares.

    Parameters
    ----------
    name : str
        The column's.
    type_ : pyarrow.DataType
        Its type.
    summary : ColumnSummary
        What is in it, on all workers.
    shape : sequence of int or None, optional
        The shape of one row's value. A flat array, or a binary value taken as bytes, is folded into it; ``(None,)``
        and ``(None, None)`` declare ragged arrays.
    cast : str, optional
        The dtype that the program wants.
    fill : object, optional
        What to put for nulls.

    Raises
    ------
    FeedError
        If the column can't be had like that; it names the first row that shows it, its partition and its value.

    Examples
    --------
    >>> from tensorflowonspark.parts import Extent
    >>> kind_of("x", pa.list_(pa.int8()), ColumnSummary(lengths=(Extent(4, 4),)), shape=(2, 2), cast="float32")
    Kind(dtype=dtype('float32'), shape=(2, 2), fill=None, decoded=False)
    """
    leaf = layout.leaf_type(type_)
    decoded = layout.is_binary(leaf) and (shape is not None or cast is not None)
    if summary.nulls and fill is None:
        raise FeedError(
            f"column {name!r} holds {summary.nulls} nulls, the first in {summary.null_at}: drop those rows "
            f"(df.dropna), or declare what stands for a null, as in fill={{{name!r}: 0}}"
        )
    dtype = _cast(name, np.dtype(np.uint8) if decoded else _natural(leaf), cast)
    return Kind(dtype, _shape(name, leaf, decoded, summary, shape), fill, decoded)


def _natural(leaf: pa.DataType) -> np.dtype[Any]:
    for test, dtype in _PLAIN.items():
        if test(leaf):
            return np.dtype(dtype)
    plain: np.dtype[Any] = np.dtype(leaf.to_pandas_dtype())
    return plain


def _cast(name: str, natural: np.dtype[Any], cast: str | None) -> np.dtype[Any]:
    if cast is None:
        return natural
    try:
        wanted = np.dtype(cast)
    except TypeError:
        raise FeedError(f"casts={{{name!r}: {cast!r}}}: numpy knows no such dtype") from None
    if (natural.kind == "O") != (wanted.kind in "OSU"):
        what = "strings" if natural.kind == "O" else natural.name
        raise FeedError(f"column {name!r} holds {what}, which can't be cast to {cast!r}: convert it in Spark")
    return natural if natural.kind == "O" else wanted


def _shape(
    name: str, leaf: pa.DataType, decoded: bool, summary: ColumnSummary, declared: Sequence[int | None] | None
) -> tuple[int | None, ...]:
    # Of binary values the length is only a shape's if their bytes are the values.
    extents = summary.lengths[:-1] if layout.is_binary(leaf) and not decoded else summary.lengths
    if declared is not None and None in declared:
        return _ragged_shape(name, summary, tuple(declared))
    wanted = None if declared is None else prod(size for size in declared if size is not None)
    held = prod(extent.longest for extent in extents)
    for extent in extents:
        if extent.shortest != extent.longest or (wanted is not None and wanted != held):
            fits = wanted is not None and extent.longest == wanted
            value_at = extent.shortest_at if fits else extent.longest_at
            values = f"{extent.shortest} to {extent.longest}" if extent.shortest != extent.longest else f"{held}"
            expected = "all must have as many" if declared is None else f"shape {tuple(declared)} needs {wanted}"
            raise FeedError(
                f"column {name!r} holds arrays of {values} values, and {expected}; see {value_at}. Pad or cut them "
                f"in Spark, or declare a ragged column, as in shapes={{{name!r}: (None,)}}"
            )
    if wanted is not None and not extents and wanted != 1:
        raise FeedError(f"column {name!r} holds single values, which do not make up the shape {tuple(declared or ())}")
    return tuple(extent.longest for extent in extents) if declared is None else tuple(declared)


def _ragged_shape(name: str, summary: ColumnSummary, declared: tuple[int | None, ...]) -> tuple[int | None, ...]:
    extents = summary.lengths
    if extents and len(declared) != len(extents):
        raise FeedError(
            f"column {name!r} holds arrays nested {len(extents)} deep, and shape {declared} is {len(declared)} deep: "
            "a ragged shape has one number, or None, for each level"
        )
    inner = declared[len(declared) - declared[::-1].index(None) :]
    if None not in declared[:1] or declared[: len(declared) - len(inner)].count(None) + len(inner) != len(declared):
        raise FeedError(f"shapes={{{name!r}: {declared}}}: the dimensions that vary must come first, as in (None, 3)")
    for extent, size in zip(extents[len(declared) - len(inner) :], inner, strict=False):
        if (extent.shortest, extent.longest) != (size, size):
            at = extent.shortest_at if extent.shortest != size else extent.longest_at
            raise FeedError(
                f"column {name!r} holds arrays of {extent.shortest} to {extent.longest} values where {declared} needs "
                f"{size}; see {at}"
            )
    return declared
