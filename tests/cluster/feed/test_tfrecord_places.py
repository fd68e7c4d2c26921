"""TFRecord files on HDFS and S3, read by nodes."""

import pytest

import tensorflowonspark as tfos

pytestmark = pytest.mark.masters("local")


def test_nodes_read(spark, remote_directory):
    tfos.write_tfrecord(spark.range(0, 100, 1, 3), f"{remote_directory}/for-nodes")

    def program(args, ctx):
        feed = ctx.read_tfrecord(args)
        return sorted(batch["id"][batch["sample_weight"] != 0].tolist() for batch in feed.batches(10)())

    results = tfos.run(spark, program, f"{remote_directory}/for-nodes", num_workers=2)
    assert sorted(number for steps in results.values() for step in steps for number in step) == list(range(100))
