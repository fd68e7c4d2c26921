"""``spark.read.format("tfrecord")``, ``df.write`` and ``spark.readStream``: Spark 4's data sources in Python."""

import os

import pytest

import tensorflowonspark as tfos

pytestmark = pytest.mark.masters("local")


@pytest.fixture
def session(spark):
    tfos.register_tfrecord(spark)
    return spark


def numbers(session, first=0, rows=10):
    return session.range(first, first + rows, 1, 2).selectExpr("id", "array(float(id)) as x", "id % 2 as odd")


def ids(frame):
    return sorted(row.id for row in frame.collect())


@pytest.mark.smoke
def test_both_ways(session, tmp_path):
    path = str(tmp_path / "records")
    numbers(session).write.format("tfrecord").mode("append").save(path)
    frame = session.read.format("tfrecord").load(path)
    assert frame.schema.simpleString() == "struct<id:bigint,odd:bigint,x:float>"
    assert ids(frame) == list(range(10))
    wanted = session.read.format("tfrecord").schema("x array<float>, id int").load(path)
    assert sorted(tuple(row) for row in wanted.collect()) == sorted(([float(each)], each) for each in range(10))
    numbers(session, 100).write.format("tfrecord").mode("append").save(path)
    assert ids(frame.sparkSession.read.format("tfrecord").load(path)) == [*range(10), *range(100, 110)]
    numbers(session, 7, 1).write.format("tfrecord").option("compression", "gzip").mode("overwrite").save(path)
    assert ids(session.read.format("tfrecord").load(path)) == [7]
    assert all(name == "_SUCCESS" or name.endswith(".tfrecord.gz") for name in os.listdir(path))


def test_partition_columns(session, tmp_path):
    path = str(tmp_path / "records")
    numbers(session).write.format("tfrecord").option("partitionBy", "odd").mode("append").save(path)
    assert sorted(os.listdir(path)) == ["_SUCCESS", "odd=0", "odd=1"]
    frame = session.read.format("tfrecord").load(path)
    assert ids(frame.where("odd = 1")) == [1, 3, 5, 7, 9]


