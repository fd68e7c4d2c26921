"""Iceberg tables; their library is optional."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.file_columns import FIELD_ID, DataFile, ParquetFiles, constant_of
from tensorflowonspark.node.feed.parquet_source import ParquetBased, missing
from tensorflowonspark.run_manifest import Record
from tensorflowonspark.secrecy import without_secrets

_FILE_ACCESS = "py-io-impl"  # a property of pyiceberg
_DELETE_FILES_AT_A_TIME = 16
_KNOWN_ACCESS = ("pyiceberg.io.fsspec.FsspecFileIO", "pyiceberg.io.pyarrow.PyArrowFileIO")
_pyiceberg = threading.Lock()  # while a name of its is replaced


@dataclass(frozen=True)
class IcebergSource(ParquetBased):
    """The files of a snapshot of a table, by default of the current one."""

    kind: ClassVar[str] = "iceberg"
    table: str
    snapshot: int | str | None = None
    catalog: str | Mapping[str, str] | None = None
    schema_id: int | None = None

    @property
    def of_table(self) -> Record:
        """The table and its snapshot."""
        return {"table": without_secrets(self.table), "snapshot": self.snapshot}

    def files(self) -> "tuple[ParquetFiles, IcebergSource]":
        """List them, without the rows that delete files mark."""
        try:
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError as error:
            raise missing("ctx.read_iceberg", "pyiceberg", "iceberg") from error
        try:
            found = _table(self.table, self.catalog)
            chosen, schema = _snapshot_of(found, self.snapshot)
            if self.schema_id is not None:
                schema = found.schemas()[self.schema_id]
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
            raise SpecError(f"{self.table} can't be read as an Iceberg table: {error}") from error
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
        ), replace(self, snapshot=chosen, schema_id=schema.schema_id)


def _table(table: str, catalog: str | Mapping[str, str] | None) -> Any:
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
