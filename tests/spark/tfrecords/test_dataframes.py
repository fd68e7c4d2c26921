"""DataFrames to files of records and back, by plain functions, on every Spark that is supported."""

import datetime
import decimal
import os

import numpy as np
import pyspark
import pytest
import tensorflow as tf
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import tensorflowonspark as tfos
from tensorflowonspark.storage.listing import UNSUPPORTED
from tensorflowonspark.tfrecords.options import SETTINGS
from tests.support.file_settings import WITHOUT_MEANING
from tests.support.file_trees import STRICTER, TREES, grow
from tests.support.tfrecord_examples import example, floats, ints, texts, write

pytestmark = pytest.mark.masters("local")

TYPES = (
    "byte tinyint, short smallint, int int, long bigint, float float, double double, flag boolean, text string, "
    "raw binary, day date, moment timestamp, price decimal(12,3), ints array<int>, longs array<bigint>, "
    "floats array<float>, doubles array<double>, flags array<boolean>, texts array<string>, raws array<binary>, "
    "days array<date>, prices array<decimal(5,1)>"
)
DAY, MOMENT = datetime.date(1969, 7, 20), datetime.datetime(2026, 11, 21, 1, 2, 3, 456789)
FULL = Row(
    1, -2, 2**31 - 1, -(2**63), 1.5, -2.25, True, "grün", b"\x00\xff", DAY, MOMENT, decimal.Decimal("-123456789.125"),
    [1, -1], [2**40, -(2**62), 0], [0.5], [1.0, -1.0], [True, False], ["a", "", "ü"], [b"", b"\x80"], [DAY],
    [decimal.Decimal("0.1")],
)  # fmt: skip
NULLS = Row(*[None] * len(FULL))
EMPTY = Row(*[[] if isinstance(each, list) else each for each in FULL])


def collected(frame):
    return [tuple(row) for row in frame.collect()]


@pytest.mark.smoke
def test_all_types_both_ways(spark, tmp_path):
    frame = spark.createDataFrame([FULL, NULLS, EMPTY], TYPES).coalesce(1)
    path = str(tmp_path / "records")
    tfos.write_tfrecord(frame, path)
    assert collected(tfos.read_tfrecord(spark, path, frame.schema)) == collected(frame)
    names = sorted(os.listdir(path))
    assert names[0] == "_SUCCESS"
    assert all(name.startswith("part-00000-") and name.endswith(".tfrecord") for name in names[1:])


