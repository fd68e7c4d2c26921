"""The feeding task: sends its partition to one node, in Spark's own Arrow batches."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark import transport
from tensorflowonspark.columns import checksum, split_places
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode, PartHeader, PartId, PartitionShare, PartRef, Split
from tensorflowonspark.messages import NodeEndpoint, NodeLost, Reply, RootCause, ToDriver
from tensorflowonspark.supervisor.host import local_directory
from tensorflowonspark.transport.shared_file import FILE_BYTES, SharedFileWriter, can_share_files, open_shared

# At least, of a partition in several parts of whole batches; each next one is twice as large, up to a file.
_FIRST_PART_BYTES = 1 << 20
_UNREACHED = (
    "; open the ports of nodes between the hosts (ports), or, where hosts have several networks, name the one that all "
    "reach: network_interface, or SPARK_LOCAL_IP on that host. `tfos check --master` tries all hosts"
)


@dataclass(frozen=True)
class FeedSpec:
    """The part of a feed that the tasks of one job send."""

    feed: int
    split: Split = Split.TRAIN
    storage: CacheConfig = field(default_factory=CacheConfig)
    validation: str = ""  # the boolean column that marks rows to validate on; empty: there is none
    batch: int = 0  # of several DataFrames of the feed, the one that the job has
    # A partition is sent in several parts, each of which counts at once. Only for tasks that Spark does not repeat
    # alone.
    in_parts: bool = False
    round_robin: bool = False  # the last two columns are the rows' places and hashes (`driver/spark/repartition.py`)


@dataclass(frozen=True)
class PartitionFeeder:
    """The function of a feeding job: sends a partition to one of the nodes, and returns the parts that count.

    Spark accepts the result of one attempt at each partition.
    """

    schema: ClassVar[str] = "split string, partition int, attempt long, node int, checksum long"

    endpoints: tuple[NodeEndpoint, ...]
    credentials: transport.Credentials = field(repr=False)
    spec: FeedSpec

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Feed a partition; yield a row for each of its splits that has rows."""
        # By number and not by place: so a partition is on the same worker, and the order of an epoch the same, wherever
        # Spark runs its task.
        endpoint = self.endpoints[partition % len(self.endpoints)]
        for ref in feed_partition(endpoint, self.credentials, self.spec, partition, attempt, batches):
            yield pa.RecordBatch.from_pydict(
                {
                    "split": [ref.split.value],
                    "partition": pa.array([ref.part.partition], pa.int32()),
                    "attempt": pa.array([ref.attempt], pa.int64()),
                    "node": pa.array([ref.number], pa.int32()),
                    "checksum": pa.array([ref.checksum], pa.int64()),
                }
            )


def near(endpoints: Sequence[NodeEndpoint]) -> list[NodeEndpoint]:
    """Return the nodes with which this process shares files."""

    def is_near(endpoint: NodeEndpoint) -> bool:
        with transport.near_socket(endpoint.ready) as socket:
            return bool(socket)

    return [each for each in endpoints if is_near(each)]


def choose(endpoints: Sequence[NodeEndpoint], partition: int) -> NodeEndpoint:
    """Return the node that answers a partition: nodes that are near in turn, or all in turn if none is."""
    candidates = near(endpoints) or endpoints
    return candidates[partition % len(candidates)]


def connect_to(
    endpoint: NodeEndpoint, credentials: transport.Credentials
) -> AbstractContextManager[transport.Connection]:
    """Return a connection to a node, for a ``with`` block."""
    return transport.connect_local(endpoint.ready, endpoint.host, credentials)


def node_lost_error(
    endpoint: NodeEndpoint, credentials: transport.Credentials, message: str, error: Exception
) -> FeedError:
    """Return the error of a task that has lost its node, with the cause that the driver knows.

    The message is what the task could not do. The error of the connection is shown if the driver knows no cause.
    """
    return lost_error(message, find_cause(endpoint, credentials), error)


def lost_error(message: str, cause: str | None, error: Exception) -> FeedError:
    """Return the error of a task that has lost its node, with the cause as of `find_cause`."""
    advice = _UNREACHED if not cause and isinstance(error, transport.NoConnection) else ""
    return FeedError(f"{message}: {cause or error}{advice}")


def find_cause(endpoint: NodeEndpoint, credentials: transport.Credentials) -> str | None:
    """Ask the driver why a node is lost; return "" if the cluster goes on, or None if the driver is lost too."""
    reply = ask_driver(endpoint, credentials, NodeLost(endpoint.number))
    return reply.error if isinstance(reply, RootCause) else None


def ask_driver(endpoint: NodeEndpoint, credentials: transport.Credentials, request: ToDriver) -> Reply | None:
    """Send the driver a request; return its reply, or None if the driver is lost too."""
    if not endpoint.driver[1]:
        return None
    with suppress(transport.ConnectionLost), closing(transport.connect(endpoint.driver, credentials)) as driver:
        channel = driver.channel()
        channel.send(request)
        reply: Reply = channel.receive()
        return reply
    return None


def feed_partition(
    endpoint: NodeEndpoint,
    credentials: transport.Credentials,
    spec: FeedSpec,
    partition: int,
    attempt: int,
    batches: Iterator[pa.RecordBatch],
) -> tuple[PartRef, ...]:
    """Send a partition to a node; return the parts that the node has stored: one or several for a split with rows.

    A node that can't be reached, or is lost before it has stored all rows, is a `FeedError`.
    """
    with connect_to(endpoint, credentials) as node:
        near = node.is_local and can_share_files()
        first = PartId(partition, batch=spec.batch)
        splits = {
            split: _SplitSender(node, spec, PartRef(split, first, attempt, endpoint.number), near) for split in Split
        }
        try:
            for batch in batches:
                for split, rows in _divided(batch, spec, partition):
                    splits[split].write(rows)
            for sender in splits.values():
                sender.finish_part()
        except transport.ConnectionLost as error:
            message = f"partition {partition}: {endpoint.name} on {endpoint.host} did not take its rows"
            message = f"{message} ({sum(sender.rows for sender in splits.values())} were sent)"
            raise node_lost_error(endpoint, credentials, message, error) from error
        finally:
            for sender in splits.values():
                sender.close()
    return tuple(part for sender in splits.values() for part in sender.stored)


