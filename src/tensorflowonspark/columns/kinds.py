"""The dtype and shape of a column's values: inferred from its type and summary, or declared by the program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import layout
from tensorflowonspark.columns.schema import quoted
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import ColumnSummary, LengthRange

Shape = tuple[int | None, ...]


def shape_of(name: str, depth: int, ranges: Sequence[LengthRange], declared: Sequence[int | None] | None) -> Shape:
    """Return the shape of one value of a column: the inferred one, or the declared one if the values fit it.

    `depth` is the number of levels of arrays, 0 for scalars. `ranges` has the lengths of the arrays, outermost level
    first; a level without any non-null array is missing, and levels beyond `depth` are ignored. Sizes of None vary.
    Raises FeedError if the values have no common shape, or do not fit the declared one.

    Examples
    --------
    >>> shape_of("x", 1, [LengthRange(4, 4)], None), shape_of("x", 1, [LengthRange(4, 4)], (2, 2))
    ((4,), (2, 2))
    >>> shape_of("x", 2, [LengthRange(1, 4), LengthRange(3, 3)], (None, 3))
    (None, 3)
    """
    known = tuple(ranges[:depth])
    if declared is None:
        return _own_shape(name, depth, known)
    wanted = _checked(name, declared)
    varying = wanted.count(None)
    if varying > depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, and {_declaration(name, wanted)} wants arrays nested "
            f"{varying} deep that vary in length"
        )
    # Without a declared shape nobody knows which of the rows are those to skip.
    _refuse_varying(name, known, varying, f"{_declaration(name, wanted)} wants one length", skippable=True)
    _refuse_other_size(name, depth, known, wanted)
    return wanted


def _own_shape(name: str, depth: int, known: tuple[LengthRange, ...]) -> Shape:
    _refuse_varying(name, known, 0, "without a declared shape all must have one length")
    if known and known[-1].longest == 0:  # if all arrays are empty, so are those inside them
        known += (LengthRange(0, 0),) * (depth - len(known))
    if len(known) < depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, of which all {'inner ones ' if known else ''}are null, so that "
            f"their shape is unknown: declare it, as in {_declaration(name, (3,) * depth)}"
        )
    return tuple(each.longest for each in known)


def _checked(name: str, declared: Sequence[int | None]) -> Shape:
    """Return a declared shape as a tuple, or raise a FeedError if it is not a shape."""
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
        raise FeedError(f"{_declaration(name, shape)}: the dimensions that vary must come first, as in (None, 3)")
    return shape


def _refuse_varying(
    name: str, known: tuple[LengthRange, ...], first: int, rule: str, *, skippable: bool = False
) -> None:
    """Raise a FeedError if arrays differ in length at level `first` or below."""
    varying = [level for level, each in enumerate(known) if each.shortest != each.longest]
    if not varying or varying[-1] < first:
        return
    refused = next(known[level] for level in varying if level >= first)
    ragged = (None,) * (varying[-1] + 1) + tuple(each.longest for each in known[varying[-1] + 1 :])
    raise FeedError(
        f"column {name!r} holds arrays of different lengths ({refused.shortest} to {refused.longest} values), and "
        f"{rule}; see {refused.shortest_at}, and {refused.longest_at}. Pad or cut them in Spark, or declare a "
        f"ragged column, as in {_declaration(name, ragged)}",
        skippable=skippable,
    )


def _refuse_other_size(name: str, depth: int, known: tuple[LengthRange, ...], wanted: Shape) -> None:
    """Raise a FeedError if arrays below the varying dimensions have another number of values than the shape."""
    varying = wanted.count(None)
    needs = prod(size for size in wanted if size is not None)
    fixed = known[varying:]
    has = prod(each.longest for each in fixed)
    # The length of a level of nulls is free: the sizes of the known levels must divide the size of the shape.
    if needs == has if len(known) == depth or not has else needs % has == 0:
        return
    if varying == depth:
        raise FeedError(f"column {name!r} holds single values where {_declaration(name, wanted)} needs {needs}")
    own = (None,) * varying + tuple(each.longest for each in fixed)
    inside = f"in each array of level {varying}" if varying else "in each row"
    raise FeedError(
        f"column {name!r} holds {has} value{'' if has == 1 else 's'} {inside}, as in {fixed[0].longest_at}, and "
        f"{_declaration(name, wanted)} needs {needs}; what fits is {_declaration(name, own)}"
    )


def _nested(depth: int) -> str:
    return {0: "single values", 1: "arrays"}.get(depth, f"arrays nested {depth} deep")


def _declaration(name: str, shape: Shape) -> str:
    return f"shapes={{{name!r}: {shape}}}"


# The dtypes of types that numpy or TensorFlow does not have.
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
    """The dtype and shape of one row's value of a column, and the treatment of nulls.

    Dates are days since 1970, timestamps microseconds since then (in UTC, or in local time if Spark's type has no time
    zone), intervals microseconds, times of day nanoseconds; casts and fills apply to these numbers.
    """

    dtype: np.dtype[Any]  # object for strings and binary
    shape: tuple[int | None, ...] = ()  # () for a scalar; leading sizes of None vary from row to row: ragged
    fill: Any = None  # replaces a null: a number, a string or bytes; if None, nulls are errors
    decoded: bool = False  # whether the bytes of a binary column are its values (uint8)
    text: bool = False  # whether its values are strings
    padded: bool = field(default=False, repr=False)  # whether rows that vary are padded, those of a batch to one length
    name: str = field(default="", repr=False, compare=False)  # for errors

    @property
    def inner(self) -> tuple[int, ...]:
        """The sizes of the dimensions that do not vary."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def varying(self) -> int:
        """The number of dimensions that vary."""
        return self.shape.count(None)

    @property
    def ragged(self) -> bool:
        """Whether rows vary in length."""
        return self.varying > 0

    @property
    def row_splits(self) -> int:
        """How many row splits a batch has: one for each dimension that varies, and none if its rows are padded."""
        return 0 if self.padded else self.varying


