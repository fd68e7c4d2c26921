"""Contender of tfrecord.py: LinkedIn's spark-tfrecord, whose jar is the first argument."""

import sys

from standalone import two_one_core_workers

from tfrecord_spark import by_format, serve


def main():
    """Serve rounds."""
    settings = {"spark_executor_memory": "3g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    settings["spark_sql_files_maxPartitionBytes"] = "1m"  # a task for each file: several would make tasks unlike
    with two_one_core_workers("3g", spark_jars=sys.argv[1], **settings) as spark:
        serve(spark, *by_format(spark))


if __name__ == "__main__":
    main()
