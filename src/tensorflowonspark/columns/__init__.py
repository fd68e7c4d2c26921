"""Arrow columns and numpy arrays: the only folder that knows both layouts.

`kinds` and `shapes` say what a column's values are in numpy, `arrays` makes them, `rows` cuts them and puts them
together, `summary` tells what is in a column before anything is made of it, `results` goes the other way, from numpy to
Arrow, `schema` knows Spark's types, `layout` Arrow's, and `names` finds a DataFrame's columns by their exact names.
"""

from tensorflowonspark.columns.arrays import lists_as_vectors, spread, to_array, vector_lists, view
from tensorflowonspark.columns.kinds import Kind, kind_of, natural_type
from tensorflowonspark.columns.layout import flat_columns
from tensorflowonspark.columns.names import map_in_arrow, plainly_named, quoted, select
from tensorflowonspark.columns.results import to_batch
from tensorflowonspark.columns.rows import Array, Ragged, concatenate, repeat_rows, zeros
from tensorflowonspark.columns.schema import arrow_type, check_schema, parse_schema, require_frame
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
