"""The Spark job that feeds a DataFrame, and its result.

Spark may run a task twice, or a second one beside a slow one. A node keeps each attempt apart, and the job's result
has exactly one row for each partition: the attempt that counts. What else was sent is dropped.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.columns import check_schema, map_in_arrow, merge, require_frame
from tensorflowonspark.driver.feed.manifest import plan_moves
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.driver.spark.jobs import SparkJob, first_cause, not_computed
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import CacheConfig, Move, PartSummary, SplitManifest
from tensorflowonspark.task.feeder import FeedSpec, NodeEndpoint, choose, send
from tensorflowonspark.transport import Credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tensorflowonspark.driver.spark.backend import Job

__all__ = [
    "check_frame",
    "contents",
    "fed_parts",
    "feed_job",
    "node_endpoints",
]

_RESULT_SCHEMA = "parts binary"


def check_frame(frame: "DataFrame", validation: "DataFrame | str | None" = None) -> None:
    """Refuse what can't be fed, before anything is started.

    Raises
    ------
    FeedError
        If a DataFrame has no column, or one of a type that no tensor can hold; or if what is to validate on is not a
        DataFrame with the same columns, or a boolean column.
    SpecError
        If one is no DataFrame.
    """
    require_frame(frame, "data")
    check_schema(frame.schema)
    if validation is None:
        return
    if not isinstance(validation, str):
        require_frame(validation, "validation")
        check_schema(validation.schema)
        if validation.columns != frame.columns:
            raise FeedError(
                f"the validation data has the columns {validation.columns}, and the training data {frame.columns}: "
                "they must be the same"
            )
        return
    if validation not in frame.columns:
        raise FeedError(f"validation={validation!r}: there is no such column; the DataFrame has {frame.columns}")
    kind = frame.schema[validation].dataType.simpleString()
    if kind != "boolean":
        raise FeedError(f"validation={validation!r}: the column has type {kind}, and must be boolean")


def node_endpoints(nodes: Sequence[Node], driver: tuple[str, int] = ("", 0)) -> tuple[NodeEndpoint, ...]:
    """Return where nodes take rows, and where the driver is asked why one is gone."""
    return tuple(NodeEndpoint(node.number, str(node.role), node.host, node.ready, driver) for node in nodes)


def feed_job(
    spark: "SparkSession",
    data: "DataFrame | BatchRDD",
    targets: tuple[NodeEndpoint, ...],
    credentials: Credentials,
    order: FeedSpec,
    on_end: Callable[[], None],
) -> SparkJob:
    """Start the job that feeds a DataFrame or an RDD to the targets."""
    function = partial(_feed_partition, targets, credentials, order)
    sent: Any = (
        data.map_in_arrow(function) if isinstance(data, BatchRDD) else map_in_arrow(data, function, _RESULT_SCHEMA)
    )
    description = f"feed {order.feed} ({order.split.value}) of {len(targets)} nodes"
    return SparkJob(spark, description, sent.collect, on_end)


def _feed_partition(
    targets: tuple[NodeEndpoint, ...], credentials: Credentials, order: FeedSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run in a Spark task: send its partition to a node."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    partition = task.partitionId()
    target = choose(targets, partition)
    parts = send(target, credentials, order, order.first_partition + partition, task.taskAttemptId(), batches)
    yield pa.RecordBatch.from_pydict({"parts": pa.array([pickle.dumps(parts)], pa.binary())})


def fed_parts(job: "Job") -> list[PartSummary]:
    """Return the parts that count, from the job's result.

    Raises
    ------
    FeedError
        If the job failed.
    """
    if job.error is not None:
        raise not_computed(first_cause(job.error)) from job.error
    return [part for row in job.result for part in pickle.loads(bytes(row.parts))]


def contents(
    parts: Sequence[PartSummary],
    targets: Sequence[NodeEndpoint],
    storage: CacheConfig = CacheConfig(),  # noqa: B008 - frozen
    rebalance: bool = True,
    readers: Sequence[int] = (),
) -> dict[int, SplitManifest]:
    """Return, for each node, what a split holds as a whole, and which parts and moves concern that node.

    Parameters
    ----------
    parts : sequence of PartSummary
        One for each partition that has rows.
    targets : sequence of FeedTarget
        The nodes that are fed.
    storage : Storage
        How rows that are moved are kept.
    rebalance : bool
        Whether nodes with many rows give some to those with few.
    readers : sequence of int
        Nodes that are not fed, and want to know nevertheless.
    """
    ordered = sorted(parts, key=lambda part: part.partition)
    rows = {target.number: sum(part.rows for part in parts if part.number == target.number) for target in targets}
    columns = merge(part.columns for part in ordered)
    schema = next((part.schema for part in ordered if part.schema), b"")
    moves = _moves(rows, targets, storage) if rebalance else []
    for move in moves:
        rows[move.giver] -= move.rows
        rows[move.taker] += move.rows
    return {
        number: SplitManifest(
            rows,
            tuple((part.partition, part.attempt) for part in ordered if part.number == number),
            columns,
            schema,
            tuple(move for move in moves if number in (move.giver, move.taker)),
        )
        for number in (*rows, *readers)
    }


def _moves(rows: dict[int, int], targets: Sequence[NodeEndpoint], storage: CacheConfig) -> list[Move]:
    homes = {target.number: target for target in targets}
    return [
        Move(giver, taker, count, homes[taker].host, ready.feed_socket, ready.feed_port, storage)
        for giver, taker, count in plan_moves(rows)
        if (ready := homes[taker].ready)
    ]
