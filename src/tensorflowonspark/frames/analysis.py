"""Shapes of a DataFrame's columns: measured or declared, stored in metadata, and printed."""

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
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.messages import ColumnSummary
from tensorflowonspark.renamed import takes_old_keywords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

SHAPE = "tensorflowonspark.shape"  # the key in a column's metadata; its value has the sizes, and -1 for those that vary


@dataclass(frozen=True)
class Field(TensorInfo):
    """A column: its name, the shape of one row's value, and its dtype, which is ``string`` for strings and binary."""

    is_text: bool = False  # whether it holds strings

    @property
    def varying(self) -> int:
        """The number of leading dimensions up to the last one that varies."""
        return max((at + 1 for at, size in enumerate(self.shape) if size is None), default=0)

    def __str__(self) -> str:
        """Return the dtype and shape, as in ``float32[?,2]``.

        Examples
        --------
        >>> str(Field("x", (None, 2), "float32"))
        'float32[?,2]'
        """
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


def field_of(column: "StructField") -> Field:
    """Return the dtype and shape of a column, with the sizes in its metadata."""
    type_ = arrow_type(column.dataType)
    dtype, depth, text = natural_type(column.name, type_)
    shape: Sequence[int | None] = [None] * depth
    stored = (column.metadata or {}).get(SHAPE)
    if stored is not None and len(stored) == depth:
        shape = [None if size < 0 else int(size) for size in stored]
    return Field(column.name, tuple(shape), "string" if dtype.kind == "O" else dtype.name, text)


def fields_of(frame: "DataFrame", names: Sequence[str]) -> dict[str, Field]:
    """Return the dtypes and shapes of some columns of a DataFrame, by name.

    Raises SpecError if a column is missing or a struct, and FeedError if no array can hold its type.
    """
    require_frame(frame, "the data")
    schema = frame.schema
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise SpecError(
            f"the function has a parameter {missing[0]!r}, and the DataFrame no such column; it has {schema.names}. "
            "Name the parameter like a column, or assign one: feed_dict={parameter: column}"
        )
    check_schema(type(schema)([schema[name] for name in dict.fromkeys(names)]))
    structs = [name for name in names if hasattr(schema[name].dataType, "fields")]
    if structs:
        raise SpecError(
            f"column {structs[0]!r} is a struct: select its fields as columns first, as in df.select('s.*')"
        )
    return {name: field_of(schema[name]) for name in names}


@takes_old_keywords(frame="data")
def analyze(data: "DataFrame") -> "DataFrame":
    """Return a DataFrame with the shapes of its columns in their metadata. This reads all rows once.

    `map_blocks` needs the shapes of arrays, and `map_rows` computes many rows at once if all have one known shape.

    Parameters
    ----------
    data : DataFrame
        The rows.

    Returns
    -------
    DataFrame
        The same rows and columns.

    Raises
    ------
    SpecError
        If `data` is not a DataFrame.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0], [1]), ([3.0, 4.0], [1, 2])], "x array<double>, y array<int>")
    >>> print_schema(analyze(df))
    root
     |-- x: array<double> float64[2]
     |-- y: array<int> int32[?]
    """
    require_frame(data, "the data")
    nested = [column.name for column in data.schema.fields if _field(column) and field_of(column).shape]
    if not nested:
        return data
    rows = map_in_arrow(select(data, nested), _summaries, "summary binary").collect()
    found = merge(pickle.loads(row.summary) for row in rows)
    for name, summary in found.items():
        data = append_shape(data, name, _shape(summary, field_of(data.schema[name])))
    return data


def _field(column: "StructField") -> Field | None:
    """Return the dtype and shape of a column, or None if no array can hold it."""
    try:
        return field_of(column)
    except Exception:
        return None


def _summaries(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one summary of the columns of a partition (runs in Spark's Python workers)."""
    total: dict[str, ColumnSummary] = {}
    for batch in batches:
        total = merge((total, summarize(batch)))
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(total)], pa.binary())], ["summary"])


def _shape(summary: ColumnSummary, field: Field) -> list[int | None]:
    known = [each.longest if each.shortest == each.longest else None for each in summary.lengths[: len(field.shape)]]
    return [*known, *[None] * (len(field.shape) - len(known))]


@takes_old_keywords(frame="data")
def append_shape(data: "DataFrame", col: str, shape: Sequence[int | None]) -> "DataFrame":
    """Return a DataFrame with a declared shape in the metadata of a column. This reads no row.

    Parameters
    ----------
    data : DataFrame
        The rows.
    col : str
        A column of arrays, vectors or nested arrays.
    shape : sequence of int or None
        The shape of one row's value: a size for each level, None or -1 if it varies. The rows are checked against it
        when they are computed.

    Returns
    -------
    DataFrame
        The same rows and columns.

    Raises
    ------
    SpecError
        If the column is missing, or does not have as many levels.
    FeedError
        If no array can hold the column's type.

    Examples
    --------
    >>> df = spark.createDataFrame([([1.0, 2.0],)], "x array<double>")
    >>> print_schema(append_shape(df, "x", [2]))
    root
     |-- x: array<double> float64[2]
    """
    field = fields_of(data, [col])[col]
    if len(shape) != len(field.shape):
        raise SpecError(
            f"append_shape(df, {col!r}, {list(shape)}): one value of the column has {len(field.shape)} dimension(s), "
            f"as it is {data.schema[col].dataType.simpleString()}"
        )
    sizes = [-1 if size is None else int(size) for size in shape]
    metadata = {**(data.schema[col].metadata or {}), SHAPE: sizes}
    plain, own = plainly_named(data)
    position = data.columns.index(col)
    return plain.select(*own[:position], own[position].alias(col, metadata=metadata), *own[position + 1 :])


@takes_old_keywords(frame="data")
def print_schema(data: "DataFrame") -> None:
    """Print each column with its Spark type, and the numpy dtype and shape of one row's value.

    Parameters
    ----------
    data : DataFrame
        The rows, which are not read.

    Raises
    ------
    SpecError
        If `data` is not a DataFrame.

    Examples
    --------
    >>> print_schema(spark.range(3))
    root
     |-- id: bigint int64[]
    """
    require_frame(data, "the data")
    lines = ["root"]
    for column in data.schema.fields:
        field = _field(column)
        lines.append(f" |-- {column.name}: {column.dataType.simpleString()} {field or '(no tensor)'}")
    sys.stdout.write("\n".join([*lines, ""]))
