"""A model's results as columns of a DataFrame.

Where Spark has scalar functions on Arrow (4.1 and newer), only the columns that the model takes go to Spark's Python
workers, and only the results come back. Older ones send whole rows both ways.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow, plainly_named
from tensorflowonspark.ml.predict import Plan, predict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["with_results"]

_RESULTS = "tensorflowonspark_results"


def with_results(plan: Plan, frame: "DataFrame", keep: Sequence[str] | None = None) -> "DataFrame":
    """Return a DataFrame with the result columns beside its own, or beside those of them that are to be kept."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    types = StructType([StructField(name, type_) for name, type_ in plan.types])
    places = list(range(len(frame.columns))) if keep is None else [frame.columns.index(name) for name in keep]
    if not hasattr(f, "arrow_udf"):
        whole = StructType([*[frame.schema.fields[place] for place in places], *types.fields])
        return map_in_arrow(frame, partial(_beside, plan, places), whole)
    # Not to be called again for each use of a result, which Spark does with functions that it takes for cheap.
    plain, own = plainly_named(frame)
    taken = [own[frame.columns.index(name)] for name in plan.taken.columns]
    answered = plain.withColumn(_RESULTS, _function(plan, types).asNondeterministic()(*taken))
    if plan.invalid == "skip":
        answered = answered.where(f.col(_RESULTS).isNotNull())
    results = [f.col(_RESULTS).getField(name).alias(name) for name in types.names]
    return answered.select(*[own[place] for place in places], *results)


def _function(plan: Plan, types: "StructType") -> Any:
    from pyspark.sql.functions import arrow_udf

    if len(plan.taken.columns) == 1:

        def of_one(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return predict(plan, (pa.RecordBatch.from_arrays([each], [*plan.taken.columns]) for each in arrays))

        return arrow_udf(of_one, types)

    def of_several(groups: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return predict(plan, (pa.RecordBatch.from_arrays(list(group), [*plan.taken.columns]) for group in groups))

    return arrow_udf(of_several, types)


def _beside(plan: Plan, places: list[int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with their results (runs in Spark's Python workers)."""
    waiting: list[pa.RecordBatch] = []

    def features() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            waiting.append(batch)
            yield batch.select(list(plan.taken.columns))

    for results in predict(plan, features()):
        batch = waiting.pop().select(places)
        columns = [*batch.columns, *results.flatten()]
        answered = pa.RecordBatch.from_arrays(columns, [*batch.schema.names, *[name for name, _ in plan.types]])
        yield answered.filter(results.is_valid()) if plan.invalid == "skip" else answered
