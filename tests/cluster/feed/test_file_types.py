"""One file read by Spark and fed, and read by the nodes themselves: the same values and dtypes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tests.support.file_types import MICROS, cases, of_struct

pytestmark = pytest.mark.masters("local")

ZONE = "America/New_York"
FIVE_HOURS = 5 * 3600 * 1_000_000
OUTPUTS = ("INT96", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS")
FAR = "'9999-12-31 00:00:00', '1600-01-01 00:00:00', '2024-02-03 04:05:06'"


def program(args, ctx):
    """Return the dtypes and values of all rows, of each feed and of the same files read by the node."""
    found = {}
    for fed, (name, call, path) in zip(ctx.feeds(), args, strict=True):
        found[name] = []
        for feed in (fed, getattr(ctx, call)(path)):
            fill = {"nulls": -1} if "nulls" in feed.columns else None
            (batch,) = feed.batches(10, fill=fill, shuffle=False)
            real = batch.pop("sample_weight") != 0
            found[name].append({column: (str(each.dtype), each[real].tolist()) for column, each in batch.items()})
    return found


@pytest.fixture
def zoned(spark):
    settings = {"spark.sql.session.timeZone": ZONE, "spark.sql.parquet.outputTimestampType": "INT96"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def test_spark_and_nodes_read_the_same(zoned, tmp_path):
    known = {name: case for name, case in cases().items() if case.spark is not None}
    folder = tmp_path / "arrow" / "day=2024-02-03" / "moment=2024-02-03 04%3A05%3A06" / f"most={1 << 63}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({name: case.column for name, case in known.items()}), folder / "1.parquet")
    sources = {"arrow": ("read_parquet", zoned.read.parquet(str(tmp_path / "arrow")))}
    for kind in OUTPUTS:
        zoned.conf.set("spark.sql.parquet.outputTimestampType", kind)
        rows = zoned.sql(f"select id, element_at(array({FAR}), cast(id + 1 as int))::timestamp as t from range(3)")
        rows.coalesce(1).write.parquet(str(tmp_path / kind))
        sources[kind] = "read_parquet", zoned.read.parquet(str(tmp_path / kind))
    parted = "select id, date'2024-02-03' as day, timestamp'2024-02-03 04:05:06' as moment, 2.0d as x from range(2)"
    tfos.write_tfrecord(zoned.sql(parted).coalesce(1), str(tmp_path / "records"), partition_by=["day", "moment", "x"])
    sources["records"] = "read_tfrecord", tfos.read_tfrecord(zoned, str(tmp_path / "records"))
    args = [(name, call, str(tmp_path / name)) for name, (call, _) in sources.items()]
    with tfos.Cluster(zoned, program, args, num_workers=1) as cluster:
        for _, frame in sources.values():
            cluster.train(frame)
        (found,) = cluster.join().values()

    fed, read = found["arrow"]
    assert fed.keys() == read.keys()
    for name, case in known.items():
        dtype, (value,) = read[of_struct(name)]
        assert dtype == case.dtype, name
        if case.spark == "its own unit":  # Parquet has no durations
            assert fed[name] == ("int64", case.column.cast(pa.int64()).to_pylist())
        else:
            wanted = case.dtype if case.spark == "same" else case.spark  # uint64 is a decimal there, so a float64
            assert fed[of_struct(name)] == (wanted, [value if wanted == "object" else np.array(value, wanted).tolist()])
    far = {"id": ("int64", [0, 1, 2])}
    parts = {"day": ("int32", [19756]), "moment": ("int64", [MICROS + FIVE_HOURS]), "most": ("float64", [2.0**63])}
    assert {name: fed[name] for name in parts} == {name: read[name] for name in parts} == parts
    for kind in OUTPUTS:
        assert found[kind][0] == found[kind][1], kind
        assert found[kind][0]["t"] == found["INT96"][0]["t"]
        assert found[kind][0]["id"] == far["id"]
        assert found[kind][0]["t"][1][2] == MICROS + FIVE_HOURS
    assert found["records"][0] == found["records"][1]
    assert found["records"][0]["moment"] == ("int64", [MICROS + FIVE_HOURS] * 2)
    assert found["records"][0]["x"] == ("float64", [2.0, 2.0])
