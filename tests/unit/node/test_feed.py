"""A feed as programs see it, without TensorFlow."""

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.driver.sharing.manifest import build_manifests
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import PartHeader, PartId, Split
from tensorflowonspark.messages import NodeEndpoint, NodeReady
from tensorflowonspark.node.feed import one_pass
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.shard import Reader
from tensorflowonspark.node.feed.share import Share

TARGET = NodeEndpoint(0, "worker:0", "here", NodeReady("socket", 1))


def feed_of(directory, *batches, report=lambda progress: None):
    """Return a feed of one worker, with a partition for each batch."""
    cache = Cache(str(directory), 0, lambda message: None)
    parts = [
        cache.store(PartHeader(0, Split.TRAIN, PartId(number), 1), batch.schema, iter([batch]))
        for number, batch in enumerate(batches)
    ]
    described = build_manifests(parts, [TARGET])[0]
    return Feed(Share(described, cache.shard(0, Split.TRAIN, described.parts), [0], 0, report))


def numbered(count):
    return pa.record_batch({"id": pa.array(range(count), pa.int64()), "label": pa.array([0.5] * count)})


def ids(epoch):
    return [int(value) for x, _, _ in epoch() for value in x]


def test_orders_are_new_in_each_epoch_and_the_same_in_each_run(tmp_path):
    feed = feed_of(tmp_path, numbered(100))

    def orders(**options):
        epoch = feed.batches(10, features="id", label="label", **options)
        return [ids(epoch) for _ in range(2)]

    first, second = orders(seed=3)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    assert orders(seed=3) == [first, second]
    assert orders(seed=4) != [first, second]
    assert orders(shuffle=False) == [list(range(100))] * 2


def test_a_pass_that_is_given_up_does_not_count_as_an_epoch(tmp_path):
    seen, ended = [], []
    feed = feed_of(tmp_path, numbered(20), report=seen.append)
    epoch = feed.batches(10, on_epoch_end=ended.append)
    next(epoch())
    list(epoch())
    list(epoch())
    assert [(each.epoch, each.step, each.rows) for each in seen] == [
        (0, 1, 10), (0, 1, 10), (0, 2, 20), (1, 1, 10), (1, 2, 20),
    ]  # fmt: skip
    assert ended == [0, 1]


def test_columns_that_do_not_fit_are_named_with_a_row(tmp_path):
    batch = pa.record_batch({"good": [1, 2], "ragged": [[1], [1, 2]], "holes": [1, None]})
    feed = feed_of(tmp_path, batch)
    assert (feed.rows, feed.total_rows, feed.columns) == (2, 2, ["good", "ragged", "holes"])
    assert feed.steps(1) == 2
    for name, words in [
        ("ragged", r"different lengths.*row 1 of partition 0: \[1, 2\]"),
        ("holes", "row 1 of partition 0"),
        ("imgae", r"no column 'imgae'.*'good'"),
    ]:
        with pytest.raises(FeedError, match=words):
            feed.batches(2, features="good", label=name)
    with pytest.raises(FeedError, match=r"shapes names column 'goood'"):
        feed.batches(2, features="good", shapes={"goood": (2,)})
    with pytest.raises(SpecError, match="batch_size=0"):
        feed.batches(0, features="good")


def test_elements_have_the_structure_that_was_asked_for(tmp_path):
    batch = pa.record_batch(
        {
            "place": [{"x": 1.0, "y": 2.0}] * 4,
            "image": pa.array([bytes(range(4))] * 4, pa.binary()),
            "words": [["a"], [], ["b", "c"], ["d"]],
            "w": pa.array([0.0, 2.0, 1.0, 1.0], pa.float32()),
            "label": [0, 1, 2, 3],
        }
    )
    feed = feed_of(tmp_path, batch)
    ((x, y, weight),) = feed.batches(
        4,
        features=["place", "image", "words"],
        label=["label"],
        sample_weight="w",
        shapes={"image": (2, 2, 1), "words": (None,)},
        dtypes={"image": "float32", "label": "float32"},
        shuffle=False,
    )()
    assert sorted(x) == ["image", "place.x", "place.y", "words"]
    assert x["image"].shape == (4, 2, 2, 1)
    assert x["image"].dtype == y["label"].dtype == np.float32
    assert [each.tolist() for each in x["words"]] == [["a"], [], ["b", "c"], ["d"]]
    assert weight.tolist() == [0, 2, 1, 1]
    assert not np.signbit(weight).any()


def test_rows_that_fill_up_weigh_minus_zero(tmp_path):
    cache = Cache(str(tmp_path), 0, lambda message: None)
    batch = numbered(5)
    part = cache.store(PartHeader(0, Split.TRAIN, PartId(0), 1), batch.schema, iter([batch]))
    described = build_manifests(
        [part], [TARGET, NodeEndpoint(1, "worker:1", "here", NodeReady("socket", 1))], taker=None
    )
    for number, real in ((0, 5), (1, 0)):
        shard = cache.shard(0, Split.TRAIN, described[0].parts if number == 0 else ())
        elements = list(Feed(Share(described[number], shard, [0, 1], number, lambda progress: None)).batches(4)())
        weights = np.concatenate([weight for _, _, weight in elements])
        assert len(elements) == 3
        assert (~np.signbit(weights)).sum() == weights.sum() == real


def test_wide_rows_are_gathered_in_small_blocks(tmp_path, monkeypatch):
    taken = []
    take = Reader.take
    monkeypatch.setattr(Reader, "take", lambda self, rows, *to: taken.append(len(rows)) or take(self, rows, *to))
    monkeypatch.setattr(one_pass, "_BLOCK_BYTES", 400)
    list(feed_of(tmp_path, numbered(100)).batches(10)())
    assert taken == [20] * 5 + [10]  # two batches of ten rows of about 16 bytes; and once a batch to pad with


def test_rows_that_are_missing_are_noticed(tmp_path):
    feed = feed_of(tmp_path, numbered(15))
    with pytest.raises(FeedError, match="this node has 0 rows of the feed, and should have 15"):
        Share(feed._share.manifest, Cache(str(tmp_path), 0, print).shard(0, Split.TRAIN, ()), [0], 0, print)


def test_an_empty_feed_is_reported(tmp_path):
    with pytest.raises(FeedError, match="has no rows"):
        feed_of(tmp_path).batches(2)
