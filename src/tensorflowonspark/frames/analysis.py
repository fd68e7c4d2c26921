"""How long a DataFrame's arrays are: found out or said, kept in the columns' metadata, and shown."""

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow, merge, plainly_named, require_frame, select, summarize
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.fields import SHAPE, Field, field_of, fields_of
from tensorflowonspark.parts import ColumnSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["analyze", "append_shape", "print_schema"]


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
