"""Rows of a worker that a coordinator reads."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.feed_messages import FileFeed
from tensorflowonspark.node.feed.files import FileReader
from tensorflowonspark.node.feed.parquet_source import ParquetSource

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]  # four imports of TensorFlow for each test


def test_a_worker_without_rows_can_not_repeat_them_for_ever():
    from tensorflowonspark.node.ps.remote_dataset import _repeated

    assert list(_repeated(lambda: iter("ab"), 2)) == ["a", "b", "a", "b"]
    with pytest.raises(tfos.FeedError, match="this worker has no rows to repeat"):
        next(_repeated(lambda: iter(()), None))


@pytest.mark.parametrize("rows", [None, pc.field("id") >= 35], ids=["all rows", "a filter"])
def test_a_worker_finds_its_share_of_files_whose_rows_the_chief_has_not_counted(tmp_path, rows):
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "ids.parquet", row_group_size=20)
    found = []
    for number in range(2):
        feeds = SimpleNamespace(numbers=range(2), open_files=lambda manifest, files, measured: (manifest, files))
        reader = FileReader(SimpleNamespace(number=number), None, None, feeds)
        request = ParquetSource([str(tmp_path)], filter=rows)
        manifest, files = reader.read_for_chief(FileFeed(0), request)
        found += [row for split in files.splits for batch in split.batches() for row in batch["id"].to_pylist()]
        assert sum(each.rows for each in manifest.layout.slices[0]) == files.rows
    assert sorted(found) == list(range(0 if rows is None else 35, 100))
