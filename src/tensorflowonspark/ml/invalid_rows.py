"""Rows with a null or a wrong shape, which an estimator leaves out of training if it is asked to."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.columns import map_in_arrow, select
from tensorflowonspark.driver.spark.naming import described
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.predict import this_partition, valid_rows
from tensorflowonspark.ml.worker_errors import short_errors
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)


def without_invalid(frame: "DataFrame", taken: TakenColumns, what: str = "rows") -> "DataFrame":
    """Return the rows of a DataFrame without those that can't be trained on, and log how many these are.

    Spark computes the rows once to count them. If all are valid, the DataFrame is returned as it is. `what` names the
    rows in the log and in the error. Raises SpecError if no row is valid, with the reason for the first one.
    """
    with described(frame.sparkSession, "count the rows that can't be trained on"):
        chosen = select(frame, list(taken.columns))
        found = map_in_arrow(chosen, partial(count_invalid, taken), "total long, invalid long, reason string").collect()
    total, invalid = (sum(each[column] for each in found) for column in ("total", "invalid"))
    if not invalid:
        return frame
    reason = next(each.reason for each in found if each.reason)
    if invalid == total:
        raise SpecError(f"handleInvalid='skip' leaves none of the {total} {what}; of the first one, {reason}")
    CONSOLE.log(
        _log,
        logging.WARNING,
        "handleInvalid='skip': %d of %d %s are left out of training; of the first one, %s",
        *(invalid, total, what, reason),
    )
    return map_in_arrow(frame, partial(keep_valid, taken), frame.schema)


@short_errors
def count_invalid(taken: TakenColumns, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of all rows and of the invalid ones in a partition, and why the first one is invalid."""
    partition, total, invalid, first = this_partition(), 0, 0, ""
    for batch in batches:
        valid, reason = valid_rows(taken, batch, partition, total)
        total, invalid, first = total + batch.num_rows, invalid + batch.num_rows - len(valid), first or reason
    yield pa.RecordBatch.from_pydict({"total": [total], "invalid": [invalid], "reason": [first]})


@short_errors
def keep_valid(taken: TakenColumns, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the valid rows of batches."""
    for batch in batches:
        valid, _ = valid_rows(taken, batch)
        yield batch.take(pa.array(valid, pa.int64()))
