"""Parquet files, and Delta and Iceberg tables, by the request of a program; their libraries are optional."""

import base64
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.file_columns import FIELD_ID, DataFile, ParquetFiles, constant_of, parquet_files
from tensorflowonspark.node.feed.footers import ReadFooters, footers
from tensorflowonspark.node.feed.row_groups import RowGroup, row_groups

# What a reader of a Delta table must know, and its library or this module does. Other features are refused.
_DELTA_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


class FilesToRead(NamedTuple):
    """What a program asks for.

    `kind` is ``"parquet"``, ``"delta"``, ``"iceberg"`` or ``"tfrecord"``, and `source` holds the arguments
    that name its files. `columns` (all for None), `filter` and `cache_limit` are as for ``ctx.read_parquet``.
    """

    kind: str
    source: Mapping[str, Any]
    columns: Sequence[str] | None = None
    filter: Any = None
    cache_limit: int | str | None = None

    def shown(self) -> str:
        """Return the version of the table, and the filter, for errors."""
        given = {name: self.source.get(name) for name in ("version", "snapshot")} | {"filter": self.filter}
        return "".join(f", {name}={value}" for name, value in given.items() if value is not None)

    def to_json(self) -> str:
        """Return it as JSON can hold it, for a request from the chief to the workers."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> "FilesToRead":
        """Return what `to_json` was called on."""
        return cls(*pickle.loads(base64.b64decode(text)))


def find_row_groups(
    files: FilesToRead, read_footers: ReadFooters = footers
) -> tuple[list[RowGroup], pa.Schema, FilesToRead]:
    """Return the row groups of a request, their columns, and the request with the version of the table.

    A wrong request, or a table with what can't be read, is a `SpecError`.
    """
    found, version = _KINDS[files.kind](**files.source)
    groups, schema = row_groups(found, files.columns, files.filter, read_footers)
    return groups, schema, files._replace(source={**files.source, **version})


def _parquet(paths: Sequence[str]) -> tuple[ParquetFiles, dict[str, Any]]:
    return parquet_files(paths), {}


# ---- Delta


def _delta(
    table: str, version: int | None, storage_options: Mapping[str, str] | None
) -> tuple[ParquetFiles, dict[str, Any]]:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise _missing("ctx.read_delta", "deltalake", "delta") from error
    try:
        found = DeltaTable(table, version=version, storage_options=storage_options and dict(storage_options))
        _check_delta(table, found)
        added = pa.table(found.get_add_actions(flatten=True)).to_pylist()
        deleted = _deletion_vectors(table, found)
        schema = pa.schema(found.schema().to_arrow())
    except (DeltaError, OSError, ValueError) as error:
        raise SpecError(f"{table} can't be read as a Delta table: {error}") from error
    partitions = found.metadata().partition_columns
    files = []
    for each in sorted(added, key=lambda each: str(each["path"])):
        constants = {name: constant_of(each[f"partition.{name}"], schema.field(name).type) for name in partitions}
        path = each["path"]
        uri = path if "://" in path else f"{found.table_uri.rstrip('/')}/{path}"
        if "://" not in path:
            path = f"{table.rstrip('/')}/{unquote(path)}"
        files.append(DataFile(path, constants, deleted.pop(uri, None)))
    if deleted:
        raise SpecError(f"{table} has deletion vectors of files that it does not list: {', '.join(deleted)}")
    return ParquetFiles(files, schema), {"version": found.version()}


def _check_delta(table: str, found: Any) -> None:
    """Raise a SpecError if a table has features that are not supported."""
    features = set(found.protocol().reader_features or ())
    if found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if unknown := sorted(features - _DELTA_FEATURES):
        raise SpecError(
            f"{table} has features of Delta that ctx.read_delta can't read: {', '.join(unknown)}; feed it by Spark "
            '(cluster.train(spark.read.format("delta").load(...)))'
        )


def _deletion_vectors(table: str, found: Any) -> dict[str, pa.BooleanArray]:
    if "deletionVectors" not in (found.protocol().reader_features or ()):
        return {}
    if not hasattr(found, "deletion_vectors"):
        raise SpecError(f"{table} may have deletion vectors, which this deltalake can't read: pip install -U deltalake")
    vectors = pa.table(found.deletion_vectors()).combine_chunks().to_batches()
    return {
        batch.column("filepath")[row].as_py(): batch.column("selection_vector")[row].values
        for batch in vectors
        for row in range(batch.num_rows)
    }


# ---- Iceberg


_FILE_ACCESS = "py-io-impl"  # a property of pyiceberg
_DELETE_FILES_AT_A_TIME = 16
_KNOWN_ACCESS = ("pyiceberg.io.fsspec.FsspecFileIO", "pyiceberg.io.pyarrow.PyArrowFileIO")
_pyiceberg = threading.Lock()  # while a name of its is replaced


def _iceberg(
    table: str, snapshot: int | str | None, catalog: str | Mapping[str, str] | None, schema_id: int | None = None
) -> tuple[ParquetFiles, dict[str, Any]]:
    try:
        from pyiceberg.exceptions import NoSuchTableError
    except ImportError as error:
        raise _missing("ctx.read_iceberg", "pyiceberg", "iceberg") from error
    try:
        found = _iceberg_table(table, catalog)
        chosen, schema = _snapshot_of(found, snapshot)
        if schema_id is not None:
            schema = found.schemas()[schema_id]
        tasks = list(found.scan(snapshot_id=chosen).plan_files()) if chosen is not None else []
        for each in (file for task in tasks for file in (task.file, *task.delete_files)):
            if each.file_format.name != "PARQUET":
                raise SpecError(f"{each.file_path} is a file of {each.file_format.name}, and not of Parquet")
        fields = schema.as_arrow()
        paths = sorted({each.file_path for task in tasks for each in task.delete_files})
        with ThreadPoolExecutor(_DELETE_FILES_AT_A_TIME) as readers:
            deletes = dict(zip(paths, readers.map(_read_deletes, paths), strict=True))
        files = [
            DataFile(each.file.file_path, _identities(found, each.file, fields), _not_deleted(each, deletes))
            for each in sorted(tasks, key=lambda each: str(each.file.file_path))
        ]
    except (NoSuchTableError, NotImplementedError, OSError, IndexError, ValueError, pa.ArrowException) as error:
        raise SpecError(f"{table} can't be read as an Iceberg table: {error}") from error
    mapping = found.name_mapping()
    return ParquetFiles(
        files,
        fields,
        defaults={
            each.name: constant_of(each.initial_default, fields.field(each.name).type)
            for each in schema.fields
            if getattr(each, "initial_default", None) is not None
        },
        names={name: each.field_id for each in (mapping.root if mapping else ()) for name in each.names},
    ), {"snapshot": chosen, "schema_id": schema.schema_id}


def _iceberg_table(table: str, catalog: str | Mapping[str, str] | None) -> Any:
    """Return a table by its name in a catalog, or by the location of its metadata."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    properties = {} if catalog is None or isinstance(catalog, str) else dict(catalog)
    if "/" in table:
        with _only_known(properties.get(_FILE_ACCESS)):
            return StaticTable.from_metadata(table, properties)
    found = load_catalog(catalog if isinstance(catalog, str) else None, **properties)
    with _only_known(found.properties.get(_FILE_ACCESS)):
        return found.load_table(table)


