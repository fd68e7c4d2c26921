"""Feeding: this task's partition goes to one node, as the Arrow batches that Spark made."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import PartSummary
from tensorflowonspark.task.plan import FeedTarget

__all__ = ["choose", "send"]

_PIECE_BYTES = 64 << 20  # of one message: Arrow sends none above 2 GiB, and the node holds one at a time


def choose(targets: tuple[FeedTarget, ...], partition: int) -> FeedTarget:
    """Return the node that a partition goes to: one on this host if there is any, each in turn."""
    near = [target for target in targets if Path(target.ready.feed_socket).exists()]
    candidates = near or list(targets)
    return candidates[partition % len(candidates)]


def send(
    target: FeedTarget, token: str, feed: int, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]
) -> PartSummary:
    """Send a partition to a node; return what the node says it has stored.

    Raises
    ------
    FeedError
        If the node can't be reached, or is gone before it has taken everything.
    """
    first = next(batches, None)
    if first is None:
        return PartSummary(partition, attempt, target.number, rows=0)
    socket = target.ready.feed_socket
    address = socket if Path(socket).exists() else (target.host, target.ready.feed_port)
    connection = transport.dial(address, token)
    sent = 0
    try:
        stream = connection.put((feed, partition, attempt), first.schema)
        for batch in chain([first], batches):
            for piece in _pieces(batch):
                stream.write(piece)
            sent += batch.num_rows
        part: PartSummary = stream.finish()
    except transport.ConnectionLost as error:
        raise FeedError(
            f"partition {partition}: {target.name} on {target.host} did not take its rows ({sent} were sent): {error}"
        ) from error
    finally:
        connection.close()
    if part.rows != sent:
        raise FeedError(f"partition {partition}: {sent} rows were sent to {target.name}, and it counts {part.rows}")
    return part


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that are small enough for a message.

    Examples
    --------
    >>> [piece.num_rows for piece in _pieces(pa.record_batch({"x": range(5)}))]
    [5]
    """
    rows = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
