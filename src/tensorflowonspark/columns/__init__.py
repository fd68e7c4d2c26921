"""Arrow columns and numpy arrays: the only folder that knows both layouts.

`kinds` and `shapes` say what a column's values are in numpy, `arrays` makes them, `rows` cuts them and puts them
together, `summary` tells what is in a column before anything is made of it, `results` goes the other way, from numpy to
Arrow, `schema` knows Spark's types, `layout` Arrow's, and `names` finds a DataFrame's columns by their exact names.
"""

from tensorflowonspark.columns.arrays import (
    Array,
    Ragged,
    concatenate,
    lists_as_vectors,
    repeat_rows,
    spread,
    to_array,
    vector_lists,
    view,
    zeros,
)
from tensorflowonspark.columns.kinds import Kind, kind_of, natural_type
from tensorflowonspark.columns.layout import flat_columns
from tensorflowonspark.columns.results import to_batch
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
    "Array",
    "Kind",
    "Ragged",
    "arrow_type",
    "check_schema",
    "concatenate",
    "flat_columns",
    "kind_of",
    "lists_as_vectors",
    "map_in_arrow",
    "merge",
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
