"""The first pass over files of unknown numbers of rows: the rows of `FileRows`, in its order, in bounded memory."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Lock
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import summarize
from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.file_feeds import FileFeeds
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rendezvous import Rendezvous
from tensorflowonspark.errors import FeedError, TFRecordError
from tensorflowonspark.feed_messages import FileFeed, FilesRead, RowsCounted, SplitManifest, StepGrant
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
from tensorflowonspark.node.feed.uncounted import UncountedRows
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.framing import framed
from tests.support.splits import Split, splits_of


def manifest_of(batch):
    return SplitManifest({0: 0}, columns=summarize(batch, 0, 0), schema=batch.schema.serialize().to_pybytes())


IDS = manifest_of(pa.record_batch({"id": pa.array([1], pa.int64())}))


def feed_of(splits, manifest=IDS, row_bytes=8.0, limit=1 << 20):
    rows = UncountedRows(splits, manifest, row_bytes, limit).alone(FileFeed(0), 0)
    return Feed(Share(manifest, rows, [0], 0, lambda progress: None))


def ids_of(batches):
    return [batch["id"][batch["sample_weight"] != 0].tolist() for batch in batches]


@pytest.mark.deep
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(1, 25),
    st.integers(1, 4000),
    st.sampled_from([None, 0, 5]),
)
def test_the_first_epoch_is_that_of_counted_rows(counts, batch_size, limit, seed):
    """So it can be resumed within it, by a pass over rows that have been counted."""
    known = FileRows(splits_of(counts), counts, 8.0, limit)
    selection = Selection(IDS, FeatureOptions(features=["id"]))
    share = Share(SplitManifest({0: known.rows}), known, [0], 0, lambda progress: None)
    passes = share.passes(selection, batch_size, seed)
    expected = [[values["id"][real].tolist() for values, real in passes()] for _ in range(2)]
    feed = feed_of(splits_of(counts), limit=limit)
    batches = feed.batches(batch_size, features=["id"], shuffle=seed is not None, seed=seed or 0)
    assert feed.total_rows is None
    assert ids_of(batches) == expected[0]
    assert feed.total_rows == known.rows
    assert ids_of(batches) == expected[1]
    if len(expected[0]) > 1:
        resumed = feed_of(splits_of(counts), limit=limit)
        rest = resumed.batches(batch_size, features=["id"], shuffle=seed is not None, seed=seed or 0, first_step=1)
        assert ids_of(rest) == expected[0][1:]


class Workers:
    """Workers that read files together, each in a thread, and the driver's part of it."""

    def __init__(self, counts_of):
        self._splits = [splits_of(counts) for counts in counts_of]
        self._grants = [Queue() for _ in counts_of]
        spec = ClusterSpec(num_workers=len(counts_of))
        self._nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
        self._driver = FileFeeds(lambda number, grant: self._grants[number].put(grant), Rendezvous())
        for node in self._nodes:
            self._driver.receive(node, FilesRead(FileFeed(7), "read", "files", (), streams=True), self._nodes)
        self._lock = Lock()

    def steps(self, batch_size, first_step=0):
        """Return the ids of each step of each worker's first pass."""
        with ThreadPoolExecutor(len(self._splits)) as threads:
            return list(threads.map(lambda number: self._run(number, batch_size, first_step), range(len(self._splits))))

    def _run(self, number, batch_size, first_step):
        rows = UncountedRows(self._splits[number], IDS, 8.0, 2000).together(FileFeed(7), self._link(number))
        feed = Feed(Share(IDS, rows, list(range(len(self._splits))), number, lambda _: None))
        return ids_of(feed.batches(batch_size, features=["id"], seed=5, first_step=first_step))

    def _link(self, number):
        def send(message):
            with self._lock:
                self._driver.report(self._nodes[number], message)

        def wait(kind):
            while not isinstance(message := self._grants[number].get(timeout=10), kind):
                pass
            return message

        feeds = SimpleNamespace(
            counts=lambda feed: None,
            break_off=lambda feed, text: pytest.fail(text),
            wait_for_grant=lambda feed, seconds: wait(StepGrant),
            wait_for_counts=lambda feed: wait(RowsCounted).rows,
            wait_for_step=lambda feed, step: None,
        )
        return SimpleNamespace(send=send, feeds=feeds)