@pytest.mark.smoke
def test_tensorflow_reads_what_was_written(spark, tmp_path):
    frame = spark.range(0, 100, 1, 3).selectExpr("id", "array(float(id), 2f) as x", "concat('row ', id) as name")
    path = str(tmp_path / "records")
    tfos.write_tfrecord(frame, path, compression="gzip")
    data = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{path}/part-*"), "GZIP").batch(200)
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([2], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    (found,) = [tf.io.parse_example(batch, spec) for batch in data]
    order = np.argsort(found["id"].numpy())
    assert found["id"].numpy()[order].tolist() == list(range(100))
    assert found["x"].numpy()[order].tolist() == [[float(each), 2.0] for each in range(100)]
    assert found["name"].numpy()[order].tolist() == [b"row %d" % each for each in range(100)]
    assert sorted(collected(tfos.read_tfrecord(spark, path).select("id"))) == [(each,) for each in range(100)]


def test_vectors(spark, tmp_path):
    rows = [(0, Vectors.dense([1.0, 2.0, 3.0])), (1, Vectors.sparse(3, [1], [5.0])), (2, None)]
    schema = StructType().add("id", "long").add("v", VectorUDT())
    path = str(tmp_path / "records")
    tfos.write_tfrecord(spark.createDataFrame(rows, schema).coalesce(1), path)
    assert collected(tfos.read_tfrecord(spark, path).orderBy("id")) == [
        (0, [1.0, 2.0, 3.0]), (1, [0.0, 5.0, 0.0]), (2, None),
    ]  # fmt: skip
    dense = [tuple(row) for row in tfos.read_tfrecord(spark, path, schema).orderBy("id").collect()]
    assert dense == [(0, Vectors.dense(1, 2, 3)), (1, Vectors.dense(0, 5, 0)), (2, None)]


def test_columns_are_inferred_over_all_records(spark, tmp_path):
    write(
        tmp_path / "records",
        example(a=ints(1), b=ints(1), c=texts(b"text"), d=texts(b"\xff"), e=floats(), g=ints()),
        example(a=ints(1, 2), b=floats(0.5), c=texts(b"x"), e=floats(1.0), f=ints(7), g=ints()),
    )
    frame = tfos.read_tfrecord(spark, str(tmp_path / "records"), sample_records=0)
    assert frame.schema.simpleString() == (
        "struct<a:array<bigint>,b:float,c:string,d:binary,e:float,f:bigint,g:bigint>"
    )
    assert collected(frame) == [
        ([1], 1.0, "text", b"\xff", None, None, None),
        ([1, 2], 0.5, "x", None, 1.0, 7, None),
    ]
    told = tfos.read_tfrecord(spark, str(tmp_path / "records"), float_type="double", binary_features="c")
    assert told.schema["b"].dataType.simpleString() == "double"
    assert told.schema["c"].dataType.simpleString() == "binary"


def test_sequence_examples(spark, tmp_path):
    rows = [(1, [[1, 2], [], [3]], [["a"], ["b", "c"]]), (2, [], None), (3, None, [[]])]
    frame = spark.createDataFrame(rows, "id bigint, steps array<array<bigint>>, words array<array<string>>").coalesce(1)
    path = str(tmp_path / "records")
    tfos.write_tfrecord(frame, path, record_type="SequenceExample")
    again = tfos.read_tfrecord(spark, path, record_type="SequenceExample")
    assert again.schema.simpleString() == frame.schema.simpleString()
    assert collected(again.orderBy("id")) == rows
    (file,) = tf.io.gfile.glob(f"{path}/part-*")
    first = next(iter(tf.data.TFRecordDataset(file)))
    context, lists = tf.io.parse_single_sequence_example(
        first, {"id": tf.io.FixedLenFeature([], tf.int64)}, {"steps": tf.io.RaggedFeature(tf.int64)}
    )
    assert context["id"].numpy() == 1
    assert lists["steps"].to_list() == [[1, 2], [], [3]]


def test_a_feature_list_of_one_value_for_each_step(spark, tmp_path):
    steps = tf.train.FeatureLists(feature_list={"x": tf.train.FeatureList(feature=[ints(1), ints(2)])})
    write(tmp_path / "records", tf.train.SequenceExample(feature_lists=steps))
    frame = tfos.read_tfrecord(spark, str(tmp_path / "records"), record_type="SequenceExample")
    assert frame.schema.simpleString() == "struct<x:array<bigint>>"
    assert collected(frame) == [([1, 2],)]


def test_raw_records(spark, tmp_path):
    frame = spark.createDataFrame([(b"\x00anything",), (b"",)], "byteArray binary").coalesce(1)
    path = str(tmp_path / "records")
    tfos.write_tfrecord(frame, path, record_type="ByteArray", compression="zlib")
    assert collected(tfos.read_tfrecord(spark, path, record_type="ByteArray")) == collected(frame)
    with pytest.raises(tfos.SpecError, match="ByteArray are one column, and not id, x"):
        tfos.write_tfrecord(spark.range(3).withColumn("x", f.lit(1)), path, "append", record_type="ByteArray")


def test_save_modes(spark, tmp_path):
    path = str(tmp_path / "records")
    frame = spark.range(3).coalesce(1)
    tfos.write_tfrecord(frame, path)
    with pytest.raises(tfos.SpecError, match="there is something at .*records: give mode='overwrite'"):
        tfos.write_tfrecord(frame, path)
    tfos.write_tfrecord(frame, path, mode="ignore")
    assert tfos.read_tfrecord(spark, path).count() == 3
    tfos.write_tfrecord(frame, path, mode="append")
    assert tfos.read_tfrecord(spark, path).count() == 6
    tfos.write_tfrecord(frame, path, mode="overwrite")
    assert tfos.read_tfrecord(spark, path).count() == 3
    with pytest.raises(tfos.SpecError, match="mode='replace': expected one of append, overwrite"):
        tfos.write_tfrecord(frame, path, mode="replace")


def test_partition_columns(spark, tmp_path):
    path = str(tmp_path / "records")
    frame = spark.createDataFrame([(1, "a/b", 7), (2, None, 8), (3, "c=d", None)], "id int, key string, day int")
    tfos.write_tfrecord(frame.coalesce(1), path, partition_by=["key", "day"])
    assert sorted(os.listdir(path)) == ["_SUCCESS", "key=__HIVE_DEFAULT_PARTITION__", "key=a%2Fb", "key=c%3Dd"]
    again = tfos.read_tfrecord(spark, path)
    assert again.schema.simpleString() == "struct<id:bigint,day:int,key:string>"
    assert collected(again.orderBy("id")) == [(1, 7, "a/b"), (2, 8, None), (3, None, "c=d")]
    # Spark reads such directories in the same way.
    assert spark.read.format("binaryFile").load(path).select("key", "day").where("day = 7").collect() == [("a/b", 7)]
    assert collected(tfos.read_tfrecord(spark, f"{path}/key=c*").select("id")) == [(3,)]


def test_only_the_columns_that_are_wanted(spark, tmp_path):
    write(tmp_path / "records", example(a=ints(1), b=floats(1.5)))
    frame = tfos.read_tfrecord(spark, str(tmp_path / "records"), columns=["b"])
    assert collected(frame) == [(1.5,)]
    with pytest.raises(tfos.SpecError, match=r"columns=\['z'\]: there is no z, only a, b"):
        tfos.read_tfrecord(spark, str(tmp_path / "records"), columns=["z"])


@pytest.mark.slow
def test_a_job_that_fails_leaves_what_was_there(spark, tmp_path):
    path = str(tmp_path / "records")
    tfos.write_tfrecord(spark.range(3).coalesce(1), path)
    before = sorted(os.listdir(path))
    bad = spark.range(0, 100, 1, 2).selectExpr("id", "if(id = 99, raise_error('no'), 1) as x")
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match="no"):
            tfos.write_tfrecord(bad, path, mode=mode)
        assert sorted(os.listdir(path)) == before
    with pytest.raises(Exception, match="no"):
        tfos.write_tfrecord(bad, str(tmp_path / "new"))
    assert not os.path.exists(tmp_path / "new")


