"""Contender of tfrecord.py: our data source."""

from standalone import two_one_core_workers

import tensorflowonspark as tfos
from tfrecord_spark import by_format, serve


def main():
    """Serve rounds."""
    settings = {"spark_executor_memory": "3g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers("3g", **settings) as spark:
        tfos.register_tfrecord(spark)
        serve(spark, *by_format(spark))


if __name__ == "__main__":
    main()
