"""Delta and Iceberg tables made by their own libraries: partition values, columns that change, and deleted rows."""

import base64
import json
import struct
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from tensorflowonspark.errors import SpecError
from tests.support.tables import listed


def read(kind, source, columns=None, rows=None):
    """Return the rows in the order of their ids, and the request with the version."""
    groups, _, found, _ = listed(kind, source, columns, rows)
    assert sum(group.count() for group in groups) == sum(b.num_rows for group in groups for b in group.batches())
    rows = [row for group in groups for batch in group.batches() for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row.get("id", 0)), vars(found)


# ---- Delta


def delta(path, version=None):
    return {"table": str(path), "version": version, "storage_options": None}


@pytest.fixture
def evolved(tmp_path):
    """A Delta table of three versions: partitions with odd names and a null; a new column; rows that are deleted."""
    path = tmp_path / "table"
    first = {
        "id": range(6),
        "part": ["a b/%c"] * 3 + [None] * 3,
        "day": pa.array([18000] * 6, pa.int32()).cast("date32"),
    }
    write_deltalake(path, pa.table(first), partition_by=["part", "day"])
    second = {"id": [6, 7], "part": ["z", "z"], "day": first["day"][:2], "more": [1.5, None]}
    write_deltalake(path, pa.table(second), mode="append", schema_mode="merge")
    DeltaTable(path).delete("id = 4")
    return path


def test_versions_of_a_delta_table(evolved):
    rows, source = read("delta", delta(evolved))
    expected = DeltaTable(evolved).to_pyarrow_table().sort_by("id").to_pylist()
    assert rows == expected
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 5, 6, 7]
    assert rows[0]["part"] == "a b/%c"
    assert rows[3]["part"] is None
    assert source["version"] == 2
    older, source = read("delta", delta(evolved, 0))
    assert [row["id"] for row in older] == list(range(6))
    assert "more" not in older[0]
    assert source["version"] == 0


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        (pc.field("part") == "z", [6, 7]),
        (pc.field("part").is_null() & (pc.field("id") > 3), [5]),
        (pc.field("more") > 1, [6]),
        (pc.field("more").is_null() & (pc.field("id") > 4), [5, 7]),
    ],
)
def test_a_filter_of_a_delta_table(evolved, expression, ids):
    assert read("delta", delta(evolved), ["id"], expression)[0] == [{"id": each} for each in ids]


def commit(path, version, actions):
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def added(path):
    lines = (path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    return next(action["add"] for action in map(json.loads, lines) if "add" in action)


def feature(name):
    return {
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [name], "writerFeatures": [name]}
    }


def mark_deleted(path, rows):
    """Mark rows of the first file in a deletion vector within the log, as Delta's format has it."""
    bitmap = struct.pack("<qi", 1, 0) + struct.pack("<iihhi", 12346, 1, 0, len(rows) - 1, 16)
    data = struct.pack("<i", 1681511377) + bitmap + struct.pack(f"<{len(rows)}H", *rows)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # of Z85
    ours = (
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"  # of base64.b85encode
    )
    text = base64.b85encode(data + bytes(-len(data) % 4)).decode().translate(str.maketrans(ours, digits))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}
    file = added(path)
    removed = {"path": file["path"], "deletionTimestamp": 1, "dataChange": True}
    commit(path, 1, [feature("deletionVectors"), {"remove": removed}, {"add": {**file, "deletionVector": vector}}])


def test_rows_in_a_deletion_vector_are_left_out(tmp_path, monkeypatch):
    write_deltalake(tmp_path, pa.table({"id": range(100), "part": ["a b"] * 100}), partition_by=["part"])
    mark_deleted(tmp_path, [3, 97])
    expected = [each for each in range(100) if each not in (3, 97)]
    assert [row["id"] for row in read("delta", delta(tmp_path))[0]] == expected
    assert [row["id"] for row in read("delta", delta(tmp_path), None, pc.field("id") > 95)[0]] == [96, 98, 99]
    monkeypatch.delattr(DeltaTable, "deletion_vectors")
    with pytest.raises(SpecError, match="may have deletion vectors, which this deltalake can't read"):
        read("delta", delta(tmp_path))