class _SplitSender:
    """Sends the rows of one split of a partition: as one part, or as several that grow.

    The first one is small, so that training begins soon; the later ones are larger, since rows are shuffled within
    a part.

    `first` is the first part, or the only one; `near` is whether the node may open this process's files.
    """

    def __init__(self, node: transport.Connection, spec: FeedSpec, first: PartRef, near: bool) -> None:
        self.rows = 0
        self.stored: list[PartRef] = []  # the parts that the node has stored
        self._node = node
        self._spec = spec
        self._next = first
        self._near = near
        self._part: _PartSender | None = None
        self._part_bytes = _FIRST_PART_BYTES
        self._checksum = 0  # of the part
        self._shares: dict[int, PartitionShare] = {}  # of the part, by the DataFrame's partitions

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch."""
        spec = self._spec
        if spec.round_robin:
            *names, place, hashed = batch.schema.names
            self._count(batch.column(place).to_numpy(), batch.column(hashed).to_numpy())
            batch = batch.select(names)
        if self._part is None:
            ref = self._next
            header = PartHeader(spec.feed, ref.split, ref.part, ref.attempt, spec.storage)
            self._part = _PartSender(self._node.put(header, batch.schema), spec.storage, self._near)
        self._part.write(batch)
        self._checksum = checksum(batch, self._checksum)
        self.rows += batch.num_rows
        # The rows to validate on are needed as a whole.
        if spec.in_parts and self._next.split is Split.TRAIN and self._part.bytes >= self._part_bytes:
            self.finish_part()
            self._part_bytes = min(2 * self._part_bytes, FILE_BYTES)

    def _count(self, places: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64]) -> None:
        """Count the rows of each partition of the DataFrame; sum up the hashes of their values and places."""
        places = places[order := np.argsort(places)]
        hashes = hashes[order].view(np.uint64) * (2 * places.view(np.uint64) + np.uint64(1))
        owners, numbers = split_places(places)
        partitions, starts, rows = np.unique(owners, return_index=True, return_counts=True)
        found = zip(partitions, numbers[starts], rows, np.add.reduceat(hashes, starts), strict=True)
        for partition, first, count, total in (map(int, each) for each in found):
            had = self._shares.get(partition, PartitionShare(partition, first, 0, 0))
            added = (had.checksum + total) % (1 << 64)
            self._shares[partition] = PartitionShare(partition, min(first, had.first), had.rows + count, added)

    def finish_part(self) -> None:
        """Complete the part that has begun.

        If the node counts other rows than were sent, it raises `FeedError`.
        """
        part, ref = self._part, self._next
        if part is None:
            return
        rows = part.finish()
        if rows != part.rows:
            raise FeedError(
                f"partition {ref.part.partition}: {part.rows} rows were sent to node {ref.number}, and it counts {rows}"
            )
        self.stored.append(replace(ref, checksum=self._checksum, shares=tuple(self._shares.values())))
        self._checksum, self._shares = 0, {}
        self._near = part.near
        self._next = replace(ref, part=ref.part._replace(first_row=self.rows))
        self._part = None

    def close(self) -> None:
        """Drop what was not sent."""
        if self._part is not None:
            self._part.close()


class _PartSender:
    """Sends the rows of one part: in shared files to a node on this host, in the stream to one on another."""

    def __init__(self, stream: transport.PutStream, storage: CacheConfig, near: bool) -> None:
        self.rows = self.bytes = 0
        self.near = near  # as far as is known
        self._stream = stream
        self._directory = local_directory() if storage.keep is CacheMode.DISK else None
        self._file: SharedFileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if not self.near:
            self._stream.write(batch)
            return
        if self._file is not None and self._file.bytes + batch.nbytes > FILE_BYTES:
            self._hand_over()
        if self._file is None:
            self._file = SharedFileWriter(batch.schema, self._directory)
        self._file.write(batch)

    def _hand_over(self) -> None:
        if self._file is None:
            return
        ref = self._file.finish()
        if not self._stream.send_file(ref):
            # The node can't open this process's files, as in another container: send the rows in the stream.
            self.near = False
            for batch in open_shared(ref):
                self._stream.write(batch)
        self.close()

    def finish(self) -> int:
        """Send the rest; return how many rows the node has stored."""
        self._hand_over()
        return int(self._stream.finish())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _divided(batch: pa.RecordBatch, spec: FeedSpec, partition: int) -> Iterator[tuple[Split, pa.RecordBatch]]:
    """Yield the rows of a batch, by split."""
    if not spec.validation:
        if batch.num_rows:
            yield spec.split, batch
        return
    chosen = batch.column(spec.validation)
    if chosen.null_count:
        raise FeedError(
            f"partition {partition}: the column {spec.validation!r}, which marks the rows to validate on, is null"
        )
    rest = batch.select([name for name in batch.schema.names if name != spec.validation])
    for split, mask in ((Split.TRAIN, pc.invert(chosen)), (Split.VALIDATION, chosen)):
        rows = rest.filter(mask)
        if rows.num_rows:
            yield split, rows
