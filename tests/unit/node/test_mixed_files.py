"""Mixtures of files: several sources of one format, whose columns are those of the first."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.mixed_files import find_sources
from tensorflowonspark.node.feed.parquet_source import ParquetSource


def list_of(name):
    """Return the type of lists as one writer of Parquet files names their field."""
    return pa.list_(pa.field(name, pa.float64()))


def written(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_rows_have_the_columns_of_the_first_source_and_the_number_of_their_own(tmp_path):
    x, y = pa.array([[1.0], [2.0]], list_of("element")), pa.array([[3.0]], list_of("item"))
    a = written(tmp_path / "a.parquet", source=pa.array(["s", "t"]), x=x)
    b = written(tmp_path / "b.parquet", x=y, source=pa.array(["u"]))
    listed = find_sources({"one": (a, 0.5), "two": ([b], 0.5)}, 10, ParquetSource)
    assert listed.mixture.column == "source_"
    assert (listed.mixture.names, listed.mixture.epoch_rows) == (("one", "two"), 10)
    batches = [batch for split in listed.splits for batch in split.batches()]
    assert {batch.schema for batch in batches} == {listed.schema}
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"source": "s", "x": [1.0], "source_": 0},
        {"source": "t", "x": [2.0], "source_": 0},
        {"source": "u", "x": [3.0], "source_": 1},
    ]


def test_other_types_and_rows_without_shares_are_refused(tmp_path):
    a, b = written(tmp_path / "a.parquet", x=[1]), written(tmp_path / "b.parquet", x=[1.0])
    with pytest.raises(SpecError, match="source 'two': column 'x' is double, and in the first source int64"):
        find_sources({"one": (a, 0.5), "two": (b, 0.5)}, None, ParquetSource)
    with pytest.raises(SpecError, match="epoch_rows is for a mixture"):
        find_sources(a, 10, ParquetSource)
