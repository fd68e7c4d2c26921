"""What the writers of tables and files could have nodes do: nothing but read Parquet files."""

import base64
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode, PartHeader, PartId, Split
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.transport.shared_file import SharedFileWriter, open_shared
from tests.support.tables import listed, make_iceberg


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The directory of an Iceberg table, and its metadata."""
    directory = tmp_path_factory.mktemp("iceberg")
    return directory, Path(make_iceberg(directory, range(3)).removeprefix("file://"))


@pytest.fixture
def metadata(table):
    """Return a function that sets properties in the table's metadata, as whoever can write there."""
    whole = table[1].read_text()

    def set_properties(**properties):
        table[1].write_text(json.dumps({**json.loads(whole), "properties": properties}))
        return str(table[1])

    yield set_properties
    table[1].write_text(whole)


def read(name, catalog=None):
    groups = listed("iceberg", {"table": name, "catalog": catalog}).splits
    return sorted(row for group in groups for batch in group.batches() for row in batch.column("id").to_pylist())


def sql(directory):
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}


@pytest.mark.parametrize("way", ["location", "catalog"])
def test_the_metadata_of_an_iceberg_table_calls_nothing(table, metadata, way, tmp_path):
    """It could name a class to import and call with the properties: here the keys are a command."""
    location = metadata(touch="", **{str(tmp_path / "ran"): "", "py-io-impl": "subprocess.Popen"})
    name, catalog = (location, None) if way == "location" else ("db.rows", sql(table[0]))
    with pytest.raises(SpecError, match=rf"{name} can't be read as an Iceberg table: .*names 'subprocess.Popen' as p"):
        read(name, catalog)
    assert not (tmp_path / "ran").exists()


def test_a_class_of_the_programs_own_or_of_pyiceberg_is_used(metadata, monkeypatch):
    location = metadata(**{"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    assert read(location) == [0, 1, 2]
    location = metadata(**{"py-io-impl": f"{__name__}.Own"})
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(Own=own))
    assert read(location, {"py-io-impl": f"{__name__}.Own"}) == [0, 1, 2]


def own(properties):
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(properties)


class Marks:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def schema(tmp_path):
    """A column whose type, by its metadata, is a pickle, as in Arrow's older releases."""
    pickled = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Marks(tmp_path / "ran")),
    }
    yield pa.schema([pa.field("id", pa.int64(), metadata=pickled)])
    assert not (tmp_path / "ran").exists()


def test_a_parquet_file_unpickles_nothing(tmp_path, schema):
    pq.write_table(pa.table([[1, 2]], schema=schema), tmp_path / "file.parquet")
    stored = pq.read_metadata(tmp_path / "file.parquet").metadata[b"ARROW:schema"]
    assert b"py_extension_type" in base64.b64decode(stored)
    groups = listed("parquet", {"paths": [str(tmp_path / "file.parquet")]}).splits
    assert [each for batch in groups[0].batches() for each in batch.column("id").to_pylist()] == [1, 2]


@pytest.mark.parametrize("mode", [CacheMode.DISK, CacheMode.MEMORY])
def test_rows_that_are_fed_unpickle_nothing(tmp_path, schema, mode):
    """They come by an unnamed file, or as Arrow's messages, and are kept."""
    writer = SharedFileWriter(schema, str(tmp_path))
    writer.write(pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int64())], schema=schema))
    batches = open_shared(writer.finish())
    writer.close()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema) as messages:
        messages.write_batch(batches[0])
    batches += pa.ipc.open_stream(stream.getvalue())
    cache = Cache(str(tmp_path), 0, lambda _: None)
    cache.store(PartHeader(0, Split.TRAIN, PartId(0), 1, CacheConfig(mode)), schema, iter(batches))
    shard = cache.shard(0, Split.TRAIN, [(PartId(0), 1)])
    assert [value for batch in shard.slices(0, shard.rows) for value in batch["id"].to_pylist()] == [1, 2, 1, 2]
