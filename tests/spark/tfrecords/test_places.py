"""TFRecord files on HDFS and S3, written and read by Spark."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage

pytestmark = pytest.mark.masters("local")


@pytest.mark.slow
def test_both_ways(spark, remote_directory):
    frame = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 2 as odd")
    tfos.write_tfrecord(frame, f"{remote_directory}/by-function", partition_by=["odd"])
    tfos.write_tfrecord(frame, f"{remote_directory}/by-function", mode="append", partition_by=["odd"])
    assert tfos.read_tfrecord(spark, f"{remote_directory}/by-function").where("odd = 1").count() == 1000
    with pytest.raises(tfos.SpecError, match="there is something at"):
        tfos.write_tfrecord(frame, f"{remote_directory}/by-function")
    tfos.register_tfrecord(spark)
    frame.write.format("tfrecord").mode("overwrite").save(f"{remote_directory}/by-format")
    again = spark.read.format("tfrecord").load(f"{remote_directory}/by-format")
    assert again.selectExpr("sum(id)", "count(*)").collect()[0] == (499500, 1000)
    files, within = storage.file_system(f"{remote_directory}/by-format")
    assert sorted(name.rpartition("/")[2][:5] for name in files.ls(within, detail=False)) == ["_SUCC", "part-", "part-"]
