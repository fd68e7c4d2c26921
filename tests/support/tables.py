"""Small Delta and Iceberg tables, made by their own libraries."""

import pyarrow as pa

from tensorflowonspark.node.feed.delta_source import DeltaSource
from tensorflowonspark.node.feed.iceberg_source import IcebergSource
from tensorflowonspark.node.feed.parquet_source import ParquetSource

_SOURCES = {each.kind: each for each in (ParquetSource, DeltaSource, IcebergSource)}


def listed(kind, source, columns=None, rows=None):
    """Return what a source of a kind lists, by its arguments, and by columns and a filter of rows."""
    return _SOURCES[kind](**source, columns=columns, filter=rows).find()


def rows_of(ids):
    """Return a table of ids, a float array for each, and a day for every hundred."""
    ids = list(ids)
    x = pa.array([[float(each), 1.0] for each in ids], pa.list_(pa.float32()))
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "x": x, "day": pa.array([each // 100 for each in ids], pa.int64())}
    )


def make_delta(path, ids):
    """Write a Delta table, partitioned by day; return its directory."""
    from deltalake import write_deltalake

    write_deltalake(str(path), rows_of(ids), partition_by=["day"])
    return path


def make_iceberg(directory, ids):
    """Write an Iceberg table, partitioned by day; return the location of its metadata."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import IdentityTransform

    catalog = SqlCatalog("default", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}")
    catalog.create_namespace("db")
    rows = rows_of(ids)
    table = catalog.create_table("db.rows", schema=rows.schema)
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    table.append(rows)
    catalog.engine.dispose()
    return table.metadata_location
