"""Spark's types and column names: checks of schemas, conversion to Arrow types, and selection by exact names.

Spark reads a name as an expression: a dot selects a field of a struct, a star stands for all columns, case does not
matter, and a backtick quotes. Even `DataFrame.mapInArrow` resolves its columns like this.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.errors import FeedError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_PLAIN = {
    "BinaryType", "BooleanType", "ByteType", "CharType", "DateType", "DayTimeIntervalType", "DecimalType", "DoubleType",
    "FloatType", "IntegerType", "LongType", "ShortType", "StringType", "TimeType", "TimestampNTZType", "TimestampType",
    "VarcharType",
}  # fmt: skip
_REASONS = {
    "MapType": "a tensor has no keys: take the values that the program needs as columns of their own (col['key']), or "
    "feed map_keys(col) and map_values(col)",
    "NullType": "it has no values: drop it, or cast it to a type",
    "VariantType": "its values have no common type: take parts of it with variant_get",
    "YearMonthIntervalType": "its length in time varies: cast it to int, which gives months",
    "CalendarIntervalType": "its length in time varies: drop it, or make a number of it",
}
_REMEDIES = {  # by the start of a value's module and class
    "pandas.": "make one with spark.createDataFrame(data)",
    "numpy.": "make one with spark.createDataFrame([(row.tolist(),) for row in array], 'features array<double>')",
    "polars.": "make one with spark.createDataFrame(data.to_pandas())",
    "pyarrow.": "make one with spark.createDataFrame(data.to_pandas())",
    "pyspark.pandas.": "make one with data.to_spark()",
    "pyspark.core.rdd.": "make one with spark.createDataFrame(rdd, schema)",
    "pyspark.rdd.": "make one with spark.createDataFrame(rdd, schema)",
    "pyspark.sql.group": "give the DataFrame itself; tensorflowonspark.frames.aggregate takes groups",
    "tensorflow.": "make the data set in the program, from ctx.dataset(...) or from files",
    "builtins.str": "read it first, as in spark.read.parquet(path)",
    "builtins.list": "make one with spark.createDataFrame(rows, schema)",
    "builtins.tuple": "make one with spark.createDataFrame(rows, schema)",
    "builtins.dict": "make one with spark.createDataFrame(pandas.DataFrame(data))",
}


def require_frame(data: object, argument: str) -> None:
    """Raise a SpecError unless a value is a Spark DataFrame; it says how to make one of the value.

    Examples
    --------
    >>> require_frame([1.0], "cluster.train(data)")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: cluster.train(data): expected a Spark DataFrame, and not a list: make one with \
spark.createDataFrame(rows, schema)
    """
    if hasattr(type(data), "mapInArrow"):  # on Spark Connect too, where reading the schema would call the server
        return
    kind = type(data)
    qualified = f"{kind.__module__}.{kind.__qualname__}"
    remedy = next((line for start, line in _REMEDIES.items() if qualified.startswith(start)), "make one of it first")
    name = qualified.removeprefix("builtins.") if kind.__module__ == "builtins" else qualified
    raise SpecError(f"{argument}: expected a Spark DataFrame, and not a {name}: {remedy}")


def check_schema(schema: "StructType") -> None:
    """Raise a FeedError for a schema with columns that no tensor can hold.

    The error names all such columns, with their types and a remedy for each.

    Examples
    --------
    >>> from pyspark.sql.types import MapType, StringType, StructType
    >>> check_schema(StructType().add("tags", MapType(StringType(), StringType())))
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: the DataFrame can't be fed: column 'tags' has type map<string,string>: a \
tensor has no keys: take the values that the program needs as columns of their own (col['key']), or feed map_keys(col) \
and map_values(col)
    """
    if not schema.fields:
        raise FeedError("the DataFrame has no columns: there is nothing to feed")
    columns = [column for field in schema.fields for column in _flat(field.name, field.dataType)]
    names = [name for name, _ in columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise FeedError(
            f"the DataFrame has several columns of the name {', '.join(map(repr, repeated))} (a struct's fields are "
            "columns named struct.field): rename them"
        )
    problems = [
        f"column {name!r} has type {kind.simpleString()}: {reason}"
        for name, kind in columns
        if (reason := _refusal(kind))
    ]
    if problems:
        raise FeedError(f"the DataFrame can't be fed: {'; '.join(problems)}")


def _flat(name: str, kind: "DataType") -> Iterator[tuple[str, "DataType"]]:
    """Yield a column, or each field of a struct as the column ``struct.field``."""
    if type(kind).__name__ == "StructType" and (fields := getattr(kind, "fields", ())):
        for field in fields:
            yield from _flat(f"{name}.{field.name}", field.dataType)
    else:
        yield name, kind


def _refusal(kind: "DataType", inside_array: bool = False) -> str:
    """Return the reason that a type can't be fed, or an empty string."""
    from pyspark.sql.types import ArrayType, StructType, UserDefinedType

    if isinstance(kind, ArrayType):
        return _refusal(kind.elementType, inside_array=True)
    if isinstance(kind, StructType):
        if inside_array:
            return "an array of structs: take its fields as arrays (col.field), which Spark gives for arrays of structs"
        return "it has no fields: drop it"
    if isinstance(kind, UserDefinedType):
        if type(kind).__name__ != "VectorUDT":
            return "of user-defined types only Spark ML's vectors can be fed: convert it"
        return "an array of vectors: convert it to an array of arrays" if inside_array else ""
    name = type(kind).__name__
    return "" if name in _PLAIN else _REASONS.get(name, "no tensor can hold it: drop the column, or cast it")


