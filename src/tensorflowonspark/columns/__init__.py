"""Arrow columns and numpy arrays: the only folder that knows both layouts.

`kinds` says what a column's values are in numpy, `arrays` makes them, `summary` tells what is in a column before
anything is made of it, `results` goes the other way, from numpy to Arrow, and `schema` knows Spark's types.
"""

from tensorflowonspark.columns.arrays import (
    Array,
    Ragged,
    concatenate,
    flat_columns,
    repeat_rows,
    to_array,
    view,
    zeros,
)
from tensorflowonspark.columns.kinds import Kind, kind_of
from tensorflowonspark.columns.results import to_batch
from tensorflowonspark.columns.schema import check_schema
from tensorflowonspark.columns.summary import merge, summarize

__all__ = [
    "Array",
    "Kind",
    "Ragged",
    "check_schema",
    "concatenate",
    "flat_columns",
    "kind_of",
    "merge",
    "repeat_rows",
    "summarize",
    "to_array",
    "to_batch",
    "view",
    "zeros",
]
