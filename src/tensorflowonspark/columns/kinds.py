"""The dtype and shape of one row's value of a column: by itself, or as the program declares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import layout
from tensorflowonspark.columns.summary import ColumnSummary, LengthRange
from tensorflowonspark.errors import FeedError

__all__ = ["Kind", "kind_of", "natural_type", "shape_of"]

Shape = tuple[int | None, ...]


def shape_of(name: str, depth: int, extents: Sequence[LengthRange], declared: Sequence[int | None] | None) -> Shape:
    """Return the shape that the values of a column have, or can be folded into.

    Parameters
    ----------
    name : str
        The column's.
    depth : int
        How many levels of arrays it has; 0 if its values are scalars.
    extents : sequence of LengthRange
        Of its arrays, from the outermost level on. Levels are missing of which no row has an array that is not null;
        more than `depth` are not looked at.
    declared : sequence of int or None, optional
        The shape that is wanted.

    Raises
    ------
    FeedError
        If it has no shape, or not that one.

    Examples
    --------
    >>> shape_of("x", 1, [LengthRange(4, 4)], None), shape_of("x", 1, [LengthRange(4, 4)], (2, 2))
    ((4,), (2, 2))
    >>> shape_of("x", 2, [LengthRange(1, 4), LengthRange(3, 3)], (None, 3))
    (None, 3)
    """
    known = tuple(extents[:depth])
    if declared is None:
        return _own_shape(name, depth, known)
    wanted = _checked(name, declared)
    varying = wanted.count(None)
    if varying > depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, and {_told(name, wanted)} wants arrays nested "
            f"{varying} deep that vary in length"
        )
    _refuse_varying(name, known, varying, f"{_told(name, wanted)} wants one length")
    _refuse_other_size(name, depth, known, wanted)
    return wanted


def _own_shape(name: str, depth: int, known: tuple[LengthRange, ...]) -> Shape:
    _refuse_varying(name, known, 0, "without a declared shape all must have one length")
    if known and known[-1].longest == 0:  # there is nothing inside of arrays that are all empty
        known += (LengthRange(0, 0),) * (depth - len(known))
    if len(known) < depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, of which all {'inner ones ' if known else ''}are null, so that "
            f"their shape can't be told: declare it, as in {_told(name, (3,) * depth)}"
        )
    return tuple(extent.longest for extent in known)


def _checked(name: str, declared: Sequence[int | None]) -> Shape:
    """Return a declared shape as a tuple, if it can be one."""
    try:
        shape = tuple(None if size is None else index(size) for size in declared)
    except TypeError:
        shape = (-1,)
    if any(size is not None and size < 0 for size in shape):
        raise FeedError(
            f"shapes={{{name!r}: {declared!r}}}: expected a tuple of sizes, as in (28, 28, 1), with None for those "
            "that vary"
        )
    if None in shape[shape.count(None) :]:
        raise FeedError(f"{_told(name, shape)}: the dimensions that vary must come first, as in (None, 3)")
    return shape


def _refuse_varying(name: str, known: tuple[LengthRange, ...], first: int, rule: str) -> None:
    """Refuse arrays of several lengths at a level from the first on."""
    varying = [level for level, extent in enumerate(known) if extent.shortest != extent.longest]
    if not varying or varying[-1] < first:
        return
    extent = next(known[level] for level in varying if level >= first)
    ragged = (None,) * (varying[-1] + 1) + tuple(extent.longest for extent in known[varying[-1] + 1 :])
    raise FeedError(
        f"column {name!r} holds arrays of different lengths ({extent.shortest} to {extent.longest} values), and "
        f"{rule}; see {extent.shortest_at}, and {extent.longest_at}. Pad or cut them in Spark, or declare a "
        f"ragged column, as in {_told(name, ragged)}"
    )


def _refuse_other_size(name: str, depth: int, known: tuple[LengthRange, ...], wanted: Shape) -> None:
    """Refuse arrays with another number of values than a shape has, below the dimensions that vary."""
    varying = wanted.count(None)
    needs = prod(size for size in wanted if size is not None)
    fixed = known[varying:]
    has = prod(extent.longest for extent in fixed)
    # Arrays that are null everywhere can be of any length, if only those around them leave room for one.
    if needs == has if len(known) == depth or not has else needs % has == 0:
        return
    if varying == depth:
        raise FeedError(f"column {name!r} holds single values where {_told(name, wanted)} needs {needs}")
    own = (None,) * varying + tuple(extent.longest for extent in fixed)
    inside = f"in each array of level {varying}" if varying else "in each row"
    raise FeedError(
        f"column {name!r} holds {has} value{'' if has == 1 else 's'} {inside}, as in {fixed[0].longest_at}, and "
        f"{_told(name, wanted)} needs {needs}; what fits is {_told(name, own)}"
    )


def _nested(depth: int) -> str:
    return {0: "single values", 1: "arrays"}.get(depth, f"arrays nested {depth} deep")


def _told(name: str, shape: Shape) -> str:
    return f"shapes={{{name!r}: {shape}}}"


# What has a type of its own neither in numpy nor in TensorFlow, or one that TensorFlow does not know.
_DTYPES = {
    pa.types.is_date32: np.int32,
    pa.types.is_timestamp: np.int64,
    pa.types.is_duration: np.int64,
    pa.types.is_time64: np.int64,
    pa.types.is_decimal: np.float64,
    layout.is_vector: np.float64,
    layout.is_binary: object,
    layout.is_text: object,
}


@dataclass(frozen=True)
class Kind:
    """What one row's value is.

    Dates are the days since 1970, timestamps the microseconds since then (in UTC, or by the wall's clock where Spark's
    type has no time zone), intervals microseconds, times of day nanoseconds; a cast or a fill is one of such a number.

    Attributes
    ----------
    dtype : numpy.dtype
        ``object`` for strings and binary.
    shape : tuple of int or None
        ``()`` for a scalar; None, in the first places, where rows differ in length, which makes the column a ragged
        one.
    fill : object
        What stands for a null: a number, or a string or bytes; None if there is none.
    decoded : bool
        Whether it is a binary column whose bytes are the values (uint8).
    text : bool
        Whether its values are strings.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    fill: Any = None
    decoded: bool = False
    text: bool = False

    @property
    def inner(self) -> tuple[int, ...]:
        """The sizes of the dimensions that are the same in all rows."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def varying(self) -> int:
        """In how many dimensions rows differ."""
        return self.shape.count(None)

    @property
    def ragged(self) -> bool:
        """Whether rows differ in length."""
        return self.varying > 0


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
        The dtype that the program wants. Values become it as by `numpy.ndarray.astype`: fractions are cut off. Bytes
        are taken as the numbers that they are, as they are for a declared shape; those in arrays only for a cast.
    fill : object, optional
        What to put for nulls: a string or bytes where the column has them, or else a number, also for dates and
        timestamps (see `Kind`).

    Raises
    ------
    FeedError
        If the column can't be had like that; it names the first row that shows it, its partition and its value.

    Examples
    --------
    >>> from tensorflowonspark.columns.summary import LengthRange
    >>> kind_of("x", pa.list_(pa.int8()), ColumnSummary(lengths=(LengthRange(4, 4),)), shape=(2, 2), cast="float32")
    Kind(dtype=dtype('float32'), shape=(2, 2), fill=None, decoded=False, text=False)
    """
    leaf = layout.leaf_type(type_)
    decoded = layout.is_binary(leaf) and (cast is not None or (shape is not None and not layout.is_list(type_)))
    natural = np.dtype(np.uint8) if decoded else _natural(name, leaf)
    dtype = natural if cast is None else _cast(name, leaf, cast)
    empty = _empty(leaf, dtype)
    if fill is not None:
        _check_fill(name, dtype, fill, empty)
    elif summary.nulls:
        raise FeedError(
            f"column {name!r} holds {summary.nulls} null{'s' if summary.nulls > 1 else ''}, the first in "
            f"{summary.null_at}: drop or replace them in Spark (df.dropna, df.fillna), or declare what stands for a "
            f"null, as in fill={{{name!r}: {empty!r}}}"
        )
    # Of binary values the length belongs to a shape only if their bytes are the values.
    depth = layout.array_depth(type_) - (layout.is_binary(leaf) and not decoded)
    return Kind(dtype, shape_of(name, depth, summary.lengths, shape), fill, decoded, layout.is_text(leaf))


