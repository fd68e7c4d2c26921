"""The parts in which a task sends its partition to a node that it holds."""

import pyarrow as pa
import pytest

from tensorflowonspark.feed_messages import PartId, PartRef, Split
from tensorflowonspark.messages import NodeEndpoint, NodeReady
from tensorflowonspark.task import feeder
from tensorflowonspark.task.feeder import FeedSpec, PartitionFeeder, _SplitSender

BATCH = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})  # 0.8 MB


class Connection:
    """Takes parts as a node on another host does."""

    def __init__(self):
        self.parts = {}

    def put(self, header, _schema):
        self.parts[header.part] = rows = []
        return Stream(rows)


class Stream:
    def __init__(self, batches):
        self._batches = batches

    def write(self, batch):
        self._batches.append(batch.nbytes)

    def finish(self):
        return len(self._batches) * BATCH.num_rows


@pytest.mark.parametrize("in_parts", [False, True])
def test_parts_that_count_as_they_arrive_are_of_whole_batches_and_double(in_parts):
    node = Connection()
    sender = _SplitSender(node, FeedSpec(0, in_parts=in_parts), PartRef(Split.TRAIN, PartId(1), 1, 1), near=False)
    for _ in range(200):
        sender.write(BATCH)
    sender.finish_part()
    sizes = [sum(part) for part in node.parts.values()]
    assert sum(sizes) == 200 * BATCH.nbytes
    assert [ref.part for ref in sender.stored] == list(node.parts)
    if not in_parts:
        assert list(node.parts) == [PartId(1)]
        return
    rows = [len(batches) * BATCH.num_rows for batches in node.parts.values()]
    assert list(node.parts) == [PartId(1, sum(rows[:number])) for number in range(len(rows))]
    for size, least in zip(sizes[:-1], [1, 2, 4, 8, 16, 32, 32, 32], strict=False):
        assert least << 20 <= size < (least << 20) + BATCH.nbytes


def test_a_stream_may_have_any_number_of_dataframes(monkeypatch):
    """The result of a job has the numbers of Spark's partitions, which begin at 0 in each."""

    def feed(endpoint, _credentials, spec, partition, attempt, _batches):
        return (PartRef(Split.TRAIN, PartId(partition, batch=spec.batch), attempt, endpoint.number),)

    monkeypatch.setattr(feeder, "feed_partition", feed)
    fed = PartitionFeeder((NodeEndpoint(0, "worker:0", "here", NodeReady()),), None, FeedSpec(0, batch=1 << 31))
    assert [row["partition"] for batch in fed(7, 1, iter(())) for row in batch.to_pylist()] == [7]
