"""Types, readers and writers: a program gets one value, whichever library wrote a file and whoever reads it."""

import datetime as dt
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from tensorflowonspark import storage
from tensorflowonspark.columns import flat_columns, kind_of, summarize, to_array
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
from tensorflowonspark.storage.partition_columns import directory_of, partition_text, partition_value
from tests.support.file_types import MICROS, MOMENT, cases, of_struct
from tests.support.tables import listed

CASES = cases()


def groups_of(kind, source, columns=None, rows=None):
    return listed(kind, source, columns, rows).splits


def value_of(splits, name):
    """Return the one value of a column, as a program gets it."""
    (batch,) = (flat_columns(batch) for split in splits for batch in split.batches())
    column, kind = batch.column(name), batch.schema.field(name).type
    fill = -1 if column.null_count else None
    return to_array(column, kind_of(name, kind, summarize(batch)[name], fill=fill))[0]


def parquet_of(path, rows):
    pq.write_table(rows, path / "rows.parquet")
    return "parquet", {"paths": [str(path)]}


def delta_of(path, rows, partition=None):
    write_deltalake(str(path), rows, partition_by=partition)
    return "delta", {"table": str(path), "version": None, "storage_options": None}


def iceberg_of(path, rows, partition=None):
    catalog = SqlCatalog("default", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    catalog.create_namespace("db")
    try:
        table = catalog.create_table("db.rows", schema=rows.schema)
        with table.update_spec() as spec:
            for name in partition or ():
                spec.add_field(name, IdentityTransform(), name)
        table.append(rows)
        return "iceberg", {"table": table.metadata_location, "snapshot": None, "catalog": None}
    finally:
        catalog.engine.dispose()


WRITERS = {"parquet": parquet_of, "delta": delta_of, "iceberg": iceberg_of}


@pytest.mark.deep
@pytest.mark.parametrize("writer", WRITERS)
def test_one_value_of_each_type(tmp_path, writer):
    """A cell is equal, or refused by name, or the table's library does not write the type."""
    equal, refused = [], {}
    for name, case in CASES.items():
        (path := tmp_path / name).mkdir()
        try:
            written = WRITERS[writer](path, pa.table({name: case.column}))
        except Exception:
            assert writer != "parquet"
            continue
        try:
            found = value_of(groups_of(*written), of_struct(name))
        except (SpecError, FeedError) as error:
            refused[name] = str(error)
            continue
        np.testing.assert_array_equal(found, case.value, err_msg=name)
        if writer == "parquet":  # a table may have a wider type
            assert str(getattr(found, "dtype", "object")) == case.dtype, name
        equal.append(name)
    print(f"{writer}: {len(equal)} equal, {len(refused)} refused: {[*refused]}")
    assert not refused or writer == "delta"
    assert all(str(tmp_path / name) in text for name, text in refused.items())
    assert len(equal) >= (len(CASES) if writer == "parquet" else 20)


# ---- units of time


FAR = [dt.datetime(9999, 12, 31), dt.datetime(1500, 1, 1), MOMENT]


@pytest.fixture
def int96(tmp_path):
    """Spark's old timestamps, of which Arrow writes only those that its nanoseconds hold."""
    pq.write_table(pa.table({"id": [0, 1, 2], "t": pa.array(FAR, pa.timestamp("us"))}), tmp_path / "new.parquet")
    path = tmp_path / "old"
    path.mkdir()
    near = [dt.datetime(2100, 1, 1), dt.datetime(2100, 1, 2), MOMENT]
    old = pa.table({"id": [0, 1, 2], "t": pa.array(near, pa.timestamp("us"))})
    pq.write_table(
        old, path / "a.parquet", use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none"
    )
    data = (path / "a.parquet").read_bytes()
    for moment, far in zip(near[:2], FAR, strict=False):  # eight bytes of the time of day, and the Julian day
        data = data.replace(_int96(moment), _int96(far))
    (path / "a.parquet").write_bytes(data)
    return path


def _int96(moment):
    day = (moment - dt.datetime(1970, 1, 1)).days + 2_440_588
    return bytes(8) + day.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        (None, [0, 1, 2]),
        (pc.field("t") > pa.scalar(dt.datetime(2030, 1, 1)), [0]),
        (pc.field("t") < pa.scalar(dt.datetime(1600, 1, 1)), [1]),
        (pc.field("t") == pa.scalar(MOMENT), [2]),
    ],
)
def test_far_dates_of_int96(int96, expression, ids):
    rows = [
        row
        for group in groups_of("parquet", {"paths": [str(int96)]}, None, expression)
        for batch in group.batches()
        for row in batch.to_pylist()
    ]
    assert rows == [{"id": each, "t": FAR[each]} for each in ids]


