"""Delta tables; their library is optional."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.file_columns import DataFile, ParquetFiles, constant_of
from tensorflowonspark.node.feed.parquet_source import ParquetBased, missing
from tensorflowonspark.run_manifest import Record
from tensorflowonspark.secrecy import without_secrets

# What a reader of a Delta table must know, and its library or this module does. Other features are refused.
_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


@dataclass(frozen=True)
class DeltaSource(ParquetBased):
    """The files of a version of a table, by default of the newest."""

    kind: ClassVar[str] = "delta"
    table: str
    version: int | None = None
    storage_options: Mapping[str, str] | None = None

    @property
    def of_table(self) -> Record:
        """The table and its version."""
        return {"table": without_secrets(self.table), "version": self.version}

    def files(self) -> "tuple[ParquetFiles, DeltaSource]":
        """List them, without the rows that deletion vectors mark."""
        options = self.storage_options
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError as error:
            raise missing("ctx.read_delta", "deltalake", "delta") from error
        try:
            found = DeltaTable(self.table, version=self.version, storage_options=options and dict(options))
            _check(self.table, found)
            added = pa.table(found.get_add_actions(flatten=True)).to_pylist()
            deleted = _deletion_vectors(self.table, found)
            schema = pa.schema(found.schema().to_arrow())
        except (DeltaError, OSError, ValueError) as error:
            raise SpecError(f"{self.table} can't be read as a Delta table: {error}") from error
        partitions = found.metadata().partition_columns
        files = []
        for each in sorted(added, key=lambda each: str(each["path"])):
            constants = {name: constant_of(each[f"partition.{name}"], schema.field(name).type) for name in partitions}
            path = each["path"]
            uri = path if "://" in path else f"{found.table_uri.rstrip('/')}/{path}"
            if "://" not in path:
                path = f"{self.table.rstrip('/')}/{unquote(path)}"
            files.append(DataFile(path, constants, deleted.pop(uri, None)))
        if deleted:
            raise SpecError(f"{self.table} has deletion vectors of files that it does not list: {', '.join(deleted)}")
        return ParquetFiles(files, schema), replace(self, version=found.version())


def _check(table: str, found: Any) -> None:
    """Raise a SpecError if a table has features that are not supported."""
    features = set(found.protocol().reader_features or ())
    if found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if unknown := sorted(features - _FEATURES):
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
