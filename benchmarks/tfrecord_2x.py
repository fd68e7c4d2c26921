"""Contender of tfrecord.py: TensorFlowOnSpark 2.2.5's ``dfutil``; the first argument is the jar that it needs."""

import sys

from standalone import two_one_core_workers
from tfrecord_spark import serve


def main():
    """Serve rounds."""
    from tensorflowonspark import dfutil

    settings = {"spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers(spark_jars=sys.argv[1], **settings) as spark:

        def read(kind, path):
            binary = [column.name for column in kind.columns if column.type == "binary"]
            return dfutil.loadTFRecords(spark.sparkContext, path, binary)

        serve(spark, read, dfutil.saveAsTFRecords)


if __name__ == "__main__":
    main()
