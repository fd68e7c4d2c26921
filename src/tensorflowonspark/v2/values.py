"""Conversion of the values of Spark's rows to Arrow arrays, by the names of their types."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tensorflowonspark.columns.schema import named_type
from tensorflowonspark.errors import SpecError

_TEXT, _INTERVAL = re.compile(r"(var)?char\(\d+\)"), re.compile(r"interval (day|hour|minute|second).*")
_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "timestamp": datetime.astimezone,  # rows have naive timestamps in local time
    "vector": lambda vector: vector.toArray(),
}


def arrow_types(dtypes: Sequence[tuple[str, str]]) -> list[pa.DataType]:
    """Return the Arrow types of columns.

    Parameters
    ----------
    dtypes : sequence of (str, str)
        Names and Spark types of the columns: ``df.dtypes``.

    Raises
    ------
    SpecError
        If an Example can't hold a column.

    Examples
    --------
    >>> arrow_types([("a", "smallint"), ("b", "array<string>"), ("c", "decimal(5,2)")])
    [DataType(int16), ListType(list<item: string>), Decimal128Type(decimal128(5, 2))]
    """
    types = [_arrow_type(kind) for _, kind in dtypes]
    unsupported = [f"{name!r} ({kind})" for (name, kind), found in zip(dtypes, types, strict=True) if found is None]
    if unsupported:
        raise SpecError(
            f"an Example can't have the column {', '.join(unsupported)}: it holds numbers, booleans, dates and times, "
            "decimals, texts, bytes and vectors, and arrays of them"
        )
    return types


def _arrow_type(kind: str) -> pa.DataType | None:
    if array := re.fullmatch(r"array<(.*)>", kind):
        inner = _arrow_type(array[1])
        return None if inner is None or pa.types.is_list(inner) else pa.list_(inner)
    if kind == "vector":
        return pa.list_(pa.float64())
    return pa.duration("us") if _INTERVAL.fullmatch(kind) else named_type(_TEXT.sub("string", kind))


def as_batch(
    rows: Sequence[Sequence[Any]], dtypes: Sequence[tuple[str, str]], types: Sequence[pa.DataType]
) -> pa.RecordBatch:
    """Return rows as a record batch.

    Parameters
    ----------
    rows : sequence of Row or of sequences
        At least one row.
    dtypes : sequence of (str, str)
        Names and Spark types of the columns.
    types : sequence of pyarrow.DataType
        The result of `arrow_types` for `dtypes`.

    Raises
    ------
    SpecError
        If a value does not have its column's type.
    """
    names = [name for name, _ in dtypes]
    fields = getattr(rows[0], "__fields__", names)  # the order of a Row's columns may differ
    arrays = []
    for (name, kind), arrow in zip(dtypes, types, strict=True):
        values = list(map(itemgetter(fields.index(name)), rows))
        try:
            arrays.append(pa.array(_converted(values, kind), arrow))
        except (pa.ArrowException, TypeError) as error:
            raise SpecError(f"column {name!r} has a value that is no {kind}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, names)


def _converted(values: list[Any], kind: str) -> list[Any]:
    """Return values in a form that Arrow accepts."""
    inner = re.sub(r"array<(.*)>", r"\1", kind)
    if (convert := _CONVERTED.get(inner)) is None:
        return values
    return [map_values(convert, value, nested=inner != kind) for value in values]


def map_values(function: Callable[[Any], Any], value: Any, nested: bool) -> Any:
    """Apply a function to a value that may be null, or to each element of a list."""
    if value is None:
        return None
    return [map_values(function, each, nested=False) for each in value] if nested else function(value)
