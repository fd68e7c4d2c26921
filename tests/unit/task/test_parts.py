"""The parts in which a task sends its partition to a node that it holds."""

import pyarrow as pa
import pytest

from tensorflowonspark.feed_messages import PartRef, Split
from tensorflowonspark.task.feeder import FeedSpec, _SplitSender

BATCH = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})  # 0.8 MB


class Connection:
    """Takes parts as a node on another host does."""

    def __init__(self):
        self.parts = {}

    def put(self, header, _schema):
        self.parts[header.partition] = rows = []
        return Stream(rows)


class Stream:
    def __init__(self, batches):
        self._batches = batches

    def write(self, batch):
        self._batches.append(batch.nbytes)

    def finish(self):
        return len(self._batches) * BATCH.num_rows


@pytest.mark.parametrize("stride", [0, 3])
def test_parts_that_count_as_they_arrive_are_of_whole_batches_and_double(stride):
    node = Connection()
    sender = _SplitSender(node, FeedSpec(0, part_stride=stride), PartRef(Split.TRAIN, 1, 1, 1), near=False)
    for _ in range(200):
        sender.write(BATCH)
    sender.finish_part()
    sizes = [sum(part) for part in node.parts.values()]
    assert sum(sizes) == 200 * BATCH.nbytes
    assert [ref.partition for ref in sender.stored] == list(node.parts)
    if not stride:
        assert list(node.parts) == [1]
        return
    assert list(node.parts) == [1 + stride * number for number in range(len(sizes))]
    for size, least in zip(sizes[:-1], [1, 2, 4, 8, 16, 32, 32, 32], strict=False):
        assert least << 20 <= size < (least << 20) + BATCH.nbytes