def test_a_deletion_vector_over_several_row_groups(tmp_path):
    write_deltalake(tmp_path, pa.table({"id": range(100)}))
    pq.write_table(pa.table({"id": range(100)}), tmp_path / added(tmp_path)["path"], row_group_size=30)
    mark_deleted(tmp_path, [0, 29, 30, 31, 95])
    groups = listed("delta", delta(tmp_path)).splits
    assert [group.rows for group in groups] == [28, 28, 30, 9]
    assert [row["id"] for row in read("delta", delta(tmp_path))[0]] == sorted({*range(100)} - {0, 29, 30, 31, 95})


@pytest.mark.parametrize("name", ["columnMapping", "typeWidening", "variantType"])
def test_features_of_delta_that_change_rows_are_refused_by_name(tmp_path, name):
    write_deltalake(tmp_path, pa.table({"id": range(10)}))
    commit(tmp_path, 1, [feature(name)])
    with pytest.raises(SpecError, match=f"{name}"):
        read("delta", delta(tmp_path))


def test_a_delta_table_that_is_none(tmp_path, evolved):
    with pytest.raises(SpecError, match="can't be read as a Delta table"):
        read("delta", delta(tmp_path / "none"))
    with pytest.raises(SpecError, match="can't be read as a Delta table"):
        read("delta", delta(evolved, 17))


# ---- Iceberg


def iceberg(table, snapshot=None, catalog=None):
    return {"table": table, "snapshot": snapshot, "catalog": catalog}


@pytest.fixture
def catalog(tmp_path):
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    yield catalog
    catalog.engine.dispose()


@pytest.fixture
def events(catalog):
    """A table whose columns are renamed, swapped, added and dropped after its first snapshot."""
    rows = {"id": pa.array(range(6), pa.int64()), "x": [0.5] * 6, "y": [2.5] * 6, "day": pa.array([1, 1, 1, 2, 2, 2])}
    rows["many"] = pa.array([[1, 2]] * 6, pa.list_(pa.int64()))
    table = catalog.create_table("db.events", schema=pa.table(rows).schema)
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    table.append(pa.table(rows))
    with table.update_schema() as schema:
        schema.rename_column("x", "old")
        schema.rename_column("y", "x")
        schema.delete_column("many")
    with table.update_schema() as schema:
        schema.add_column("y", StringType())
    later = {"id": pa.array([6, 7], pa.int64()), "old": [1.0, 2.0], "x": [5.0, 6.0], "day": pa.array([3, 3])}
    table.append(pa.table({**later, "y": ["a", None]}))
    return table


def test_snapshots_of_an_iceberg_table(events):
    rows, source = read("iceberg", iceberg(events.metadata_location))
    expected = events.scan().to_arrow().sort_by("id").to_pylist()
    assert rows == expected
    assert rows[0] == {"id": 0, "old": 0.5, "x": 2.5, "day": 1, "y": None}
    assert source["snapshot"] == events.current_snapshot().snapshot_id
    first = events.snapshots()[0].snapshot_id
    older, source = read("iceberg", iceberg(events.metadata_location, first))
    assert [row["id"] for row in older] == list(range(6))
    assert (older[0]["x"], older[0]["y"], older[0]["many"]) == (0.5, 2.5, [1, 2])
    assert source["snapshot"] == first


@pytest.mark.deep
@pytest.mark.parametrize(
    ("expression", "ids", "groups"),
    [
        (pc.field("day") == 2, [3, 4, 5], 1),
        ((pc.field("day") < 3) & (pc.field("id") > 1), [2, 3, 4, 5], 2),
        (pc.field("x") < 1, [], 2),  # x was y: the files' x is no reason to leave them out, nor to take them
        (pc.field("old") < 1, list(range(6)), 2),
        (pc.field("y") == "a", [6], 1),
        (pc.field("id") > 5, [6, 7], 1),
    ],
)
def test_a_filter_of_an_iceberg_table(events, expression, ids, groups):
    source = iceberg(events.metadata_location)
    assert read("iceberg", source, ["id"], expression)[0] == [{"id": each} for each in ids]
    assert len(listed("iceberg", source, ["id"], expression).splits) == groups


