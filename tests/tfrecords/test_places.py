"""Files of records on a real HDFS and on an S3 server: by the format, by functions and by the nodes."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage

pytestmark = pytest.mark.masters("local")


@pytest.fixture(params=["hdfs", "s3a"])
def place(request, spark, hadoop_free):
    """A directory that only the session's settings lead to."""
    name = {"hdfs": "hdfs", "s3a": "bucket"}[request.param]
    found = request.getfixturevalue(name)
    settings, place = ({}, f"{found}/records") if name == "hdfs" else (found, "s3a://bucket/records")
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield place
    storage.use(settings)
    storage.remove(place)
    for key in settings:
        spark.conf.unset(key)


def test_both_ways(spark, place):
    frame = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 2 as odd")
    tfos.write_tfrecord(frame, f"{place}/by-function", partition_by=["odd"])
    tfos.write_tfrecord(frame, f"{place}/by-function", mode="append", partition_by=["odd"])
    assert tfos.read_tfrecord(spark, f"{place}/by-function").where("odd = 1").count() == 1000
    with pytest.raises(tfos.SpecError, match="there is something at"):
        tfos.write_tfrecord(frame, f"{place}/by-function")
    tfos.register_tfrecord(spark)
    frame.write.format("tfrecord").mode("overwrite").save(f"{place}/by-format")
    again = spark.read.format("tfrecord").load(f"{place}/by-format")
    assert again.selectExpr("sum(id)", "count(*)").collect()[0] == (499500, 1000)
    files, within = storage.file_system(f"{place}/by-format")
    assert sorted(name.rpartition("/")[2][:5] for name in files.ls(within, detail=False)) == ["_SUCC", "part-", "part-"]


def test_nodes_read(spark, place):
    tfos.write_tfrecord(spark.range(0, 100, 1, 3), f"{place}/for-nodes")

    def program(args, ctx):
        feed = ctx.read_tfrecord(args)
        return sorted(batch["id"][batch["sample_weight"] != 0].tolist() for batch in feed.batches(10)())

    results = tfos.run(spark, program, f"{place}/for-nodes", num_workers=2)
    assert sorted(number for steps in results.values() for step in steps for number in step) == list(range(100))