def natural_type(name: str, type_: pa.DataType) -> tuple[np.dtype[Any], int, bool]:
    """Return the dtype and the number of dimensions that a column's values have by themselves, and if they are strings.

    Examples
    --------
    >>> natural_type("x", pa.list_(pa.float32()))
    (dtype('float32'), 1, False)
    """
    leaf = layout.leaf_type(type_)
    return _natural(name, leaf), layout.array_depth(type_) - layout.is_binary(leaf), layout.is_text(leaf)


def _natural(name: str, leaf: pa.DataType) -> np.dtype[Any]:
    for test, dtype in _DTYPES.items():
        if test(leaf):
            return np.dtype(dtype)
    if not (pa.types.is_boolean(leaf) or pa.types.is_integer(leaf) or pa.types.is_floating(leaf)):
        raise FeedError(f"column {name!r} has type {leaf}, which no tensor can hold")
    return pa.array([], leaf).to_numpy(zero_copy_only=False).dtype  # type: ignore[no-any-return]


def _cast(name: str, leaf: pa.DataType, cast: str) -> np.dtype[Any]:
    if layout.is_text(leaf):
        raise FeedError(f"column {name!r} holds strings, which can't be cast to {cast!r}: convert it in Spark")
    try:
        wanted = np.dtype(cast)
    except (TypeError, ValueError, SyntaxError):
        wanted = np.dtype(object)
    # Beside numpy's numbers there are those that TensorFlow adds, as bfloat16, which have the kind of structures.
    if wanted.kind not in "biufcV" or wanted.type is np.void:
        raise FeedError(f"dtypes={{{name!r}: {cast!r}}}: expected the dtype of a number, as in 'float32' or 'int64'")
    return wanted


def _empty(leaf: pa.DataType, dtype: np.dtype[Any]) -> object:
    """Return what a null might be filled with."""
    if dtype.kind == "O":
        return "" if layout.is_text(leaf) else b""
    return False if dtype.kind == "b" else 0


def _check_fill(name: str, dtype: np.dtype[Any], fill: Any, empty: object) -> None:
    told = f"fill={{{name!r}: {fill!r}}}"
    if dtype.kind == "O":
        if not isinstance(fill, type(empty)):
            held = "strings" if empty == "" else "bytes"
            raise FeedError(f"{told}: column {name!r} holds {held}: expected one of its kind, as in {empty!r}")
    elif not _holds(dtype, fill):
        raise FeedError(
            f"{told}: column {name!r} comes as {dtype.name}: expected one number that {dtype.name} can hold; dates and "
            "timestamps are numbers too. With another dtype in dtypes it can be another"
        )


def _holds(dtype: np.dtype[Any], fill: Any) -> bool:
    try:
        value = np.asarray(fill)
        with np.errstate(all="ignore"):
            stored = value.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    if value.ndim or value.dtype.kind not in "biufcO":
        return False
    return dtype.kind not in "biu" or bool(stored == fill)
