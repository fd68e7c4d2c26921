"""What one row's value of a DataFrame's column is in numpy, as far as its type and its metadata tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorflowonspark.columns import arrow_type, check_schema, natural_type, require_frame
from tensorflowonspark.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["SHAPE", "Field", "field_of", "fields_of"]

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
