"""Shapes of a DataFrame's columns: found out or declared, kept in metadata, and shown."""

import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.columns import (
    arrow_type,
    check_schema,
    map_in_arrow,
    merge,
    natural_type,
    plainly_named,
    require_frame,
    select,
    summarize,
)
from tensorflowonspark.columns.summary import ColumnSummary
from tensorflowonspark.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["SHAPE", "Field", "analyze", "append_shape", "field_of", "fields_of", "print_schema"]

SHAPE = "tensorflowonspark.shape"  # in a column's metadata: the sizes, and -1 for those that vary


@dataclass(frozen=True)
class Field:
    """A column.

    Attributes
    ----------
    name : str
        Its name.
    dtype : str
        Numpy's; ``string`` for strings and binary.
    shape : tuple of int or None
        Of one row's value; None where it varies, or is not known.
    is_text : bool
        Whether it holds strings.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    is_text: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether all rows are known to have one shape."""
        return None not in self.shape

    @property
    def varying(self) -> int:
        """In how many dimensions rows must be taken to vary: the first ones, down to the last that does."""
        return max((at + 1 for at, size in enumerate(self.shape) if size is None), default=0)

    def told(self) -> str:
        """Return its dtype and shape, as in ``float32[?,2]``.

        Examples
        --------
        >>> Field("x", "float32", (None, 2)).told()
        'float32[?,2]'
        """
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


def field_of(column: "StructField") -> Field:
    """Return what a column is."""
    type_ = arrow_type(column.dataType)
    dtype, depth, text = natural_type(column.name, type_)
    shape: Sequence[int | None] = [None] * depth
    stored = (column.metadata or {}).get(SHAPE)
    if stored is not None and len(stored) == depth:
        shape = [None if size < 0 else int(size) for size in stored]
    return Field(column.name, "string" if dtype.kind == "O" else dtype.name, tuple(shape), text)


def fields_of(frame: "DataFrame", names: Sequence[str]) -> dict[str, Field]:
    """Return what some columns of a DataFrame are, by name.

    Raises
    ------
    SpecError
        If there is no such column.
    FeedError
        If one has a type that no array can hold.
    """
    require_frame(frame, "the data")
    schema = frame.schema
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise SpecError(
            f"the function has a parameter {missing[0]!r}, and the DataFrame no such column; it has {schema.names}. "
            "Name the parameter like a column, or say which it is: feed_dict={parameter: column}"
        )
    check_schema(type(schema)([schema[name] for name in dict.fromkeys(names)]))
    structs = [name for name in names if hasattr(schema[name].dataType, "fields")]
    if structs:
        raise SpecError(
            f"column {structs[0]!r} is a struct: select its fields as columns first, as in df.select('s.*')"
        )
    return {name: field_of(schema[name]) for name in names}


def analyze(frame: "DataFrame") -> "DataFrame":
    """Return a DataFrame whose metadata say how long the arrays of its columns are; this reads all rows once.

    Only an array whose length is known can go to a function of blocks that was traced for one, and `map_rows` takes
    many rows at a time where all have one shape.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0], [1]), ([3.0, 4.0], [1, 2])], "x array<double>, y array<int>")
    >>> print_schema(analyze(df))
    root
     |-- x: array<double> float64[2]
     |-- y: array<int> int32[?]
    """
    require_frame(frame, "the data")
    nested = [column.name for column in frame.schema.fields if _field(column) and field_of(column).shape]
    if not nested:
        return frame
    rows = map_in_arrow(select(frame, nested), _summaries, "summary binary").collect()
    found = merge(pickle.loads(row.summary) for row in rows)
    for name, summary in found.items():
        frame = append_shape(frame, name, _shape(summary, field_of(frame.schema[name])))
    return frame


def _field(column: "StructField") -> Field | None:
    """Return what a column is, or None if no array can hold it."""
    try:
        return field_of(column)
    except Exception:
        return None


def _summaries(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what is in the columns of a partition (runs in Spark's Python workers)."""
    total: dict[str, ColumnSummary] = {}
    for batch in batches:
        total = merge((total, summarize(batch)))
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(total)], pa.binary())], ["summary"])


def _shape(summary: ColumnSummary, field: Field) -> list[int | None]:
    known = [each.longest if each.shortest == each.longest else None for each in summary.lengths[: len(field.shape)]]
    return [*known, *[None] * (len(field.shape) - len(known))]


def append_shape(frame: "DataFrame", col: str, shape: Sequence[int | None]) -> "DataFrame":
    """Return a DataFrame whose metadata say how long the arrays of a column are; no row is read.

    Parameters
    ----------
    frame : DataFrame
        Any.
    col : str
        A column of arrays, vectors or nested arrays.
    shape : sequence of int or None
        Of one row's value: a size for each level, None or -1 where it varies. What is said is checked when rows are
        computed.

    Raises
    ------
    SpecError
        If the column does not have as many levels.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0],)], "x array<double>")
    >>> print_schema(append_shape(df, "x", [2]))
    root
     |-- x: array<double> float64[2]
    """
    field = fields_of(frame, [col])[col]
    if len(shape) != len(field.shape):
        raise SpecError(
            f"append_shape(df, {col!r}, {list(shape)}): one value of the column has {len(field.shape)} dimension(s), "
            f"as it is {frame.schema[col].dataType.simpleString()}"
        )
    sizes = [-1 if size is None else int(size) for size in shape]
    metadata = {**(frame.schema[col].metadata or {}), SHAPE: sizes}
    plain, own = plainly_named(frame)
    place = frame.columns.index(col)
    return plain.select(*own[:place], own[place].alias(col, metadata=metadata), *own[place + 1 :])


def print_schema(frame: "DataFrame") -> None:
    """Print the columns with their Spark types, and with what one row's value is in numpy.

    Examples
    --------
    >>> print_schema(spark.range(3))
    root
     |-- id: bigint int64[]
    """
    require_frame(frame, "the data")
    lines = ["root"]
    for column in frame.schema.fields:
        field = _field(column)
        lines.append(f" |-- {column.name}: {column.dataType.simpleString()} {field.told() if field else '(no tensor)'}")
    sys.stdout.write("\n".join([*lines, ""]))
