"""The start of a Spark application by the commands."""

import pytest

from tensorflowonspark.cli import spark
from tensorflowonspark.errors import ClusterError


def test_the_reason_is_read_from_the_jvm_before_it_is_ended(monkeypatch):
    ended = []

    class JavaError(Exception):  # as py4j's, whose text is the JVM's
        def __str__(self):
            if ended:
                raise ConnectionRefusedError
            return "Executor memory 419430400 must be at least 471859200"

    def fails(**_):
        raise JavaError

    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("pyspark.SparkContext", fails)
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", lambda **_: None)
    monkeypatch.setattr(spark, "_end", lambda children: ended.append(children))
    with pytest.raises(ClusterError, match="Spark did not start: .*Executor memory 419430400 must be at least"):
        spark.start_session(["--master", "spark://127.0.0.1:1"])
    assert len(ended) == 1
