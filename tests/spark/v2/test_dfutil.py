"""``dfutil`` with Spark: DataFrames to TFRecord files and back."""

import base64
import datetime
import decimal
import gc
import os

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row

import tensorflowonspark as tfos
from tensorflowonspark import dfutil
from tests.support.tfrecord_examples import example, floats, ints, texts, write

pytestmark = pytest.mark.smoke

local = pytest.mark.masters("local")


def load(spark, path, *binary):
    return dfutil.loadTFRecords(spark.sparkContext, str(path), list(binary))


def collected(frame):
    return [tuple(row) for row in frame.collect()]


# What saveAsTFRecords of 2.2.5 wrote for three rows (n, n % 2 == 0, n / 4, n, "grün n", bytes([n, 255]), [n, -n],
# [n / 2, 1.5], [True, False]).
OF_2X = base64.b64decode(
    "mgAAAAAAAAARwyBKCpcBCg0KA3JhdxIGCgQKAgD/Cg8KBWxvbmdzEgYaBAoCAAAKFgoGZmxvYXRzEgwSCgoIAAAAAAAAwD8KDQoB"
    "ZhIIEgYKBAAAAAAKDwoFZmxhZ3MSBhoECgIBAAoNCgFkEggSBgoEAAAAAAoNCgRmbGFnEgUaAwoBAQoKCgFpEgUaAwoBAAoTCgR0"
    "ZXh0EgsKCQoHZ3LDvG4gMJ1wTPWjAAAAAAAAALPHvy4KoAEKDQoDcmF3EgYKBAoCAf8KGAoFbG9uZ3MSDxoNCgsB////////////"
    "AQoWCgZmbG9hdHMSDBIKCggAAAA/AADAPwoNCgFmEggSBgoEAACAPgoPCgVmbGFncxIGGgQKAgEACg0KAWQSCBIGCgQAAIA/Cg0K"
    "BGZsYWcSBRoDCgEACgoKAWkSBRoDCgEBChMKBHRleHQSCwoJCgdncsO8biAxwIrXG6MAAAAAAAAAs8e/LgqgAQoNCgNyYXcSBgoE"
    "CgIC/woYCgVsb25ncxIPGg0KCwL+//////////8BChYKBmZsb2F0cxIMEgoKCAAAgD8AAMA/Cg0KAWYSCBIGCgQAAAA/Cg8KBWZs"
    "YWdzEgYaBAoCAQAKDQoBZBIIEgYKBAAAAEAKDQoEZmxhZxIFGgMKAQEKCgoBaRIFGgMKAQIKEwoEdGV4dBILCgkKB2dyw7xuIDI2"
    "RqjY"
)


@local
def test_a_file_that_2x_wrote(spark, tmp_path):
    os.makedirs(tmp_path / "records")
    (tmp_path / "records/part-r-00000").write_bytes(OF_2X)
    (tmp_path / "records/_SUCCESS").touch()
    frame = load(spark, tmp_path / "records", "raw")
    assert frame.schema.simpleString() == (
        "struct<d:double,f:double,flag:bigint,flags:array<bigint>,floats:array<double>,i:bigint,longs:array<bigint>,"
        "raw:binary,text:string>"
    )
    assert collected(frame) == [
        (n, n / 4, int(n % 2 == 0), [1, 0], [n / 2, 1.5], n, [n, -n], bytes([n, 255]), f"grün {n}") for n in range(3)
    ]


TYPES = (
    "byte tinyint, short smallint, int int, long bigint, float float, double double, flag boolean, text string, "
    "raw binary, day date, moment timestamp, price decimal(12,3), ints array<int>, floats array<double>, "
    "flags array<boolean>, texts array<string>, raws array<binary>, days array<date>, moments array<timestamp>, "
    "prices array<decimal(5,1)>"
)
DAY, MOMENT = datetime.date(1969, 7, 20), datetime.datetime(2026, 7, 21, 1, 2, 3, 456789)
MICROSECONDS = (MOMENT.astimezone() - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)) // datetime.timedelta(
    microseconds=1
)
PRICE, SMALL = decimal.Decimal("-123456789.125"), decimal.Decimal("0.1")
FULL = (
    1, -2, 2**31 - 1, -(2**63), 1.5, -2.25, True, "grün", b"\x00\xff", DAY, MOMENT, PRICE,
    [1, -1], [1.0, -1.0], [True, False], ["a", "", "ü"], [b"", b"\x80"], [DAY, DAY], [MOMENT, MOMENT], [SMALL, SMALL],
)  # fmt: skip
READ = {
    "byte": 1, "short": -2, "int": 2**31 - 1, "long": -(2**63), "float": 1.5, "double": -2.25, "flag": 1,
    "text": "grün", "raw": b"\x00\xff", "day": -165, "moment": MICROSECONDS, "price": str(PRICE), "ints": [1, -1],
    "floats": [1.0, -1.0], "flags": [1, 0], "texts": ["a", "", "ü"], "raws": [b"", b"\x80"], "days": [-165, -165],
    "moments": [MICROSECONDS, MICROSECONDS], "prices": ["0.1", "0.1"],
}  # fmt: skip
NULLS = (None,) * len(FULL)
EMPTY = tuple([] if isinstance(each, list) else None for each in FULL)


