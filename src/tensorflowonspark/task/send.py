"""Feeding: this task's partition goes to one node, as the Arrow batches that Spark made."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.parts import PartHeader, PartSummary, Split
from tensorflowonspark.task.plan import FeedOrder, FeedTarget

__all__ = ["choose", "send"]


def choose(targets: tuple[FeedTarget, ...], partition: int) -> FeedTarget:
    """Return the node that a partition goes to: one on this host if there is any, each in turn."""
    near = [target for target in targets if Path(target.ready.feed_socket).exists()]
    candidates = near or list(targets)
    return candidates[partition % len(candidates)]


def send(
    target: FeedTarget, token: str, order: FeedOrder, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]
) -> tuple[PartSummary, ...]:
    """Send a partition to a node; return what the node says it has stored, for each split that has rows.

    Raises
    ------
    FeedError
        If the node can't be reached, or is gone before it has taken everything.
    """
    sent: dict[Split, int] = {}
    streams: dict[Split, transport.PutStream] = {}
    with closing(transport.dial_near(target.ready.feed_socket, target.host, target.ready.feed_port, token)) as node:
        try:
            for batch in batches:
                for split, rows in _divided(batch, order, partition):
                    if split not in streams:
                        header = PartHeader(order.feed, split, partition, attempt, order.storage)
                        streams[split] = node.put(header, rows.schema)
                    streams[split].write(rows)
                    sent[split] = sent.get(split, 0) + rows.num_rows
            parts: tuple[PartSummary, ...] = tuple(stream.finish() for stream in streams.values())
        except transport.ConnectionLost as error:
            raise FeedError(
                f"partition {partition}: {target.name} on {target.host} did not take its rows "
                f"({sum(sent.values())} were sent): {error}"
            ) from error
    for part in parts:
        if part.rows != sent[part.split]:
            raise FeedError(
                f"partition {partition}: {sent[part.split]} rows were sent to {target.name}, and it counts {part.rows}"
            )
    return parts


def _divided(batch: pa.RecordBatch, order: FeedOrder, partition: int) -> Iterator[tuple[Split, pa.RecordBatch]]:
    """Yield a batch's rows by what they are for."""
    if not order.validation:
        if batch.num_rows:
            yield order.split, batch
        return
    chosen = batch.column(order.validation)
    if chosen.null_count:
        raise FeedError(
            f"partition {partition}: the column {order.validation!r}, which says what to validate on, is null"
        )
    rest = batch.select([name for name in batch.schema.names if name != order.validation])
    for split, mask in ((Split.TRAIN, pc.invert(chosen)), (Split.VALIDATION, chosen)):
        rows = rest.filter(mask)
        if rows.num_rows:
            yield split, rows