def arrow_type(kind: "DataType", *, large: bool = False) -> pa.DataType:
    """Return the Arrow type in which Spark sends values of one of its types.

    With `large`, Spark is set to send strings and binary as the large types (``useLargeVarTypes``).

    Examples
    --------
    >>> from pyspark.sql.types import ArrayType, FloatType
    >>> arrow_type(ArrayType(FloatType())).value_type
    DataType(float)
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    if isinstance(kind, VectorUDT):
        return arrow_type(VectorUDT.sqlType())
    if isinstance(kind, StructType):
        fields = [pa.field(each.name, arrow_type(each.dataType, large=large), each.nullable) for each in kind.fields]
        return pa.struct(fields)
    # Spark 4.1 and newer require the time zone of timestamps; older versions assume UTC. Spark 3.5 has no large types.
    options = {"timezone": "UTC", "prefers_large_types": large}
    known = signature(to_arrow_type).parameters
    return to_arrow_type(kind, **{name: each for name, each in options.items() if name in known})


_WORDS = {  # of Spark's schemas as text
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_schema(schema: "pa.Schema | StructType | str") -> pa.Schema:
    """Return a user's schema, such as ``"id bigint, x array<float>"``, as an Arrow schema, without Spark.

    Raises SpecError if it is not a schema, or has a type that no text of this function names.

    Examples
    --------
    >>> arrow_schema("id bigint not null, `x.y` array<float>, price decimal(5, 2)").names
    ['id', 'x.y', 'price']
    """
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, str):
        fields = getattr(schema, "fields", None)
        if fields is None:
            raise SpecError(f"schema={schema!r}: expected text such as 'id bigint', a StructType or a pyarrow.Schema")
        return pa.schema([pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in fields])
    columns = []
    for column in re.split(r",(?![^<>()]*[>)])", schema):  # not within array<decimal(5, 2)>
        found = re.fullmatch(r"\s*(`(?:[^`]|``)+`|\w+)\s*:?\s*(\S.*?)(\s+not\s+null)?\s*", column, re.IGNORECASE)
        kind = found and named_type(found[2].lower())
        if not found or kind is None:
            raise SpecError(
                f"schema={schema!r}: {column.strip()!r} can't be a column here: a column as text is a name and one of "
                f"{', '.join(_WORDS)}, decimal(p, s) and array<...>; or give a pyarrow.Schema"
            )
        name = found[1][1:-1].replace("``", "`") if found[1][0] == "`" else found[1]
        columns.append(pa.field(name, kind, not found[3]))
    return pa.schema(columns)


def named_type(text: str) -> pa.DataType | None:
    """Return the Arrow type that Spark names so; None for one that has no counterpart here.

    Examples
    --------
    >>> named_type("array<decimal(5, 2)>").value_type
    Decimal128Type(decimal128(5, 2))
    """
    if array := re.fullmatch(r"array\s*<\s*(.*?)\s*>", text):
        inner = named_type(array[1])
        return None if inner is None else pa.list_(inner)
    if decimal := re.fullmatch(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)", text):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _WORDS.get(text)


def parse_schema(schema: "str | StructType | pa.Schema", frame: "DataFrame") -> "StructType":
    """Return a user's schema, such as ``"prediction float, name string"``, as a StructType.

    Raises SpecError if it is none.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, pa.Schema):
        return from_arrow_schema(schema)
    try:
        empty = frame.sparkSession.createDataFrame([], schema)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise SpecError(f"schema={schema!r}: expected columns and types, as in 'prediction float' ({first})") from None
    return empty.schema


_Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def quoted(name: str) -> str:
    """Return a name quoted for Spark's expressions and schemas.

    Examples
    --------
    >>> quoted("a.b"), quoted("back`tick")
    ('`a.b`', '`back``tick`')
    """
    return "`{}`".format(name.replace("`", "``"))


def _are_plain(names: Sequence[str]) -> bool:
    """Return whether Spark finds each column by its unquoted name."""
    return all(name.isidentifier() for name in names) and len({name.lower() for name in names}) == len(names)


def plainly_named(frame: "DataFrame") -> "tuple[DataFrame, list[Column]]":
    """Return a DataFrame with column names that need no quotes, and expressions that restore the original names."""
    from pyspark.sql import functions as f

    names = list(frame.columns)
    if _are_plain(names):
        return frame, [f.col(name) for name in names]
    plain = [f"column_{position}" for position in range(len(names))]
    return frame.toDF(*plain), [f.col(new).alias(old) for new, old in zip(plain, names, strict=True)]


def unused_name(names: Sequence[str], wanted: str) -> str:
    """Return the name of a column that is none of these: the wanted one, or that with underscores."""
    taken = {each.lower() for each in names}  # Spark's names match in any case
    while wanted in taken:
        wanted += "_"
    return wanted


def select(frame: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """Return a DataFrame with the named columns; of several columns with one name, the first."""
    plain, columns = plainly_named(frame)
    return plain.select(*[columns[frame.columns.index(name)] for name in names])


def map_in_arrow(frame: "DataFrame", function: _Function, schema: "str | StructType", **options: Any) -> "DataFrame":
    """Return the result of `DataFrame.mapInArrow`, whose batches have the original names of the columns.

    The options, such as ``barrier=True``, are those of `mapInArrow`.
    """
    plain, _ = plainly_named(frame)
    if plain is not frame:
        function = partial(_renamed, function, list(frame.columns))
    return plain.mapInArrow(function, schema, **options)


def _renamed(function: _Function, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call the function with batches whose columns have their original names (runs in Spark tasks)."""
    return function(pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
