"""Functions of arrays on the columns of a DataFrame: the verbs of databricks/tensorframes, on Arrow.

`maps` and `reductions` hold the verbs. Each sends a function of *blocks*, arrays of some rows, to the executors:
`block_plans` derives its inputs and outputs from a user's function, `graphs` builds it from a TensorFlow function, and
`python_functions` from a Python function. `analysis` keeps the shapes of columns.
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