def test_an_iceberg_table_by_its_name_a_tag_and_its_directory(events, catalog, tmp_path):
    first = events.snapshots()[0].snapshot_id
    events.manage_snapshots().create_tag(first, "start").commit()
    for given in (catalog.properties, {**catalog.properties, "unused": "x"}):
        rows, source = read("iceberg", iceberg("db.events", "start", given))
        assert len(rows) == 6
        assert source["snapshot"] == first
    directory = events.location().removeprefix("file://")
    with pytest.raises(SpecError, match="can't be read as an Iceberg table: .*version-hint.text"):
        read("iceberg", iceberg(directory))
    name = events.refresh().metadata_location.rpartition("/")[2]
    (tmp_path / "db" / "events" / "metadata" / "version-hint.text").write_text(name)
    assert len(read("iceberg", iceberg(directory))[0]) == 8
    with pytest.raises(SpecError, match="there is no snapshot 17"):
        read("iceberg", iceberg(directory, 17))
    with pytest.raises(SpecError, match="can't be read as an Iceberg table: .*db.none"):
        read("iceberg", iceberg("db.none", None, catalog.properties))


def test_files_without_field_ids_are_matched_by_the_name_mapping(events, tmp_path):
    rows = {"id": pa.array([9], pa.int64()), "old": [1.0], "x": [7.0], "day": pa.array([9]), "y": ["b"]}
    pq.write_table(pa.table(rows), tmp_path / "added.parquet")
    events.add_files([f"file://{tmp_path}/added.parquet"])
    with events.update_schema() as schema:
        schema.rename_column("old", "older")
    rows, _ = read("iceberg", iceberg(events.metadata_location))
    assert rows[-1] == {"id": 9, "older": 1.0, "x": 7.0, "day": 9, "y": "b"}
    with events.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(SpecError, match="added.parquet has columns without field ids"):
        read("iceberg", iceberg(events.metadata_location))


@pytest.mark.parametrize("form", ["PARQUET", "PUFFIN"])
def test_rows_in_the_delete_files_of_an_iceberg_table_are_left_out(events, tmp_path, monkeypatch, form):
    from pyiceberg.manifest import FileFormat
    from pyiceberg.table import DataScan

    plan = DataScan.plan_files
    paths = {task.file.partition[0]: task.file.file_path for task in events.scan().plan_files()}
    positions = pa.array([2, 0, 1], pa.int64())
    deletes = []
    for number, deleted in enumerate(([paths[1], paths[1], paths[3]], [paths[2], paths[1], "file:///other"])):
        pq.write_table(pa.table({"file_path": deleted, "pos": positions}), tmp_path / f"deletes-{number}")
        deletes.append(SimpleNamespace(file_path=f"file://{tmp_path}/deletes-{number}", file_format=FileFormat[form]))

    def with_deletes(scan):
        for task in plan(scan):
            task.delete_files = deletes
            yield task

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    if form == "PUFFIN":
        with pytest.raises(SpecError, match=r"deletes-0 is a file of PUFFIN, and not of Parquet"):
            read("iceberg", iceberg(events.metadata_location))
        return
    rows, _ = read("iceberg", iceberg(events.metadata_location))
    assert [row["id"] for row in rows] == [1, 3, 4, 6]


def test_a_struct_whose_fields_have_changed_is_refused(catalog):
    rows = pa.table({"s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    table = catalog.create_table("db.structs", schema=rows.schema, partition_spec=UNPARTITIONED_PARTITION_SPEC)
    table.append(rows)
    with table.update_schema() as schema:
        schema.add_column(("s", "b"), LongType())
    with pytest.raises(SpecError, match=r"column s is struct<a: int64>, and struct<a: int64, b: int64> in its table"):
        read("iceberg", iceberg(table.metadata_location))


def test_an_empty_table(catalog):
    table = catalog.create_table("db.empty", schema=pa.schema([("x", pa.int64())]))
    assert read("iceberg", iceberg(table.metadata_location))[0] == []


@pytest.mark.parametrize(
    ("kind", "source", "library"),
    [("delta", delta("table"), "deltalake"), ("iceberg", iceberg("db.table"), "pyiceberg")],
)
def test_a_library_that_is_not_installed(monkeypatch, kind, source, library):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    message = rf"ctx.read_{kind} needs {library}, which is not installed: pip install 'tensorflowonspark\[{kind}\]'"
    with pytest.raises(SpecError, match=message):
        listed(kind, source)
