"""Partition columns: the types and values that the names of directories have, as Spark reads them.

A timestamp is in the time zone of Spark's session, which comes with the settings of the file systems.
"""

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage.hadoop import TIME_ZONE, settings

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"  # the value of Hive and Spark for a null
_INTEGERS = ((pa.int32(), 31, 10), (pa.int64(), 63, 20))  # with their bits, and their digits as decimals in Spark
_MOST_DIGITS = 38  # of Spark's decimals
_TIMESTAMP = pa.timestamp("us", "UTC")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DOUBLE = re.compile(rf"\s*({_NUMBER.pattern}|[+-]?(NaN|Infinity))[dDfF]?\s*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(rf"{_DATE.pattern} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9])?")


def partition_type(texts: Iterable[str | None]) -> pa.DataType:
    """Return the type of a partition column by all its values.

    Examples
    --------
    >>> partition_type(["7", None]), partition_type(["7", "1.5"]), partition_type(["2024-02-03", "x"])
    (DataType(int32), DataType(double), DataType(string))
    """
    kinds = {_type_of(text) for text in texts if text is not None}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else pa.string()
    if all(pa.types.is_temporal(kind) for kind in kinds):
        return _TIMESTAMP
    if kinds == {pa.int32(), pa.float64()}:
        return pa.float64()
    if not all(pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in kinds):
        return pa.string()
    digits = {kind: digits for kind, _, digits in _INTEGERS}
    if kinds <= digits.keys():
        return pa.int64()
    return pa.decimal128(max(digits.get(kind) or kind.precision for kind in kinds), 0)


def _type_of(text: str) -> pa.DataType:
    if _INTEGER.fullmatch(text):
        for kind, bits, _ in _INTEGERS:
            if -(1 << bits) <= int(text) < 1 << bits:
                return kind
    if _NUMBER.fullmatch(text):
        _, digits, exponent = Decimal(text).as_tuple()
        if isinstance(exponent, int) and exponent >= 0 and len(digits) + exponent <= _MOST_DIGITS:
            return pa.decimal128(len(digits) + exponent, 0)
    if _DOUBLE.fullmatch(text):
        return pa.float64()
    for pattern, kind in ((_TIME, _TIMESTAMP), (_DATE, pa.date32())):
        if pattern.fullmatch(text):
            try:
                datetime.fromisoformat(f"{text}00" if "." in text else text)
            except ValueError:  # as February 30
                break
            return kind
    return pa.string()


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a directory as a type, which may be a user's; it raises SpecError if it is none.

    Examples
    --------
    >>> partition_value("2024-02-03 04:05:06", pa.timestamp("us", "UTC")).value
    1706933106000000
    """
    try:
        return pa.scalar(None if text is None else _parsed(text, kind), kind)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        raise SpecError(
            f"a directory's name has the value {text!r}, which is no {kind}: give the column another type ({error})"
        ) from None


def _parsed(text: str, kind: pa.DataType) -> object:
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text.strip().rstrip("dDfF"))
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        local = datetime.fromisoformat(f"{text}00" if re.search(r"\.[0-9]$", text) else text)
        # A time that a clock skips or shows twice has the offset from before, as in Java.
        return local if kind.tz is None or local.tzinfo else local.replace(tzinfo=_session_zone())
    return pa.scalar(text, pa.string()).cast(kind).as_py()


def _session_zone() -> tzinfo | None:
    return time_zone(settings().get(TIME_ZONE, "UTC"))


def partition_text(column: pa.Array) -> pa.Array:
    """Return the values of a column as Spark writes them into names of directories; a null is an empty text.

    Examples
    --------
    >>> partition_text(pa.array([1.0, None])).to_pylist()
    ['1.0', '']
    """
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_timestamp(kind)):
        return pc.cast(column, pa.string()).fill_null("")
    encoded = column.dictionary_encode()
    texts = [_shown(each, kind) for each in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices).fill_null("")


def _shown(value: object, kind: pa.DataType) -> str | None:
    if not isinstance(value, datetime):
        return (
            None
            if value is None
            else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        )
    local = value if kind.tz is None else value.astimezone(_session_zone())
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{local.replace(tzinfo=None, microsecond=0)}{fraction}"


def partition_of(folder: str, path: str) -> tuple[str, str | None]:
    """Return column and value of a directory ``column=value`` of a path."""
    name, _, value = folder.partition("=")
    if not name or not value:
        raise SpecError(f"{path}: the directory {folder!r} has no name or no value; a null is {NULL_DIRECTORY}")
    return unquote(name), None if value == NULL_DIRECTORY else unquote(value)


def directory_of(column: str, value: str | None) -> str:
    """Return the name of the directory of rows with a value in a partition column, as in Spark and Hive.

    Examples
    --------
    >>> directory_of("day", "7/11"), directory_of("day", None)
    ('day=7%2F11', 'day=__HIVE_DEFAULT_PARTITION__')
    """
    return f"{_escaped(column)}={NULL_DIRECTORY if value in (None, '') else _escaped(str(value))}"


def _escaped(text: str) -> str:
    # Not by urllib's quote: Spark takes each escape for a character, where urllib has one for each byte of UTF-8.
    return re.sub(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""", lambda found: f"%{ord(found[0]):02X}", text)


def constant(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a partition column for some rows of a directory.

    Examples
    --------
    >>> constant("7", pa.int32(), 2).to_pylist()
    [7, 7]
    """
    return pa.array([partition_value(value, kind)], kind).take(pa.array(np.zeros(rows, np.int64)))


def time_zone(name: str) -> tzinfo | None:
    """Return a time zone by its name in Spark; None for the machine's."""
    if not name:
        return None
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d))?", name)
    if not offset:
        return ZoneInfo("UTC" if name == "Z" else name)
    minutes = 60 * int(offset[2]) + int(offset[3] or 0)
    return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
