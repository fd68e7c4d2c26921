"""The types of files as Spark has them: one unit of time, no dictionaries, views or extensions.

Every reader of files calls `to_plain` where a column enters, so that a program gets the same values from all of them.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LISTS = {"list": pa.list_, "list_view": pa.list_, "large_list": pa.large_list, "large_list_view": pa.large_list}
_VIEWS = {"string_view": pa.string(), "binary_view": pa.binary()}  # by name: an older Arrow has no test for them


def plain_type(kind: pa.DataType, *, units: bool = True) -> pa.DataType:
    """Return the type that a program gets for a type of a file.

    Dates are days, timestamps and durations microseconds, times of day nanoseconds. Values of a fixed number of bytes,
    as UUIDs, are binary; a tensor of a fixed shape is a flat array; an extension is what it is stored as. A type of
    nulls alone is int32, as Spark reads it. Without `units`, times are not converted: a column keeps the values that a
    row filter compares.

    Examples
    --------
    >>> plain_type(pa.list_(pa.dictionary(pa.int8(), pa.timestamp("ms"))))
    ListType(list<item: timestamp[us]>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind.extension_name == "arrow.bool8" else plain_type(kind.storage_type, units=units)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, units=units)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(plain_type(each.type, units=units)) for each in kind])
    if pa.types.is_fixed_size_list(kind) or (name := str(kind).partition("<")[0]) in _LISTS:
        value = kind.value_field.with_type(plain_type(kind.value_type, units=units))
        return pa.list_(value, kind.list_size) if pa.types.is_fixed_size_list(kind) else _LISTS[name](value)
    return _of_leaf(kind, units)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (pa.types.is_null, lambda _: pa.int32()),
    (pa.types.is_fixed_size_binary, lambda _: pa.binary()),
    # Arrow can't cut smaller decimals to whole numbers.
    (
        lambda kind: pa.types.is_decimal(kind) and kind.bit_width in (32, 64),
        lambda kind: pa.decimal128(kind.precision, kind.scale),
    ),
    (pa.types.is_date, lambda _: pa.date32()),
)
_UNITS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (pa.types.is_timestamp, lambda kind: pa.timestamp("us", kind.tz)),
    (pa.types.is_duration, lambda _: pa.duration("us")),
    (pa.types.is_time, lambda _: pa.time64("ns")),
)


def _of_leaf(kind: pa.DataType, units: bool) -> pa.DataType:
    for is_such, converted in (*_LEAVES, *(_UNITS if units else ())):
        if is_such(kind):
            return converted(kind)
    return _VIEWS.get(str(kind), kind)


def to_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as a plain type; what is finer than the unit of a time is cut off.

    Raises `pa.ArrowInvalid` if a value does not fit, such as seconds that are too many microseconds.

    Examples
    --------
    >>> to_plain(pa.array([1], pa.timestamp("s")), pa.timestamp("us")).cast(pa.int64()).to_pylist()
    [1000000]
    """
    if column.type.equals(kind):
        return column
    return pc.cast(_without_list_views(column), options=pc.CastOptions(kind, allow_time_truncate=True))


def _without_list_views(column: pa.Array) -> pa.Array:
    """Return list views as lists: Arrow's own cast allocates one offset too few."""
    kind = column.type
    if "list_view" not in str(kind):
        return column
    if pa.types.is_struct(kind):
        fields = [_without_list_views(each) for each in column.flatten()]
        return pa.StructArray.from_arrays(fields, [each.name for each in kind], mask=column.is_null())
    if pa.types.is_fixed_size_list(kind):
        raise pa.ArrowNotImplementedError("list views can't be read inside lists of a fixed size")
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    made = pa.LargeListArray if str(kind).startswith("large_") else pa.ListArray
    offsets = pa.array(np.append(0, ends), pa.int64() if made is pa.LargeListArray else pa.int32())
    return made.from_arrays(offsets, _without_list_views(column.flatten()), mask=column.is_null())
