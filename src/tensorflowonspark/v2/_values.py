"""The values of Spark's rows as Arrow arrays, by the names of their types: in a task there is no JVM to ask."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tensorflowonspark.errors import SpecError

__all__ = ["arrow_types", "as_batch", "each_of"]

_ARROW = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float64()),
    **dict.fromkeys(("string", "char", "varchar"), pa.string()),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "vector": pa.list_(pa.float64()),
}
_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "timestamp": datetime.astimezone,  # Spark gives rows the local time, without saying so
    "vector": lambda vector: vector.toArray(),
}


def arrow_types(dtypes: Sequence[tuple[str, str]]) -> list[pa.DataType]:
    """Return Arrow's types for columns, of which Spark tells the names and types.

    Raises
    ------
    SpecError
        If an Example can't have one of them.

    Examples
    --------
    >>> arrow_types([("a", "smallint"), ("b", "array<string>"), ("c", "decimal(5,2)")])
    [DataType(int64), ListType(list<item: string>), Decimal128Type(decimal128(5, 2))]
    """
    types = [_arrow_type(kind) for _, kind in dtypes]
    wrong = [f"{name!r} ({kind})" for (name, kind), found in zip(dtypes, types, strict=True) if found is None]
    if wrong:
        raise SpecError(
            f"an Example can't have the column {', '.join(wrong)}: it holds numbers, booleans, dates and times, "
            "decimals, texts, bytes and vectors, and arrays of them"
        )
    return types


def _arrow_type(kind: str) -> pa.DataType | None:
    if array := re.fullmatch(r"array<(.*)>", kind):
        inner = _arrow_type(array[1])
        return None if inner is None or pa.types.is_list(inner) else pa.list_(inner)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if re.match(r"interval (day|hour|minute|second)", kind):
        return pa.duration("us")
    return _ARROW.get(kind.partition("(")[0])


def as_batch(
    rows: Sequence[Sequence[Any]], dtypes: Sequence[tuple[str, str]], types: Sequence[pa.DataType]
) -> pa.RecordBatch:
    """Return rows, of which there is at least one, as a batch; `types` are those of `arrow_types`.

    Raises
    ------
    SpecError
        If a value is none of its column's type.
    """
    names = [name for name, _ in dtypes]
    fields = getattr(rows[0], "__fields__", names)  # a Row knows where its columns are, others have them in this order
    arrays = []
    for (name, kind), arrow in zip(dtypes, types, strict=True):
        values = list(map(itemgetter(fields.index(name)), rows))
        try:
            arrays.append(pa.array(_converted(values, kind), arrow))
        except (pa.ArrowException, TypeError) as error:
            raise SpecError(f"column {name!r} has a value that is no {kind}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, names)


def _converted(values: list[Any], kind: str) -> list[Any]:
    """Return values as Arrow takes them."""
    inner = re.sub(r"array<(.*)>", r"\1", kind)
    if (convert := _CONVERTED.get(inner)) is None:
        return values
    return [each_of(convert, value, nested=inner != kind) for value in values]


def each_of(function: Callable[[Any], Any], value: Any, nested: bool) -> Any:
    """Apply a function to a value that may be null, or to all that are in it."""
    if value is None:
        return None
    return [each_of(function, each, nested=False) for each in value] if nested else function(value)