@pytest.mark.parametrize("step", [1, 2, 5, 11])
def test_an_epoch_that_workers_begin_as_they_read_goes_on_at_any_step(step):
    """In the middle of the deal of a batch that they can't share evenly too."""
    counts_of = [[20, 31], [40, 3, 7], [60]]
    whole = Workers(counts_of).steps(8)
    assert {len(steps) for steps in whole} == {23}
    assert {len(steps[0]) for steps in whole} == {2, 3}
    for number, steps in enumerate(Workers(counts_of).steps(8, first_step=step)):
        assert steps == whole[number][step:]


def test_rows_are_counted_while_they_are_read_and_otherwise_once():
    splits = splits_of([20, 0, 30])
    feed = feed_of(splits)
    ids_of(feed.batches(8))
    ids_of(feed.batches(8))
    assert [split.counted for split in splits] == [0, 0, 0]
    left = feed_of(splits)
    batches = left.batches(8, features=["id"])
    first = next(iter(batches))["id"].tolist()
    again = ids_of(batches)
    assert again[0] == first
    assert sorted(number for step in again for number in step) == list(range(50))
    assert max(split.counted for split in splits) <= 1


def test_memory_is_bounded_while_the_program_is_slow():
    class Wide(Split):
        def batches(self):
            for batch in super().batches():
                yield batch.append_column("x", pa.array([[1.0] * 500] * len(batch), pa.list_(pa.float64(), 500)))

    splits = [Wide(first, 500) for first in range(0, 4000, 500)]
    batch = next(splits[0].batches())
    feed = feed_of(splits, manifest_of(batch), batch.nbytes / len(batch), limit=1 << 20)
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for values in feed.batches(20):
        seen += len(values["id"])
        if seen < 400:
            time.sleep(0.01)
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == 4000
    assert most < 1.5 * (1 << 20)  # of 16 MB


@pytest.fixture
def records(tmp_path):
    """Four files of 30 records."""
    for file in range(4):
        write(tmp_path / f"{file}.tfrecord", range(30 * file, 30 * file + 30))
    return tmp_path


def write(path, ids, x=(1.0, 2.0)):
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "x": pa.array([x] * len(ids), pa.list_(pa.float32()))})
    path.write_bytes(framed(encode(rows, False)).tobytes())


def read(path):
    splits, _ = tfrecord_splits([str(path)], None, None, {})
    first = next(splits[0].batches())
    return feed_of(splits, manifest_of(first), first.nbytes / len(first), limit=8000)


def shorter(path):
    path.write_bytes(path.read_bytes()[:-99])


def longer_arrays(path):
    write(path, range(90, 120), [1.0, 2.0, 3.0])


def damaged(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def written_again(path):
    data = path.read_bytes()
    os.utime(path, (1, 1))
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, r"3.tfrecord, byte \d+: .*ends within"),
        (damaged, r"3.tfrecord, byte \d+: "),
        (longer_arrays, r"'x'.*partition 3.*; partition 3 is .*3.tfrecord from byte 0 to"),
    ],
)
def test_what_can_not_be_read_is_named(records, change, message):
    change(records / "3.tfrecord")
    feed = read(records)
    for _ in range(2):
        with pytest.raises((FeedError, TFRecordError), match=message):
            ids_of(feed.batches(10, shuffle=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, r"3.tfrecord had \d+ bytes when it was listed, and has \d+: it has changed since"),
        (written_again, r"3.tfrecord was written again after it was listed"),
        (lambda path: path.unlink(), r"3.tfrecord can't be read any more: .*No such file"),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_a_file_that_changes_is_named(records, after, change, message):
    feed = read(records)
    for _ in range(after):
        assert sorted(number for step in ids_of(feed.batches(10)) for number in step) == list(range(120))
    change(records / "3.tfrecord")
    with pytest.raises(FeedError, match=message):
        ids_of(feed.batches(10))