def kind_of(
    name: str,
    type_: pa.DataType,
    summary: ColumnSummary,
    *,
    shape: Sequence[int | None] | None = None,
    cast: str | None = None,
    fill: Any = None,
) -> Kind:
    """Return the kind of a column's values, given its summary of all workers and the declarations of the program.

    A flat array, or the bytes of a binary value, is reshaped to a declared shape; ``(None,)`` and ``(None, None)``
    declare ragged arrays. Fractions are cut off by a cast, floats are rounded, and a value that the dtype can't hold is
    an error when it is read. With a cast, or a declared shape, bytes are decoded as uint8; bytes in arrays only with a
    cast. `fill` replaces nulls: a string or bytes for a column of these, otherwise a number, also for dates and
    timestamps (see `Kind`).

    Raises FeedError, which names the first row at fault, its partition and its value, if the column does not allow it.

    Examples
    --------
    >>> from tensorflowonspark.messages import LengthRange
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
            f"{summary.null_at}: {_finds_nulls(name, type_)} shows {'them' if summary.nulls > 1 else 'it'}; drop or "
            f"replace in Spark (df.dropna, df.fillna), or declare what stands for a null, as in fill={{{name!r}: "
            f"{empty!r}}}",
            skippable=True,
        )
    # The length of a binary value is a dimension only if its bytes are the values.
    depth = layout.array_depth(type_) - (layout.is_binary(leaf) and not decoded)
    return Kind(dtype, shape_of(name, depth, summary.lengths, shape), fill, decoded, layout.is_text(leaf), name=name)


def _finds_nulls(name: str, type_: pa.DataType) -> str:
    """Return the filter of Spark that finds the rows with a null in a column, or in its arrays.

    Examples
    --------
    >>> print(_finds_nulls("x", pa.list_(pa.int8())))
    df.where("x is null or exists(x, v -> v is null)")
    """
    column = name if name.isidentifier() else quoted(name)
    return f'df.where("{_is_null(column, type_)}")'


def _is_null(value: str, type_: pa.DataType, depth: int = 0) -> str:
    """Return Spark's expression for a value that is null, or an array with a null at some depth."""
    if not layout.is_list(type_):
        return f"{value} is null"
    item = f"v{depth or ''}"
    return f"{value} is null or exists({value}, {item} -> {_is_null(item, type_.value_type, depth + 1)})"


def natural_type(name: str, type_: pa.DataType) -> tuple[np.dtype[Any], int, bool]:
    """Return the inferred dtype and number of dimensions of a column's values, and whether they are strings.

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
    # TensorFlow adds numbers to those of numpy, such as bfloat16, which have the kind of structures (V).
    if wanted.kind not in "biufcV" or wanted.type is np.void:
        raise FeedError(f"dtypes={{{name!r}: {cast!r}}}: expected the dtype of a number, as in 'float32' or 'int64'")
    return wanted


def _empty(leaf: pa.DataType, dtype: np.dtype[Any]) -> object:
    """Return an example of a fill."""
    if dtype.kind == "O":
        return "" if layout.is_text(leaf) else b""
    return False if dtype.kind == "b" else 0


def _check_fill(name: str, dtype: np.dtype[Any], fill: Any, empty: object) -> None:
    declaration = f"fill={{{name!r}: {fill!r}}}"
    if dtype.kind == "O":
        if not isinstance(fill, type(empty)):
            held = "strings" if empty == "" else "bytes"
            raise FeedError(f"{declaration}: column {name!r} holds {held}: expected one of its kind, as in {empty!r}")
    elif not _holds(dtype, fill):
        raise FeedError(
            f"{declaration}: column {name!r} comes as {dtype.name}: expected one number that {dtype.name} can hold; "
            "dates and timestamps are numbers too. With another dtype in dtypes it can be another"
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