@pytest.mark.smoke
def test_bad_records_are_reported_or_left_out(spark, tmp_path):
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for each in (example(a=ints(1)), example(a=texts(b"x")), example(a=ints(3))):
            writer.write(each.SerializeToString())
        writer.write(b"no example")
    with open(path, "ab") as file:
        file.write(b"half of a header")
    frame = tfos.read_tfrecord(spark, path, "a bigint, _corrupt_record string", mode="PERMISSIVE")
    rows = collected(frame)
    assert [row[0] for row in rows] == [1, None, 3, None, None]
    assert "feature 'a' holds bytes values, and not int64" in rows[1][1]
    assert "byte 102: no field of a message can be read here" in rows[3][1]
    assert "the length of a record does not have its checksum; the rest of the file is lost" in rows[4][1]
    raw = collected(
        tfos.read_tfrecord(spark, path, "a bigint, bad binary", mode="PERMISSIVE", column_name_of_corrupt_record="bad")
    )
    assert raw[3] == (None, b"no example")
    assert collected(tfos.read_tfrecord(spark, path, "a bigint", mode="DROPMALFORMED")) == [(1,), (3,)]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("columns", "partition_by", "message"),
    [
        ("1 as id", ["z"], "there is no column z, only id"),
        ("1 as id", ["id"], "all columns are in partitionBy"),
        ("map(1, 2) as m", [], "column 'm' has type map<int32, int32.*>: a feature has no keys"),
        ("array(array(1)) as a", [], "recordType=SequenceExample"),
        ("struct(1 as x) as s", [], r"columns of their own \(col.field\)"),
        (
            "interval '1' month as i",
            [],
            "column 'i' has type interval month: its length in time varies: cast it to int",
        ),
    ],
)
def test_what_can_not_be_written_is_refused(spark, tmp_path, columns, partition_by, message):
    with pytest.raises(tfos.SpecError, match=message):
        tfos.write_tfrecord(spark.sql(f"select {columns}"), str(tmp_path / "records"), partition_by=partition_by)


@pytest.mark.skipif(pyspark.__version__ < "4", reason="Spark has variants from 4.0 on")
def test_a_variant_is_refused_with_its_own_advice(spark, tmp_path):
    for value in ("parse_json('1')", "array(parse_json('1'))"):
        with pytest.raises(
            tfos.SpecError, match="column 'v' has type .*variant.*: .*take parts of it with variant_get"
        ):
            tfos.write_tfrecord(spark.sql(f"select {value} as v"), str(tmp_path / "records"))