def test_far_dates_of_int96_in_a_delta_table(int96, tmp_path):
    path = tmp_path / "table"
    write_deltalake(str(path), pq.read_table(tmp_path / "new.parquet"))
    (file,) = path.glob("*.parquet")
    file.write_bytes((int96 / "a.parquet").read_bytes())
    groups = groups_of(
        "delta", {"table": str(path), "version": None, "storage_options": None}, None, pc.field("id") < 2
    )
    assert [row["t"] for group in groups for batch in group.batches() for row in batch.to_pylist()] == FAR[:2]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_filter_compares_what_is_stored(tmp_path, unit):
    """Also what microseconds do not show, and in files of several units."""
    column = pa.array([0, 1, 2], pa.timestamp(unit))
    pq.write_table(pa.table({"id": [0, 1, 2], "t": column}), tmp_path / "2.parquet", version="2.6", row_group_size=1)
    pq.write_table(pa.table({"id": [3], "t": pa.array([10**15], pa.timestamp("us"))}), tmp_path / "1.parquet")
    stored = pa.timestamp("ms") if unit == "s" else pa.timestamp(unit)
    groups = groups_of("parquet", {"paths": [str(tmp_path)]}, None, pc.field("t") <= column.cast(stored)[1])
    assert [group.number for group in groups] == [0, 1]  # others are excluded by statistics
    rows = [row for group in groups for batch in group.batches() for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [0, 1]
    factor = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}[unit]
    assert rows[1]["t"] == dt.datetime(1970, 1, 1) + factor * dt.timedelta(microseconds=1)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.duration("s"), pa.list_(pa.duration("s"))])
def test_a_time_that_microseconds_can_not_hold_is_named(tmp_path, kind):
    value = (
        pa.array([[1 << 60]], pa.list_(pa.int64())).cast(kind)
        if pa.types.is_list(kind)
        else pa.array([1 << 60]).cast(kind)
    )
    pq.write_table(pa.table({"t": value}), tmp_path / "1.parquet")
    (group,) = groups_of("parquet", {"paths": [str(tmp_path)]})
    with pytest.raises(FeedError, match="1.parquet, row group 0 can't be read: column t: .*out of bounds"):
        list(group.batches())


def test_a_column_of_nulls_in_the_first_file_has_the_type_of_the_next(tmp_path):
    for number, column in enumerate([pa.nulls(1), pa.array(["a"]), pa.nulls(1)]):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    groups = groups_of("parquet", {"paths": [str(tmp_path)]})
    assert [batch.column("x").to_pylist() for group in groups for batch in group.batches()] == [[None], ["a"], [None]]


# ---- partition columns

DIRECTORIES = [  # texts, the type that Spark infers, the values of a program
    (["7", "-8"], pa.int32(), [7, -8]),
    (["2147483648", "+7"], pa.int64(), [1 << 31, 7]),
    (["9223372036854775807"], pa.int64(), [(1 << 63) - 1]),
    (["9223372036854775808"], pa.decimal128(19, 0), [2.0**63]),
    (["1e5", "7"], pa.decimal128(10, 0), [1e5, 7.0]),
    (["9" * 39], pa.float64(), [1e39]),
    (["1.5", "7", "3d", "NaN"], pa.float64(), [1.5, 7, 3, np.nan]),
    (["1.5", "2147483648"], pa.string(), ["1.5", "2147483648"]),
    (["1.5", "9223372036854775808"], pa.string(), ["1.5", "9223372036854775808"]),
    (["2024-02-03", "0001-01-01"], pa.date32(), [19756, -719162]),
    (["2024-02-03 04:05:06"], pa.timestamp("us", "UTC"), [MICROS]),
    (["2024-02-03 04:05:06.5", "2024-02-03"], pa.timestamp("us", "UTC"), [MICROS + 500_000, 19756 * 86_400_000_000]),
    (["2024-02-30"], pa.string(), ["2024-02-30"]),
    (["2024-2-3"], pa.string(), ["2024-2-3"]),
    (["2024-02-03 04:05:06.123456"], pa.string(), ["2024-02-03 04:05:06.123456"]),
    (["7", "2024-02-03"], pa.string(), ["7", "2024-02-03"]),
    (["7", "a", "1_000"], pa.string(), ["7", "a", "1_000"]),
    (["7", None], pa.int32(), [7, -1]),
    ([None], pa.string(), [""]),
]


