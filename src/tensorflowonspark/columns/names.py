"""A DataFrame's columns by their exact names, whatever is in these.

Spark reads a name as an expression: a dot leads into a struct, a star stands for all, case does not matter, and a
backtick quotes. Even `DataFrame.mapInArrow` looks its own columns up in this way.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["map_in_arrow", "plainly_named", "quoted", "select"]

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def quoted(name: str) -> str:
    """Return a name as Spark's expressions and schemas take it.

    Examples
    --------
    >>> quoted("a.b"), quoted("back`tick")
    ('`a.b`', '`back``tick`')
    """
    return "`{}`".format(name.replace("`", "``"))


def _are_plain(names: Sequence[str]) -> bool:
    """Whether Spark finds each of some columns by its bare name."""
    return all(name.isidentifier() for name in names) and len({name.lower() for name in names}) == len(names)


def plainly_named(frame: "DataFrame") -> "tuple[DataFrame, list[Column]]":
    """Return a DataFrame whose columns have names that Spark finds, and each of them under its own name."""
    from pyspark.sql import functions as f

    names = list(frame.columns)
    if _are_plain(names):
        return frame, [f.col(name) for name in names]
    plain = [f"column_{place}" for place in range(len(names))]
    return frame.toDF(*plain), [f.col(new).alias(old) for new, old in zip(plain, names, strict=True)]


def select(frame: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """Return a DataFrame with some of the columns; of several with one name the first."""
    plain, columns = plainly_named(frame)
    return plain.select(*[columns[frame.columns.index(name)] for name in names])


def map_in_arrow(frame: "DataFrame", function: Function, schema: "str | StructType", **options: Any) -> "DataFrame":
    """Return what `DataFrame.mapInArrow` does; the function gets its batches with the columns' own names.

    Parameters
    ----------
    frame : DataFrame
        Whose rows the function gets.
    function : callable
        Of an iterator of record batches.
    schema : str or StructType
        Of the batches that it yields.
    **options
        Of `mapInArrow`, as ``barrier=True``.
    """
    plain, _ = plainly_named(frame)
    if plain is not frame:
        function = partial(_renamed, function, list(frame.columns))
    return plain.mapInArrow(function, schema, **options)


def _renamed(function: Function, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in a Spark task: give the columns their names again."""
    return function(pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
