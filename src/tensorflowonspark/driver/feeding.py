"""Feeding a DataFrame: a Spark job that sends each partition to a node, and the seal that says what counts.

Spark may run a task twice, or a second one beside a slow one. A node keeps each attempt apart, and the job's result
has exactly one row for each partition: the attempt that counts. What else was sent is dropped by the seal.
"""

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.columns import check_types, merge
from tensorflowonspark.driver.job import SparkJob
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import PartSummary, Seal
from tensorflowonspark.task.plan import FeedTarget
from tensorflowonspark.task.send import choose, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tensorflowonspark.driver.backend import Job

__all__ = ["check_frame", "fed_parts", "feed_job", "seals"]

_RESULT_SCHEMA = "part binary"
# What to look for in the message of a failed job, best first: our own error, another Python error at a traceback's
# end, the last of Java's causes.
_FED = re.compile(r"^ *tensorflowonspark\.errors\.FeedError: (.+)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^ *((?:\w+\.)*(?!Py4J|Python)\w+(?:Error|Exception): .+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)


def check_frame(frame: "DataFrame") -> None:
    """Refuse a DataFrame that can't be fed, before anything is started.

    Raises
    ------
    FeedError
        If it has no column, or one of a type that no tensor can hold.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    if not frame.columns:
        raise FeedError("the DataFrame has no columns: there is nothing to feed")
    fields = []
    for field in frame.schema.fields:
        try:
            fields.append(pa.field(field.name, to_arrow_type(field.dataType)))
        except TypeError:
            raise FeedError(
                f"column {field.name!r} has type {field.dataType.simpleString()}, which Spark can't hand over as "
                "Arrow: drop the column, or convert it (pyspark.ml.functions.vector_to_array for ML vectors)"
            ) from None
    check_types(pa.schema(fields))


def feed_job(
    spark: "SparkSession",
    frame: "DataFrame",
    targets: tuple[FeedTarget, ...],
    token: str,
    feed: int,
    on_end: Callable[[], None],
) -> SparkJob:
    """Start the job that feeds a DataFrame to the targets."""
    sent = frame.mapInArrow(partial(_feed_partition, targets, token, feed), _RESULT_SCHEMA)
    return SparkJob(spark, f"feed {feed} of {len(targets)} nodes", sent.collect, on_end)


def _feed_partition(
    targets: tuple[FeedTarget, ...], token: str, feed: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run in a Spark task: send its partition to a node."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    partition = task.partitionId()
    target = choose(targets, partition)
    part = send(target, token, feed, partition, task.taskAttemptId(), batches)
    yield pa.RecordBatch.from_pydict({"part": pa.array([pickle.dumps(part)], pa.binary())})


def fed_parts(job: "Job") -> list[PartSummary]:
    """Return the parts that count, from the job's result.

    Raises
    ------
    FeedError
        If the job failed.
    """
    if job.error is not None:
        raise FeedError(f"Spark could not compute and feed the DataFrame: {_first_cause(job.error)}") from job.error
    return [pickle.loads(bytes(row.part)) for row in job.result]


def _first_cause(error: BaseException) -> str:
    r"""Return the line of Spark's long message that says what happened.

    Examples
    --------
    >>> _first_cause(RuntimeError("Job aborted.\nCaused by: java.io.IOException: no disk\n\tat x.y(Z.java)"))
    'java.io.IOException: no disk'
    """
    text = str(error)
    for pattern in (_FED, _PYTHON_ERROR, _JAVA_CAUSE):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    return (text.strip().splitlines() or [type(error).__name__])[0]


def seals(feed: int, parts: Sequence[PartSummary], numbers: Sequence[int]) -> dict[int, Seal]:
    """Return, for each node that is fed, what the feed holds as a whole and which parts on that node count.

    Parameters
    ----------
    feed : int
        The feed's number.
    parts : sequence of PartSummary
        One for each partition.
    numbers : sequence of int
        The nodes that are fed.
    """
    ordered = sorted(parts, key=lambda part: part.partition)
    rows = {number: sum(part.rows for part in parts if part.number == number) for number in numbers}
    columns = merge(part.columns for part in ordered)
    schema = next((part.schema for part in ordered if part.schema), b"")
    return {
        number: Seal(
            feed,
            tuple((part.partition, part.attempt) for part in ordered if part.number == number),
            rows,
            columns,
            schema,
        )
        for number in numbers
    }