def test_each_query_of_a_data_frame_has_all_rows_whatever_filters_others_have(session, tmp_path):
    """Spark pushes filters of one query into the others, to a source that takes any."""
    tfos.write_tfrecord(numbers(session), str(tmp_path / "records"), partition_by=["odd"])
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        tfos.register_tfrecord(session)
        frame = session.read.format("tfrecord").load(str(tmp_path / "records"))
        odd, even = frame.where("odd = 1"), frame.where("odd = 0")
        assert [ids(each) for each in (odd, frame, even)] == [[1, 3, 5, 7, 9], list(range(10)), [0, 2, 4, 6, 8]]
        assert ids(odd.union(even)) == list(range(10))
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.slow
def test_several_paths(session, tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    for number, path in enumerate(paths):
        tfos.write_tfrecord(numbers(session, 10 * number), path)
    assert ids(session.read.format("tfrecord").load(paths)) == list(range(20))
    assert ids(session.read.format("tfrecord").load(f"{tmp_path}/{{a,b}}")) == list(range(20))
    given = session.read.format("tfrecord").schema("ID bigint").load(paths)
    assert (given.columns, sorted(row.ID for row in given.collect())) == (["ID"], list(range(20)))


@pytest.mark.slow
def test_an_overwrite_of_partitions(session, tmp_path):
    path = str(tmp_path / "records")
    tfos.write_tfrecord(numbers(session), path, partition_by=["odd"])

    def write(**options):
        writer = numbers(session, 101, 1).write.format("tfrecord").option("partitionBy", "odd").mode("overwrite")
        writer.options(**options).save(path)
        return ids(session.read.format("tfrecord").load(path))

    with pytest.raises(Exception, match="would replace all partitions of .*: say so by option"):
        write()
    assert write(partitionOverwriteMode="dynamic") == [0, 2, 4, 6, 8, 101]
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        tfos.register_tfrecord(session)
        assert write() == [0, 2, 4, 6, 8, 101]
    finally:
        session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    tfos.register_tfrecord(session)
    assert write(partitionOverwriteMode="static") == [101]
    with pytest.raises(
        Exception, match="partitionBy='f': only Spark itself writes a double as the name of a directory"
    ):
        writer = numbers(session).selectExpr("id", "1e20D f").write.format("tfrecord").option("partitionBy", "f")
        writer.mode("append").save(str(tmp_path / "double"))


@pytest.mark.slow
def test_sql(session, tmp_path):
    path = str(tmp_path / "records")
    tfos.write_tfrecord(numbers(session), path)
    session.sql(f"create temporary view numbers using tfrecord options (path '{path}')")
    assert session.sql("select sum(id) as s from numbers").collect()[0].s == 45
    session.sql("drop view numbers")


@pytest.mark.slow
def test_a_job_that_fails_leaves_what_was_there(session, tmp_path):
    path = str(tmp_path / "records")
    tfos.write_tfrecord(numbers(session), path)
    before = sorted(os.listdir(path))
    bad = session.range(0, 100, 1, 2).selectExpr("id", "if(id = 99, raise_error('no'), 1) as x")
    with pytest.raises(Exception, match="no"):
        bad.write.format("tfrecord").mode("overwrite").save(path)
    assert sorted(os.listdir(path)) == before


def test_errors_name_file_and_place(session, tmp_path):
    path = str(tmp_path / "records")
    with open(path, "wb") as file:
        file.write(b"no records at all")
    with pytest.raises(Exception, match="records, byte 0: the length of a record does not have its checksum"):
        session.read.format("tfrecord").schema("a int").load(path).collect()
    with pytest.raises(Exception, match="there is no file or directory '/no/such'"):
        session.read.format("tfrecord").load("/no/such")
    with pytest.raises(Exception, match="option 'recrodtype' is unknown"):
        session.read.format("tfrecord").option("recrodType", "ByteArray").load(path)
    with pytest.raises(Exception, match="a feature has no keys"):
        session.sql("select map(1, 2) as m").write.format("tfrecord").mode("append").save(str(tmp_path / "other"))


READERS = {
    "source": lambda session, path, limit: session.read.format("tfrecord").option("maxRecordBytes", limit).load(path),
    "stream": lambda session, path, limit: (
        session.readStream.format("tfrecord").schema("id bigint").option("maxRecordBytes", limit).load(path)
    ),
    "function": lambda session, path, limit: tfos.read_tfrecord(session, path, "id bigint", max_record_bytes=limit),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_has_the_limit_on_a_records_bytes(session, tmp_path, reader):
    path = f"{tmp_path}/records"
    numbers(session, rows=1).write.format("tfrecord").mode("append").save(path)

    def rows(limit):
        frame = READERS[reader](session, path, limit)
        if not frame.isStreaming:
            return frame.collect()
        query = frame.writeStream.format("noop").trigger(availableNow=True)
        query.option("checkpointLocation", f"{tmp_path}/{limit}").start().awaitTermination()
        return None

    rows("1k")
    with pytest.raises(Exception, match=r"byte 0: a record has \d\d bytes, and the option maxRecordBytes allows 20"):
        rows("20")


@pytest.mark.slow
def test_a_stream_reads_each_file_once(session, tmp_path):
    path, out, checkpoint = (str(tmp_path / name) for name in ("in", "out", "checkpoint"))
    tfos.write_tfrecord(numbers(session), path)

    def run():
        stream = session.readStream.format("tfrecord").schema("id bigint").option("maxFilesPerTrigger", 1).load(path)
        writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", out)
        query = writer.start()
        query.processAllAvailable()
        batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
        return batches, ids(session.read.parquet(out))

    assert run() == ([5, 5], list(range(10)))
    tfos.write_tfrecord(numbers(session, 50), path, mode="append")
    assert run() == ([5, 5], [*range(10), *range(50, 60)])
    assert run() == ([], [*range(10), *range(50, 60)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, [20]),
        ({"maxFilesPerTrigger": 3}, [15, 5]),
        ({"maxBytesPerTrigger": 1}, [5, 5, 5, 5]),  # a file is not divided
        ({"maxBytesPerTrigger": "{two}"}, [10, 10]),
        ({"maxBytesPerTrigger": "1g"}, [20]),
    ],
)
def test_the_micro_batches_of_a_stream_obey_its_limit(session, tmp_path, options, batches):
    path = str(tmp_path / "in")
    for first in (0, 10):
        tfos.write_tfrecord(numbers(session, first), path, mode="append")
    sizes = sorted(file.stat().st_size for file in (tmp_path / "in").glob("*.tfrecord"))
    options = {name: str(value).format(two=2 * sizes[-1]) for name, value in options.items()}
    stream = session.readStream.format("tfrecord").schema("id bigint").options(**options).load(path)
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(120)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == batches
    assert ids(session.read.parquet(str(tmp_path / "out"))) == list(range(20))


def test_a_stream_has_one_limit(session, tmp_path):
    tfos.write_tfrecord(numbers(session), str(tmp_path / "in"))
    stream = session.readStream.format("tfrecord").schema("id bigint")
    stream = stream.options(maxFilesPerTrigger=1, maxBytesPerTrigger="1m").load(str(tmp_path / "in"))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "state"))
    with pytest.raises(Exception, match="options maxFilesPerTrigger and maxBytesPerTrigger: give one of them"):
        query.start().awaitTermination(60)


def test_a_stream_is_written_by_batches(session, tmp_path):
    stream = session.readStream.format("rate").load().selectExpr("value as id")
    query = stream.writeStream.format("tfrecord").option("checkpointLocation", str(tmp_path / "state"))
    with pytest.raises(Exception, match="TFRecord files are written batch by batch: writeStream.foreachBatch"):
        query.start(str(tmp_path / "out")).awaitTermination(60)
