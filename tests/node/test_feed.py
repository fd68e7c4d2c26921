"""The rows that a program sees, without TensorFlow: exactly once per epoch, whatever the workers were fed."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import row_dtype
from tensorflowonspark.driver.feeding import seals
from tensorflowonspark.errors import FeedError
from tensorflowonspark.node.cache import Cache
from tensorflowonspark.node.feed import Epochs, Feed
from tensorflowonspark.node.steps import plan_epoch

KINDS = {"x": (row_dtype(pa.float32()), (2,)), "id": (row_dtype(pa.int64()), ())}


def batches(ids, size=7):
    ids = np.array(ids, np.int64)
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield pa.record_batch(
            {"x": pa.array([[i, i] for i in part.tolist()], pa.list_(pa.float32())), "id": pa.array(part)}
        )


def fed(directory, partitions_of_workers):
    """Feed workers their partitions; return each worker's cache and seal."""
    caches = [Cache(str(directory), number) for number in range(len(partitions_of_workers))]
    parts, start, partition = [], 0, 0
    for cache, sizes in zip(caches, partitions_of_workers, strict=True):
        for size in sizes:
            schema = next(batches([0])).schema
            parts.append(cache.store(0, partition, 1, schema, batches(range(start, start + size))))
            start, partition = start + size, partition + 1
    return caches, seals(0, parts, range(len(caches))), start


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=3),
    st.integers(3, 50),
    st.integers(1, 3),
    st.sampled_from([None, 0, 5]),
)
def test_each_row_exactly_once_per_epoch(tmp_path_factory, workers, batch_size, epochs, seed):
    caches, sealed, total = fed(tmp_path_factory.getbasetemp(), workers)
    counts = [sealed[number].rows[number] for number in range(len(workers))]
    passes = []
    for number, cache in enumerate(caches):
        shard = cache.shard(0, sealed[number].parts)
        plan = plan_epoch(counts, batch_size, number)
        passes.append(Epochs(shard, plan, KINDS, lambda progress: None, seed))
    for _ in range(epochs):
        seen, lengths = [], set()
        for each in passes:
            batches_of_worker = list(each())
            lengths.add(len(batches_of_worker))
            for columns, weights in batches_of_worker:
                assert columns["x"].shape == (len(weights), 2)
                assert np.array_equal(columns["x"][:, 0], columns["id"])
                seen.extend(columns["id"][weights > 0].tolist())
        assert sorted(seen) == list(range(total))
        assert len(lengths) == 1


def test_orders_are_new_in_each_epoch_and_the_same_in_each_run(tmp_path):
    caches, sealed, _ = fed(tmp_path, [[100]])

    def orders(seed):
        epochs = Epochs(caches[0].shard(0, sealed[0].parts), plan_epoch([100], 10, 0), KINDS, lambda _: None, seed)
        return [[value for columns, _ in epochs() for value in columns["id"]] for _ in range(2)]

    first, second = orders(3)
    assert first != second
    assert orders(3) == [first, second]
    assert orders(4) != [first, second]
    assert orders(None) == [list(range(100))] * 2


def test_a_pass_that_is_given_up_does_not_count_as_an_epoch(tmp_path):
    caches, sealed, _ = fed(tmp_path, [[20]])
    seen = []
    epochs = Epochs(caches[0].shard(0, sealed[0].parts), plan_epoch([20], 10, 0), KINDS, seen.append, 0)
    next(epochs())
    list(epochs())
    list(epochs())
    assert [(each.epoch, each.step, each.rows) for each in seen] == [
        (0, 1, 10), (0, 1, 10), (0, 2, 20), (1, 1, 10), (1, 2, 20),
    ]  # fmt: skip


def test_attempts_that_do_not_count_are_dropped(tmp_path):
    cache = Cache(str(tmp_path), 0)
    schema = next(batches([0])).schema
    wanted = cache.store(0, 0, 2, schema, batches([1, 2]))
    cache.store(0, 0, 1, schema, batches([1]))
    shard = cache.shard(0, seals(0, [wanted], [0])[0].parts)
    assert shard.take(np.arange(2), ["id"])["id"].to_pylist() == [1, 2]
    assert len(cache._parts) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_breaks_off_leaves_nothing(tmp_path):
    def broken():
        yield from batches([1, 2])
        raise ConnectionError("gone")

    cache = Cache(str(tmp_path), 0)
    with pytest.raises(ConnectionError):
        cache.store(0, 0, 1, next(batches([0])).schema, broken())
    assert cache._parts == {}
    assert list(tmp_path.iterdir()) == []


def test_columns_that_do_not_fit_are_named(tmp_path):
    cache = Cache(str(tmp_path), 0)
    batch = pa.record_batch({"good": [1, 2], "ragged": [[1], [1, 2]], "holes": [1, None]})
    part = cache.store(0, 0, 1, batch.schema, iter([batch]))
    seal = seals(0, [part], [0])[0]
    feed = Feed(seal, cache.shard(0, seal.parts), [0], 0, lambda _: None)
    assert (feed.rows, feed.total_rows, feed.columns) == (2, 2, ["good", "ragged", "holes"])
    assert feed.steps(1) == 2
    for name, words in [("ragged", "arrays of 1 to 2"), ("holes", "1 nulls"), ("imgae", r"no column 'imgae'.*'good'")]:
        with pytest.raises(FeedError, match=words):
            feed.dataset(2, features="good", label=name)


def test_wide_rows_are_gathered_in_small_blocks(tmp_path, monkeypatch):
    taken = []
    caches, sealed, _ = fed(tmp_path, [[100]])
    shard = caches[0].shard(0, sealed[0].parts)
    take = shard.take
    monkeypatch.setattr(shard, "take", lambda numbers, names: taken.append(len(numbers)) or take(numbers, names))
    monkeypatch.setattr("tensorflowonspark.node.feed._BLOCK_BYTES", 500)
    list(Epochs(shard, plan_epoch([100], 10, 0), KINDS, lambda _: None, 0)())
    assert set(taken) == {20}  # two batches of ten rows of about 20 bytes


def test_rows_that_are_missing_are_noticed(tmp_path):
    caches, sealed, _ = fed(tmp_path, [[10, 5]])
    caches[0]._parts.popitem()
    with pytest.raises(FeedError, match="this node has 10 rows of feed 0, and should have 15"):
        Feed(sealed[0], caches[0].shard(0, sealed[0].parts), [0], 0, lambda _: None)


def test_an_empty_feed_is_told(tmp_path):
    feed = Feed(seals(0, [], [0])[0], Cache(str(tmp_path), 0).shard(0, ()), [0], 0, lambda _: None)
    with pytest.raises(FeedError, match="has no rows"):
        feed.dataset(2)
