"""How Arrow lays out the types that Spark sends: which are lists, text or vectors, and what is inside of each."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Parents", "Teller", "is_binary", "is_list", "is_text", "is_vector", "leaf_type", "lengths", "levels"]

Teller = Callable[[pa.Array, int], str]
Parents = tuple[pa.Array, ...]  # for each level of lists: in which list of the level above a value stands

# Spark ML's VectorUDT as Spark sends it: a sparse vector (type 0) has size, indices and values, a dense one values.
_VECTOR_FIELDS = ["type", "size", "indices", "values"]


def is_list(kind: pa.DataType) -> bool:
    """Whether it is an array in Spark."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether it holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether it holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_vector(kind: pa.DataType) -> bool:
    """Whether it is a vector of Spark ML, dense or sparse."""
    return bool(pa.types.is_struct(kind) and [field.name for field in kind] == _VECTOR_FIELDS)


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values inside of all lists.

    Examples
    --------
    >>> leaf_type(pa.list_(pa.list_(pa.int8())))
    DataType(int8)
    """
    while is_list(kind):
        kind = kind.value_type
    return kind


def levels(column: pa.Array) -> Iterator[tuple[pa.Array, Parents]]:
    """Yield the column, the values of its lists, the values of theirs, and so on, with the way back to the rows."""
    parents: Parents = ()
    yield column, parents
    while is_list(column.type):
        parents = (*parents, pc.list_parent_indices(column))
        column = column.flatten()
        yield column, parents


def lengths(column: pa.Array) -> pa.Array | None:
    """Return the length of each list, of each binary value in bytes, or of each vector; None for other types."""
    if is_list(column.type):
        return pc.list_value_length(column)
    if is_binary(column.type):
        return pc.binary_length(column)
    if is_vector(column.type):
        return pc.if_else(
            pc.equal(pc.struct_field(column, "type"), 1),
            pc.list_value_length(pc.struct_field(column, "values")),
            pc.struct_field(column, "size"),
        )
    return None
