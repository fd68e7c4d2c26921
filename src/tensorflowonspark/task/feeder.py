"""The feeding task: sends its partition to one node, in the Arrow batches that Spark made."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark import transport
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode, PartHeader, PartSummary, Split
from tensorflowonspark.messages import NodeLost, NodeReady
from tensorflowonspark.supervisor.host import local_directory
from tensorflowonspark.transport.shared_file import FILE_BYTES, SharedFileWriter, can_share_files, open_shared

__all__ = ["FeedSpec", "NodeEndpoint", "choose", "loss", "reach", "send"]


@dataclass(frozen=True)
class FeedSpec:
    """What a task is to do with the rows that it feeds."""

    feed: int
    split: Split = Split.TRAIN
    storage: CacheConfig = field(default_factory=CacheConfig)
    validation: str = ""  # a boolean column: rows to validate on, if there is one
    first_partition: int = 0  # what Spark's partition 0 is numbered in the feed


@dataclass(frozen=True)
class NodeEndpoint:
    """A node that takes rows."""

    number: int
    name: str
    host: str
    ready: NodeReady
    driver: tuple[str, int] = ("", 0)  # which knows why the node is gone, if it is


def choose(targets: tuple[NodeEndpoint, ...], partition: int) -> NodeEndpoint:
    """Return the node that a partition goes to: one on this host if there is any, each in turn."""
    near = [target for target in targets if Path(target.ready.feed_socket).exists()]
    candidates = near or list(targets)
    return candidates[partition % len(candidates)]


def reach(target: NodeEndpoint, credentials: transport.Credentials) -> closing[transport.Connection]:
    """Return a connection to a node, for a ``with`` block."""
    return closing(transport.connect_local(target.ready.feed_socket, target.host, target.ready.feed_port, credentials))


def loss(target: NodeEndpoint, credentials: transport.Credentials, words: str, error: Exception) -> FeedError:
    """Return the error of a task that has lost its node: the driver knows why, and the connection's end does not.

    Parameters
    ----------
    target : FeedTarget
        The node.
    credentials : Credentials
        The cluster's.
    words : str
        What the task could not do.
    error : Exception
        The end of the connection, in case the driver does not know more.
    """
    cause = _cause(target, credentials) if target.driver[1] else ""
    return FeedError(f"{words}: {cause or error}")


def _cause(target: NodeEndpoint, credentials: transport.Credentials) -> str:
    """Ask the driver why a node is gone; return nothing if the node is there, or the driver is gone as well."""
    with suppress(transport.ConnectionLost), closing(transport.connect(target.driver, credentials)) as driver:
        channel = driver.channel()
        channel.send(NodeLost(target.number))
        return str(channel.receive().error)
    return ""


def send(
    target: NodeEndpoint,
    credentials: transport.Credentials,
    order: FeedSpec,
    partition: int,
    attempt: int,
    batches: Iterator[pa.RecordBatch],
) -> tuple[PartSummary, ...]:
    """Send a partition to a node; return what the node says it has stored, for each split that has rows.

    Raises
    ------
    FeedError
        If the node can't be reached, or is gone before it has taken everything.
    """
    sent: dict[Split, int] = {}
    senders: dict[Split, _Sender] = {}
    near = Path(target.ready.feed_socket).exists() and can_share_files()
    with reach(target, credentials) as node:
        try:
            for batch in batches:
                for split, rows in _divided(batch, order, partition):
                    if split not in senders:
                        header = PartHeader(order.feed, split, partition, attempt, order.storage)
                        senders[split] = _Sender(node.put(header, rows.schema), order.storage, near)
                    senders[split].write(rows)
                    sent[split] = sent.get(split, 0) + rows.num_rows
            parts: tuple[PartSummary, ...] = tuple(sender.finish() for sender in senders.values())
        except transport.ConnectionLost as error:
            words = f"partition {partition}: {target.name} on {target.host} did not take its rows"
            raise loss(target, credentials, f"{words} ({sum(sent.values())} were sent)", error) from error
        finally:
            for sender in senders.values():
                sender.close()
    for part in parts:
        if part.rows != sent[part.split]:
            raise FeedError(
                f"partition {partition}: {sent[part.split]} rows were sent to {target.name}, and it counts {part.rows}"
            )
    return parts


class _Sender:
    """Sends the rows of one split: in files to a node on this host, through the stream to all others."""

    def __init__(self, stream: transport.PutStream, storage: CacheConfig, near: bool) -> None:
        self._stream = stream
        self._near = near
        self._directory = local_directory() if storage.keep is CacheMode.DISK else None
        self._piece: SharedFileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._near:
            self._stream.write(batch)
            return
        if self._piece is not None and self._piece.bytes + batch.nbytes > FILE_BYTES:
            self._hand_over()
        if self._piece is None:
            self._piece = SharedFileWriter(batch.schema, self._directory)
        self._piece.write(batch)

    def _hand_over(self) -> None:
        if self._piece is None:
            return
        piece = self._piece.finish()
        if not self._stream.send_file(piece):
            # The node sees other processes than this task does, as in another container: by stream, then.
            self._near = False
            for batch in open_shared(piece):
                self._stream.write(batch)
        self.close()

    def finish(self) -> PartSummary:
        self._hand_over()
        part: PartSummary = self._stream.finish()
        return part

    def close(self) -> None:
        if self._piece is not None:
            self._piece.close()
            self._piece = None


def _divided(batch: pa.RecordBatch, order: FeedSpec, partition: int) -> Iterator[tuple[Split, pa.RecordBatch]]:
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
