"""Inference on the nodes of a running cluster, by Spark tasks that send rows and receive results."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.columns import arrow_type, check_schema, map_in_arrow, parse_schema
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.messages import NodeEndpoint
from tensorflowonspark.task.inference import infer_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tensorflowonspark.driver.monitor import Monitor


def wait_until_served(monitor: "Monitor", seconds: float) -> list[Node]:
    """Wait until all programs have called ``ctx.serve``; return their nodes.

    A program that can't call it any more, or has not in time, raises `FeedError`, which names the node and the state of
    its program.
    """

    def decided() -> bool:
        missing = [node for node in monitor.roster.fed() if not node.program.answering]
        return not missing or any(_why_never(node, monitor.feed_number) for node in missing)

    monitor.wait(decided, seconds)
    with monitor.lock:
        missing = [node for node in monitor.roster.fed() if not node.program.answering]
        if not missing:
            return monitor.roster.fed()
        never = {node.number: _why_never(node, monitor.feed_number) for node in missing}
        node = next((each for each in missing if never[each.number]), missing[0])
        raise FeedError(
            f"the program of {node.role} on {node.host} has not called ctx.serve(function), which answers inference: "
            + (never[node.number] or f"after {seconds:g} s (timeout) it {_activity(node)}")
        )


def _why_never(node: Node, feed: int | None) -> str:
    """Return why a program will not call ``ctx.serve``, and the remedy; empty if it still may."""
    if node.program.returned:
        return "it has returned. Call ctx.serve before the program returns"
    if node.program.serving:
        return "it serves a ParameterServerStrategy (ctx.join_server). Infer with a cluster of workers"
    if node.feed.waits and feed is None:
        return "it waits for rows, and none are fed. Call ctx.serve before the program asks for them, or cluster.train"
    return ""


def _activity(node: Node) -> str:
    """Return a description of the program's activity, as far as the driver knows it."""
    idle, now = node.process.idle, node.program.progress
    if idle is not None and idle.where is not None:
        return f"waits at:\n{idle.where.stack.rstrip()}"
    if now is not None:
        return f"trains (epoch {now.epoch + 1}, step {now.step}). Call ctx.serve before that, or raise timeout"
    return "still runs. Call ctx.serve earlier in the program, or raise timeout"


def infer(
    data: "DataFrame",
    schema: "str | StructType",
    endpoints: tuple[NodeEndpoint, ...],
    credentials: transport.Credentials,
    keep: Sequence[str] | None,
) -> "DataFrame":
    """Return the DataFrame of the results, which Spark computes when it needs it.

    `keep` names the columns that stand before the results; None for all. Rows that can't be sent raise `FeedError`; a
    schema that is none, or names a column twice, `SpecError`.
    """
    from pyspark.sql.types import StructType

    check_schema(data.schema)
    results = parse_schema(schema, data)
    kept = list(data.columns) if keep is None else list(keep)
    unknown = [name for name in kept if name not in data.columns]
    if unknown:
        raise SpecError(f"keep={kept}: there is no column {unknown[0]!r}; the DataFrame has {data.columns}")
    double = [name for name in results.names if name in kept]
    if double:
        raise SpecError(
            f"the results have a column {double[0]!r}, which the DataFrame has too: choose another name, or leave it "
            "out with keep=[...]"
        )
    whole = StructType([*(data.schema[name] for name in kept), *results.fields])
    arrow = _arrow_schema(results).serialize().to_pybytes()
    return map_in_arrow(data, partial(infer_partition, endpoints, credentials, kept, arrow), whole)


def _arrow_schema(schema: "StructType") -> pa.Schema:
    try:
        return pa.schema([(field.name, arrow_type(field.dataType)) for field in schema.fields])
    except (TypeError, AssertionError):
        raise SpecError(
            f"schema={schema.simpleString()}: results may be numbers, booleans, strings, binary, dates, timestamps, "
            "and arrays of these"
        ) from None