def test_names_of_directories_are_those_that_spark_writes(spark, tmp_path):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        values = {
            "timestamp": "timestamp'2024-02-03 04:05:06.789'", "ntz": "timestamp_ntz'2024-02-03 00:00:00'",
            "date": "date'2024-02-03'", "double": "1e20D", "float": "cast(0.1 as float)", "boolean": "true",
            "decimal": "12345678901234567890.5", "text": "'a b/ü%c[]{}^~\\'\"#*:=?'", "`a.b`": "1",
            "binary": "X'41C3BC'",
        }  # fmt: skip
        frame = spark.sql("select 1 id, " + ", ".join(f"{value} {name}" for name, value in values.items()))
        by = [name for name in frame.columns if name != "id"]
        frame.write.partitionBy(*by).parquet(str(tmp_path / "theirs"))
        tfos.write_tfrecord(frame, str(tmp_path / "ours"), partition_by=by)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    ours, theirs = (
        {folder.removeprefix(str(tmp_path / name)) for folder, _, _ in os.walk(tmp_path / name)}
        for name in ("ours", "theirs")
    )
    assert ours == theirs


def test_the_settings_of_the_session(spark, tmp_path):
    path = str(tmp_path / "records")
    frame = spark.range(0, 4, 1, 1).selectExpr("id", "cast(id % 2 as string) as odd")
    settings = {
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.files.maxRecordsPerFile": "1",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    }
    tfos.write_tfrecord(frame, path, partition_by=["odd"])
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        tfos.write_tfrecord(frame.where("odd = 1"), path, mode="overwrite", partition_by=["odd"])
        assert [len(os.listdir(f"{path}/odd={odd}")) for odd in (0, 1)] == [1, 2]
        assert sorted(collected(tfos.read_tfrecord(spark, path))) == [(0, "0"), (1, "1"), (2, "0"), (3, "1")]
    finally:
        for name in settings:
            spark.conf.unset(name)
    tfos.write_tfrecord(frame.where("odd = 1"), path, "overwrite", ["odd"], partition_overwrite_mode="dynamic")
    assert sorted(collected(tfos.read_tfrecord(spark, path))) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_every_setting_of_sparks_sources_is_known(spark):
    """A newer Spark's setting belongs to a table: obeyed, refused, or of no effect."""
    names = [row.key for row in spark.sql("SET -v").collect()]
    of_files = [each for each in names if each.startswith(("spark.sql.files.", "spark.sql.sources."))]
    assert of_files
    known = (*SETTINGS, *UNSUPPORTED, *WITHOUT_MEANING)
    assert [each for each in of_files if not each.startswith(known)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TREES if name not in STRICTER])
def test_the_files_of_a_directory_are_those_of_spark(spark, tmp_path, name):
    paths, expected = TREES[name]
    grow(tmp_path, paths)
    if isinstance(expected, str):
        with pytest.raises(Exception, match="CONFLICTING|EMPTY|ALREADY_EXISTS|onflicting|mpty|assertion"):
            spark.read.format("binaryFile").load(str(tmp_path))
        return
    frame = spark.read.format("binaryFile").load(str(tmp_path))
    of_files = {"path", "modificationTime", "length", "content"}
    found = {
        row.path.partition(f"{tmp_path}/")[2]: {
            key.lower(): str(row[key]) for key in frame.columns if key not in of_files
        }
        for row in frame.collect()
    }
    # Of two cases of a column's name, Spark takes any.
    assert found == {path: {key.lower(): value for key, value in of.items()} for path, of in expected.items()}


def test_a_null_in_an_array_is_refused(spark, tmp_path):
    with pytest.raises(Exception, match="column 'a' has an array with a null in it"):
        tfos.write_tfrecord(spark.sql("select array(1, null) as a"), str(tmp_path / "records"))
    assert not os.path.exists(tmp_path / "records")


@pytest.mark.slow
def test_long_files_are_read_in_parts(spark, tmp_path):
    path = str(tmp_path / "records")
    frame = spark.range(0, 20_000, 1, 1).selectExpr("id", "repeat(cast(id as string), 200) as text")
    tfos.write_tfrecord(frame, path)
    again = tfos.read_tfrecord(spark, path, frame.schema, split_bytes=5 << 20)
    assert again.rdd.getNumPartitions() == 4
    assert (
        again.selectExpr("sum(id)", "count(distinct id)", "sum(length(text))").collect()
        == frame.selectExpr("sum(id)", "count(distinct id)", "sum(length(text))").collect()
    )
