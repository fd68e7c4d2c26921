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


@pytest.mark.slow
def test_an_overwrite_of_partitions(spark, remote_directory):
    frame = spark.range(0, 10, 1, 2).selectExpr("id", "id % 2 as odd", "id % 3 as rest")
    path = f"{remote_directory}/days"

    def write(where, mode, **options):
        tfos.write_tfrecord(frame.where(where), path, mode, ["odd", "rest"], **options)
        return sorted(row.id for row in tfos.read_tfrecord(spark, path).collect())

    assert write("true", "error") == list(range(10))
    assert write("id in (0, 1)", "overwrite", partition_overwrite_mode="dynamic") == [0, 1, 2, 3, 4, 5, 8, 9]
    files, within = storage.file_system(path)
    files.invalidate_cache()
    assert sorted(name.rpartition("/")[2] for name in files.ls(within, detail=False)) == ["_SUCCESS", "odd=0", "odd=1"]
    assert write("id = 4", "overwrite") == [4]
    files.invalidate_cache()
    assert sorted(name.rpartition("/")[2] for name in files.ls(within, detail=False)) == ["_SUCCESS", "odd=0"]