@local
def test_all_types_with_nulls_and_empty_arrays(spark, tmp_path):
    frame = spark.createDataFrame([FULL, NULLS, EMPTY], TYPES).coalesce(1)
    dfutil.saveAsTFRecords(frame, str(tmp_path / "records"))
    again = load(spark, tmp_path / "records")
    full, nulls, empty = (row.asDict() for row in again.collect())
    assert full == READ
    assert set(nulls.values()) == {None}
    assert empty == {name: [] if isinstance(value, list) else None for name, value in READ.items()}
    by_hand = frame.rdd.mapPartitions(dfutil.toTFExample(frame.dtypes)).collect()
    assert [tuple(row) for row in dfutil.fromTFExample(by_hand)] == collected(again)


@pytest.mark.slow
@local
def test_vectors(spark, tmp_path):
    frame = spark.createDataFrame([(Vectors.sparse(3, [1], [5.0]),), (None,)], ["v"]).coalesce(1)
    assert frame.dtypes == [("v", "vector")]
    pairs = frame.rdd.mapPartitions(dfutil.toTFExample(frame.dtypes)).collect()
    assert dfutil.fromTFExample(pairs) == [Row(v=[0.0, 5.0, 0.0]), Row(v=None)]
    dfutil.saveAsTFRecords(frame, str(tmp_path / "records"))
    assert collected(load(spark, tmp_path / "records")) == [([0.0, 5.0, 0.0],), (None,)]


@local
def test_the_schema_is_reported_by_all_records(spark, tmp_path):
    records = [
        example(a=ints(1), b=ints(1), c=texts(b"one"), d=texts(b"x")),
        example(a=ints(1, 2), b=floats(0.5), c=texts(b"one", b"two"), d=texts(b"\xff"), e=ints(7)),
    ]
    frame = load(spark, write(tmp_path / "records", *records))
    assert frame.schema.simpleString() == "struct<a:array<bigint>,b:double,c:array<string>,d:binary,e:bigint>"
    expected = [([1], 1.0, ["one"], b"x", None), ([1, 2], 0.5, ["one", "two"], b"\xff", 7)]
    assert collected(frame) == expected
    rows = dfutil.fromTFExample((each.SerializeToString(), None) for each in records)
    assert [tuple(row) for row in rows] == expected
    assert rows[0].a == [1]


@pytest.mark.slow
@local
def test_a_directory_that_is_there_is_not_touched(spark, tmp_path):
    path = str(tmp_path / "records")
    dfutil.saveAsTFRecords(spark.range(3), path)
    before = sorted(os.listdir(path))
    assert all(name.startswith("part-r-0000") for name in before if name != "_SUCCESS")  # as 2.x named them
    with pytest.raises(tfos.SpecError, match=r"something at .*records: take another .*write_tfrecord\(df, path, mode="):
        dfutil.saveAsTFRecords(spark.range(3), path)
    assert sorted(os.listdir(path)) == before


@pytest.mark.slow
@local
def test_paths_are_those_of_the_default_file_system(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dfutil.saveAsTFRecords(spark.range(2), "here")
    assert os.path.exists(tmp_path / "here/_SUCCESS")
    os.makedirs(tmp_path / "root")
    spark.conf.set("fs.defaultFS", f"file://{tmp_path}/root")
    try:
        dfutil.saveAsTFRecords(spark.range(3), "/one")
        dfutil.saveAsTFRecords(spark.range(4), "/two")
        assert os.path.exists(tmp_path / "root/one/_SUCCESS")
        assert load(spark, "/one").count() == 3
        assert load(spark, "/one,/two").count() == 7
        assert load(spark, "/t*").count() == 4
    finally:
        spark.conf.unset("fs.defaultFS")


@local
def test_what_was_loaded_is_known_and_not_kept(spark, tmp_path):
    path = write(tmp_path / "records", example(a=ints(1)))
    frame = load(spark, path)
    assert dfutil.isLoadedDF(frame)
    assert not dfutil.isLoadedDF(frame.select("a"))
    before = len(dfutil._loaded)
    del frame
    gc.collect()
    assert len(dfutil._loaded) == before - 1


@local
def test_what_can_not_be_loaded_or_saved(spark, tmp_path):
    with pytest.raises(tfos.SpecError, match="no file or directory"):
        load(spark, tmp_path / "none")
    with pytest.raises(tfos.SpecError, match="no records"):
        load(spark, write(tmp_path / "empty"))
    with pytest.raises(tfos.SpecError, match="column 'm' has type map<int32, int32.*>: a feature has no keys"):
        dfutil.saveAsTFRecords(spark.sql("select map(1, 2) as m"), str(tmp_path / "records"))
    assert not os.path.exists(tmp_path / "records")