def partitioned(path, texts, kind):
    """Write a file in a directory for each text; return the readers' values in their order."""
    for number, text in enumerate(texts):
        folder = path / directory_of("p", text)
        folder.mkdir(parents=True)
        if kind == "parquet":
            pq.write_table(pa.table({"id": [number]}), folder / "1.parquet")
        else:
            (folder / "1.tfrecord").write_bytes(record(number))
    if kind == "parquet":
        splits = groups_of("parquet", {"paths": [str(path)]})
    else:
        splits, _ = tfrecord_splits([str(path)], None, None, {})
    batches = [batch for split in splits for batch in split.batches()]
    rows = pa.Table.from_batches(batches).sort_by("id").combine_chunks().to_batches()[0]
    column, summary = rows.column("p"), summarize(rows)["p"]
    fill = None if not summary.nulls else "" if pa.types.is_string(column.type) else -1
    return column.type, to_array(column, kind_of("p", column.type, summary, fill=fill))


def record(number):
    from tensorflowonspark.tfrecords.encode import encode
    from tensorflowonspark.tfrecords.framing import framed

    return framed(encode(pa.record_batch({"id": [number]}), False)).tobytes()


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
@pytest.mark.parametrize(("texts", "type_", "values"), DIRECTORIES, ids=lambda each: str(each)[:30])
def test_directories_have_the_types_that_spark_infers(tmp_path, kind, texts, type_, values):
    found, array = partitioned(tmp_path, texts, kind)
    assert found == type_
    np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize(
    ("zone", "text", "hour"),
    [
        ("America/New_York", "2024-02-03 04:05:06", 9),
        ("+01:00", "2024-02-03 04:05:06", 3),
        ("GMT-2", "2024-02-03 04:05:06", 6),
        ("America/New_York", "2024-03-10 02:30:00", 7),  # which the clock skips
        ("America/New_York", "2024-11-03 01:30:00", 5),  # which it shows twice
    ],
)
def test_a_timestamp_is_in_the_time_zone_of_sparks_session(tmp_path, zone, text, hour):
    storage.use({"spark.sql.session.timeZone": zone})
    try:
        _, (found,) = partitioned(tmp_path, [text], "parquet")
    finally:
        storage.use({})
    local = dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc)
    assert found == int(local.replace(hour=hour).timestamp()) * 1_000_000


@pytest.mark.parametrize(("text", "kind"), [("abc", pa.int32()), ("300", pa.int8()), ("7", pa.date32())])
def test_a_directory_whose_value_is_not_of_a_given_type(text, kind):
    message = f"a directory's name has the value '{text}', which is no {kind}: give the column another type"
    with pytest.raises(SpecError, match=re.escape(message)):
        partition_value(text, kind)


def test_values_are_written_as_spark_writes_them():
    storage.use({"spark.sql.session.timeZone": "America/New_York"})
    try:
        moments = pa.array([MOMENT, None], pa.timestamp("us"))
        assert partition_text(moments).to_pylist() == ["2024-02-03 04:05:06", ""]
        assert partition_text(moments.cast(pa.timestamp("us", "UTC"))).to_pylist() == ["2024-02-02 23:05:06", ""]
        assert partition_text(pa.array([2.0, float("nan")])).to_pylist() == ["2.0", "NaN"]
        assert partition_text(pa.array([MOMENT.date()])).to_pylist() == ["2024-02-03"]
    finally:
        storage.use({})


def test_partition_values_of_tables(tmp_path):
    day = MOMENT.date()
    columns = {
        "id": [1],
        "d": pa.array([day]),
        "t": pa.array([MOMENT], pa.timestamp("us")),
        "n": pa.array([(1 << 63) - 1]),
    }
    columns["c"] = pa.array([Decimal("1.25")], pa.decimal128(20, 2))
    names = ["d", "t", "n", "c"]
    found = {}
    for writer, more in (("delta", {}), ("iceberg", {"h": pa.array([dt.time(0, 0, 7)], pa.time64("us"))})):
        (path := tmp_path / writer).mkdir()
        written = WRITERS[writer](path, pa.table({**columns, **more}), [*names, *more])
        found[writer] = [value_of(groups_of(*written), name) for name in (*names, *more)]
        kept = groups_of(*written, ["id"], (pc.field("d") == day) & (pc.field("t") == MOMENT) & (pc.field("n") > 5))
        assert len(kept) == 1
    assert found["delta"] == found["iceberg"][:4] == [19756, MICROS, (1 << 63) - 1, 1.25]
    assert found["iceberg"][4] == 7_000_000_000


# ---- footers


def test_a_footer_that_can_not_be_read_is_named_by_its_file(tmp_path):
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"x": range(5)}), path)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    for footer in (b"\xff" * size + data[-8:], data[-8 - size : -4] + b"PARE"):
        path.write_bytes(data[: -8 - size] + footer)
        for expression in (None, pc.field("x") > 1):
            with pytest.raises(SpecError, match="1.parquet"):
                groups_of("parquet", {"paths": [str(tmp_path)]}, None, expression)
