"""Functions of arrays on the columns of a DataFrame: the verbs of databricks/tensorframes, on Arrow.

`maps` and `reductions` are the verbs. All of them come down to one thing, a function of *blocks* (arrays of some rows)
that is sent to the executors: `functions` reads what a user's function takes and gives, `graphs` makes a block function
of it where it is TensorFlow's, `plain` where it is Python's. `fields` knows what a column is in numpy, and `analysis`
finds out how long its arrays are. `reducing` runs in Spark's Python workers.
"""

from tensorflowonspark.frames.analysis import analyze, append_shape, print_schema
from tensorflowonspark.frames.maps import map_blocks, map_rows
from tensorflowonspark.frames.reductions import aggregate, reduce_blocks, reduce_rows

__all__ = [
    "aggregate",
    "analyze",
    "append_shape",
    "map_blocks",
    "map_rows",
    "print_schema",
    "reduce_blocks",
    "reduce_rows",
]
