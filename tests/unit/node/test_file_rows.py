"""Epochs over Parquet files that are read anew each time: each row once, from any step on, in bounded memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.columns import summarize
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.file_rows import FileRows
from tensorflowonspark.node.feed.parquet_source import ParquetSource
from tensorflowonspark.node.feed.plan import plan_epoch
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.feed.share import Share
from tests.support.splits import splits_of


def selected(batch, **options):
    manifest = SplitManifest({}, columns=summarize(batch, 0, 0), schema=batch.schema.serialize().to_pybytes())
    return Selection(manifest, FeatureOptions(**options))


IDS = selected(pa.record_batch({"id": pa.array([1], pa.int64())}), features=["id"])


def passes_over(source, selection, batch_size, others=(), seed=None):
    manifest = SplitManifest(dict(enumerate([source.rows, *others])))
    return Share(manifest, source, list(manifest.rows), 0, lambda progress: None).passes(selection, batch_size, seed)


def epoch_of(source, selection, batch_size, others=(), seed=None, epoch=0, step=0):
    """Return the real ids of each step of an epoch."""
    passes = passes_over(source, selection, batch_size, others, seed)
    passes.cursor.resume_at(epoch, step)
    return [values["id"][real].tolist() for values, real in passes()]


rows_of_splits = st.lists(st.integers(0, 60), max_size=8)
rows_of_others = st.lists(st.integers(0, 200), max_size=2)


@settings(max_examples=60)
@given(rows_of_splits, st.integers(3, 50), st.integers(1, 4000), st.sampled_from([None, 0, 5]), rows_of_others)
def test_each_row_once_in_the_planned_steps(counts, batch_size, limit, seed, others):
    source = FileRows(splits_of(counts), counts, 8.0, limit)
    steps = epoch_of(source, IDS, batch_size, others, seed)
    assert sorted(row for step in steps for row in step) == list(range(sum(counts)))
    plan = plan_epoch([source.rows, *others], batch_size, 0)
    assert [len(step) for step in steps] == [step.real for step in plan.steps_from(0)]
    if seed is None:
        assert [row for step in steps for row in step] == list(range(sum(counts)))


@settings(max_examples=40)
@given(rows_of_splits, st.integers(3, 25), st.integers(1, 4000), st.sampled_from([None, 3]), rows_of_others, st.data())
def test_an_epoch_goes_on_at_any_step(counts, batch_size, limit, seed, others, data):
    source = FileRows(splits_of(counts), counts, 8.0, limit)
    steps = epoch_of(source, IDS, batch_size, others, seed=seed, epoch=2)
    first = data.draw(st.integers(0, max(0, len(steps) - 1)))
    assert epoch_of(source, IDS, batch_size, others, seed=seed, epoch=2, step=first) == steps[first:]


def test_epochs_have_orders_of_their_own():
    source = FileRows(splits_of([40, 40, 40]), [40, 40, 40], 8.0, 1 << 20)
    first, again, second = (epoch_of(source, IDS, 10, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert first == again != second
    assert len({row // 40 for row in first[0]}) > 1  # rows of several splits come together


@pytest.fixture
def parquet(tmp_path):
    """Two files of 1,000 rows in row groups of 100."""
    for number in range(2):
        ids = np.arange(1000 * number, 1000 * (number + 1))
        table = pa.table({"id": ids, "x": pa.array([[float(each)] * 50 for each in ids]), "unused": ids})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=100)
    return tmp_path


def read(path, limit=1 << 20):
    splits = ParquetSource([str(path)], columns=["id", "x"]).find().splits
    first = next(splits[0].batches())
    rows = FileRows(splits, [each.rows for each in splits], first.nbytes / first.num_rows, limit)
    return rows, selected(first, features=["id", "x"])


def test_parquet_is_read_by_row_groups_within_its_limit(parquet):
    source, selection = read(parquet, limit=200_000)
    before, most = pa.total_allocated_bytes(), 0
    ids = []
    for values, _ in passes_over(source, selection, 20, seed=3)():
        assert (values["x"][:, 0] == values["id"]).all()
        ids += values["id"].tolist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert sorted(ids) == list(range(2000))
    assert most < 1_000_000  # of 2,000 rows of 408 bytes in each of the columns' types, and buffers


def shorter(path):
    pq.write_table(pq.read_table(path).slice(0, 950), path, row_group_size=100)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-5000])


def gone(path):
    path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, r"1.parquet, row group 9 had 100 rows when it was listed, and has 50: it has changed since"),
        (truncated, r"1.parquet, row group \d can't be read"),
        (gone, r"1.parquet, row group \d can't be read: .*No such file"),
    ],
)
def test_a_file_that_changes_between_epochs_is_named(parquet, change, message):
    source, selection = read(parquet)
    assert len(epoch_of(source, selection, 20)) == 100
    change(parquet / "1.parquet")
    with pytest.raises(FeedError, match=message):
        epoch_of(source, selection, 20)


@pytest.mark.parametrize("odd", [None, [1.0] * 49 + [None]], ids=["null", "nested null"])
def test_later_rows_of_another_kind_are_named_by_file_and_row_group(parquet, odd):
    path = parquet / "1.parquet"
    table = pq.read_table(path)
    x = pa.array([odd if row == 555 else [1.0] * 50 for row in range(1000)], pa.list_(pa.float64()))
    pq.write_table(table.set_column(1, "x", x), path, row_group_size=100)
    source, selection = read(parquet)
    with pytest.raises(
        FeedError, match=r"'x'.*null.*row 55 of partition 15.*; partition 15 is .*1.parquet, row group 5"
    ):
        epoch_of(source, selection, 20)