@contextmanager
def _only_known(named: str | None) -> Iterator[None]:
    """Refuse a class that a table's metadata alone names for the access to its files: pyiceberg would call anything."""
    from pyiceberg import io

    with _pyiceberg:
        call = io._import_file_io

        def checked(name: str, properties: dict[str, str]) -> Any:
            if name not in (*_KNOWN_ACCESS, named):
                raise ValueError(
                    f"its metadata names {name!r} as {_FILE_ACCESS}: remove that property, or name the same in the "
                    "properties of the catalog, if you trust everyone who can write there"
                )
            return call(name, properties)

        io._import_file_io = checked
        try:
            yield
        finally:
            io._import_file_io = call


def _snapshot_of(found: Any, snapshot: int | str | None) -> tuple[int | None, Any]:
    """Return a snapshot's number, None in an empty table, and its schema; a branch has the table's current one."""
    if snapshot is None:
        known = found.current_snapshot()
        return None if known is None else int(known.snapshot_id), found.schema()
    known = found.snapshot_by_name(snapshot) if isinstance(snapshot, str) else found.snapshot_by_id(snapshot)
    if known is None:
        raise ValueError(f"there is no snapshot {snapshot!r}")
    ref = found.refs().get(snapshot)
    is_branch = ref is not None and ref.snapshot_ref_type == "branch"
    schema = found.schema() if is_branch or known.schema_id is None else found.schemas()[known.schema_id]
    return int(known.snapshot_id), schema


def _read_deletes(path: str) -> pa.Table:
    """Return the files and positions of the rows that a delete file marks."""
    files, within = storage.file_system(path)
    with files.open(within, "rb") as file:
        return pq.read_table(file, columns=["file_path", "pos"])


def _not_deleted(task: Any, deletes: Mapping[str, pa.Table]) -> pa.BooleanArray | None:
    """Return whether each row of a data file is part of the table, by the positions in its delete files; None for all.

    pyiceberg refuses delete files of other kinds; its own scan would read each data file as a whole.
    """
    if not task.delete_files:
        return None
    kept = np.ones(task.file.record_count, np.bool_)
    for table in (deletes[each.file_path] for each in task.delete_files):
        kept[table.filter(pc.equal(table["file_path"], task.file.file_path))["pos"].to_numpy()] = False
    return pa.array(kept)


def _identities(found: Any, file: Any, fields: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values by which a file is partitioned, of columns that are partitioned by their own value."""
    by_number = {int(each.metadata[FIELD_ID]): each for each in fields}
    values = {}
    for position, each in enumerate(found.specs()[file.spec_id].fields):
        column = by_number.get(each.source_id)
        if column is not None and str(each.transform) == "identity":
            values[column.name] = constant_of(file.partition[position], column.type)
    return values


_KINDS: dict[str, Callable[..., tuple[ParquetFiles, dict[str, Any]]]] = {
    "parquet": _parquet,
    "delta": _delta,
    "iceberg": _iceberg,
}


def _missing(call: str, library: str, extra: str) -> SpecError:
    return SpecError(f"{call} needs {library}, which is not installed: pip install 'tensorflowonspark[{extra}]'")
