"""Conversion between Arrow columns and numpy arrays: the only folder that knows both layouts.

`summary` counts the nulls of a column and measures its arrays, `kinds` derives the dtype and shape of its values, and
`arrays` converts them to numpy. `results` converts numpy arrays to Arrow. `layout` describes the types of Arrow,
`schema` those of Spark, and `plain` maps those of files to them.
"""

from tensorflowonspark.columns.arrays import (
    Array,
    Ragged,
    concatenate,
    convert,
    lists_as_vectors,
    repeat_rows,
    spread,
    to_array,
    vector_lists,
    view,
    zeros,
)
from tensorflowonspark.columns.checksum import checksum
from tensorflowonspark.columns.kinds import Kind, kind_of, natural_type
from tensorflowonspark.columns.layout import flat_columns
from tensorflowonspark.columns.places import PLACE_BITS, mixed_order
from tensorflowonspark.columns.results import joined, to_batch
from tensorflowonspark.columns.schema import (
    arrow_type,
    check_schema,
    map_in_arrow,
    parse_schema,
    plainly_named,
    quoted,
    require_frame,
    select,
)
from tensorflowonspark.columns.summary import merge, summarize

__all__ = [
    "PLACE_BITS",
    "Array",
    "Kind",
    "Ragged",
    "arrow_type",
    "check_schema",
    "checksum",
    "concatenate",
    "convert",
    "flat_columns",
    "joined",
    "kind_of",
    "lists_as_vectors",
    "map_in_arrow",
    "merge",
    "mixed_order",
    "natural_type",
    "parse_schema",
    "plainly_named",
    "quoted",
    "repeat_rows",
    "require_frame",
    "select",
    "spread",
    "summarize",
    "to_array",
    "to_batch",
    "vector_lists",
    "view",
    "zeros",
]
