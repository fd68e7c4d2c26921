"""What a node keeps, within its bounds, whatever the senders do."""

from threading import Thread

import pyarrow as pa
import pytest

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import (
    Backpressure,
    CacheConfig,
    CacheMode,
    PartHeader,
    PartId,
    PartsStored,
    RowsReceived,
    Split,
)
from tensorflowonspark.node.feed.cache import Cache
from tests.support.programs import wait_for

SCHEMA = pa.schema({"id": pa.int64()})
KEPT = [CacheMode.DISK, CacheMode.MEMORY]


def batches(ids, size=7):
    for start in range(0, len(ids), size):
        yield pa.record_batch({"id": pa.array(ids[start : start + size], pa.int64())})


def header(partition=0, attempt=1, feed=0, storage=CacheConfig()):  # noqa: B008
    return PartHeader(feed, Split.TRAIN, PartId(partition), attempt, storage)


def ids_of(shard):
    return [value for batch in shard.slices(0, shard.rows) for value in batch["id"].to_pylist()]


@pytest.fixture
def told():
    return []


@pytest.fixture
def cache(tmp_path, told):
    return Cache(str(tmp_path), 3, told.append)


@pytest.mark.parametrize("keep", KEPT)
def test_parts_come_back_in_the_order_that_is_asked_for(cache, tmp_path, keep):
    for partition, ids in enumerate([range(10), range(10, 12), range(0)]):
        summary = cache.store(header(partition, storage=CacheConfig(keep)), SCHEMA, batches(ids))
        assert (summary.rows, summary.number, summary.part) == (len(ids), 3, PartId(partition))
    assert ids_of(cache.shard(0, Split.TRAIN, [(PartId(1), 1), (PartId(2), 1), (PartId(0), 1)])) == [10, 11, *range(10)]
    assert list(tmp_path.iterdir()) == []


def test_attempts_that_do_not_count_are_dropped(cache):
    cache.store(header(attempt=2), SCHEMA, batches([1, 2]))
    cache.store(header(attempt=1), SCHEMA, batches([1]))
    assert ids_of(cache.shard(0, Split.TRAIN, [(PartId(0), 2)])) == [1, 2]
    assert len(cache._parts) == 1


@pytest.mark.parametrize("keep", list(CacheMode))
def test_a_part_that_breaks_off_leaves_nothing(cache, tmp_path, keep):
    def broken():
        yield from batches([1, 2])
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        cache.store(header(storage=CacheConfig(keep, 10_000)), SCHEMA, broken())
    assert cache._parts == {}
    assert cache._usage[0]._bytes == {False: 0, True: 0}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", KEPT)
def test_more_than_the_bound_is_refused_with_the_ways_out(cache, keep):
    with pytest.raises(FeedError, match=r"more than cache_limit allows \(1,000 bytes\): raise it, use .* more workers"):
        cache.store(header(storage=CacheConfig(keep, 1000)), SCHEMA, batches(range(1000)))


@pytest.mark.parametrize("keep", [CacheMode.DISK, CacheMode.NONE])
def test_a_disk_that_is_full_is_named(cache, monkeypatch, keep):
    """Whether the first write finds out or the last flush; also when what was to stay in memory overflows."""
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    limit = 1 if keep is CacheMode.NONE else None
    for count in (1, 100_000):
        with pytest.raises(FeedError, match=r"can't be written to .* No space left on device; .* spark.local.dir"):
            cache.store(header(storage=CacheConfig(keep, limit)), SCHEMA, batches(range(count)))
    assert cache._usage[0]._bytes == {False: 0, True: 0}


def test_a_partition_of_a_stream_that_is_larger_than_the_bound_goes_to_disk(cache, told):
    storage = CacheConfig(CacheMode.NONE, 200)
    cache.store(header(storage=storage), SCHEMA, batches(range(500)))
    usage = cache._usage[0]
    assert usage._bytes[False] == 0
    assert usage._bytes[True] >= 4000
    shard, (summary,), release = cache.take_part(0, (PartId(0), 1))
    assert ids_of(shard) == list(range(500))
    assert summary.rows == 500
    assert [type(message) for message in told if not isinstance(message, RowsReceived)] == [PartsStored]
    release()
    assert usage._bytes == {False: 0, True: 0}


def test_a_sender_waits_until_the_program_has_taken_what_is_there(cache, told):
    storage = CacheConfig(CacheMode.NONE, 100)
    cache.store(header(0, storage=storage), SCHEMA, batches(range(50)))
    sender = Thread(target=cache.store, args=(header(1, storage=storage), SCHEMA, batches(range(50))))
    sender.start()
    sender.join(0.3)
    assert sender.is_alive()
    _, _, release = cache.take_part(0, (PartId(0), 1))
    release()
    sender.join(5)
    assert not sender.is_alive()
    assert Backpressure(0) not in told  # the program was busy, and did not wait for rows


def test_the_driver_learns_when_program_and_sender_wait_for_each_other(cache, told):
    storage = CacheConfig(CacheMode.NONE, 100)
    cache.store(header(0, storage=storage), SCHEMA, batches(range(50)))
    sender = Thread(target=cache.store, args=(header(1, storage=storage), SCHEMA, batches(range(50))))
    cache.program_waits(0, True)
    sender.start()
    wait_for(lambda: Backpressure(0) in told, 5)
    cache.drop_before(1)
    sender.join(5)
    assert not sender.is_alive()


def test_rows_of_a_feed_that_is_over_are_let_go(cache, told):
    cache.store(header(), SCHEMA, batches([1]))
    cache.drop_before(1)
    assert cache._parts == {}
    summary = cache.store(header(1), SCHEMA, batches([1, 2]))
    assert summary.rows == 2  # the sender is to go on with those of other nodes
    assert cache._parts == {}
    reported = [part for message in told if isinstance(message, PartsStored) for part in message.parts]
    # The driver waits for a report of every part that counts.
    assert [each.part for each in reported] == [PartId(0), PartId(1)]


def test_rows_of_a_stream_that_is_over_are_not_reported(cache, told):
    cache.drop_before(1)
    cache.store(header(storage=CacheConfig(CacheMode.NONE)), SCHEMA, batches([1, 2]))
    assert cache._parts == {}
    assert told == []
