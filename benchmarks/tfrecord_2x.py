"""Contender of tfrecord.py: what programs of TensorFlowOnSpark 2.x call, ``dfutil``.

It runs with 2.2.5, which needs the jar that is the first argument, and unchanged with ours.
"""

import sys

from standalone import two_one_core_workers

from tfrecord_spark import serve


def main():
    """Serve rounds."""
    from tensorflowonspark import dfutil

    settings = {"spark_executor_memory": "3g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    if sys.argv[1:]:
        settings["spark_jars"] = sys.argv[1]
    with two_one_core_workers("3g", **settings) as spark:

        def read(kind, path):
            binary = [column.name for column in kind.columns if column.type == "binary"]
            return dfutil.loadTFRecords(spark.sparkContext, path, binary)

        serve(spark, read, dfutil.saveAsTFRecords)


if __name__ == "__main__":
    main()
