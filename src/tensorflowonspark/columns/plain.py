"""The types of files as Spark has them: one unit of time, no dictionaries, views or extensions.

Every reader of files calls `to_plain` where a column enters, so that a program gets the same values from all of them.
"""

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["plain_type", "to_plain"]

_LISTS = {"list": pa.list_, "list_view": pa.list_, "large_list": pa.large_list, "large_list_view": pa.large_list}
_VIEWS = {"string_view": pa.string(), "binary_view": pa.binary()}  # by name: an older Arrow has no test for them


def plain_type(kind: pa.DataType, *, units: bool = True) -> pa.DataType:
    """Return the type that a program gets for a type of a file.

    Dates are days, timestamps and durations microseconds, times of day nanoseconds. Values of a fixed number of bytes,
    as UUIDs, are binary; a tensor of a fixed shape is a flat array; an extension is what it is stored as. A type of
    nulls alone is int32, as Spark reads it.

    Parameters
    ----------
    kind : pa.DataType
        The type.
    units : bool
        Whether times are converted; without, a column keeps the values that a row filter compares.

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


def _of_leaf(kind: pa.DataType, units: bool) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.int32()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:  # noqa: PLR2004 - Arrow can't cut these to whole numbers
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return pa.date32()
    if units and pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if units and pa.types.is_duration(kind):
        return pa.duration("us")
    if units and pa.types.is_time(kind):
        return pa.time64("ns")
    return _VIEWS.get(str(kind), kind)


def to_plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as a plain type; what is finer than the unit of a time is cut off.

    Raises
    ------
    pa.ArrowInvalid
        If a value does not fit, such as seconds that are too many microseconds.

    Examples
    --------
    >>> to_plain(pa.array([1], pa.timestamp("s")), pa.timestamp("us")).cast(pa.int64()).to_pylist()
    [1000000]
    """
    if column.type.equals(kind):
        return column
    return pc.cast(column, options=pc.CastOptions(kind, allow_time_truncate=True))
