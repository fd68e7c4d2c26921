"""What the chief of a ParameterServerStrategy has of a feed: no rows of its own."""

import pyarrow as pa
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.columns import summarize
from tensorflowonspark.feed_messages import FeedComplete, SplitManifest
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed


@pytest.fixture
def feed():
    batch = pa.record_batch({"id": [1, 2, 3]})
    rows = SplitManifest({1: 2, 2: 1}, columns=summarize(batch, 0), schema=batch.schema.serialize().to_pybytes())
    return CoordinatedFeed(FeedComplete(0, rows, rows), lambda feed, split: 0)


def test_it_is_a_feed_without_rows(feed):
    assert isinstance(feed, tfos.Feed)
    assert (feed.rows, feed.total_rows, feed.columns, feed.steps(2)) == (0, 3, ["id"], 2)
    assert feed.validation.total_rows == 3


@pytest.mark.parametrize(
    "read",
    [
        lambda feed: feed.dataset(2),
        lambda feed: feed.batches(2, shuffle=False),
        lambda feed: feed.validation_dataset(2),
        lambda feed: feed.validation_batches(2),
        lambda feed: feed.partitions(),
    ],
)
def test_what_reads_rows_names_what_the_chief_has_instead(feed, read):
    with pytest.raises(tfos.FeedError, match=r"the chief has no rows of its own, .*: use ctx\.feed\(\)\.per_worker"):
        read(feed)
