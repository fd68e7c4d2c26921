"""The private names of Spark: all are there in pyspark, and the error of one that is not."""

from types import SimpleNamespace

import pyspark
import pytest
from py4j.protocol import Py4JError

from tensorflowonspark.driver.spark import spark_names
from tensorflowonspark.driver.spark.resources import count_slots
from tensorflowonspark.errors import RequirementError


class Java:
    """An object of the JVM without any method."""

    def __getattr__(self, name):
        def call(*_):
            raise Py4JError(
                f"An error occurred while calling o27.{name}. Trace:\npy4j.Py4JException: "
                f"Method {name}([]) does not exist\n\tat py4j.reflection.ReflectionEngine.getMethod"
            )

        return call


def test_the_installed_pyspark_has_all_names():
    assert list(spark_names.python_problems()) == []


def test_a_method_that_the_jvm_lacks_is_named():
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=Java))
    problem = rf"^Spark {pyspark.__version__} has no resourceProfileManager: the number of task slots needs it; install"
    with pytest.raises(RequirementError, match=problem):
        count_slots(context)


def test_an_attribute_that_pyspark_lacks_is_named():
    with pytest.raises(RequirementError, match=r"has no types\.SimpleNamespace\._jsc: the number of task slots"):
        count_slots(SimpleNamespace())


def test_an_application_that_has_ended_is_another_error():
    with pytest.raises(AttributeError, match="'NoneType'"):
        count_slots(SimpleNamespace(_jsc=None))


def test_other_errors_stay():
    with pytest.raises(Py4JError, match="connection refused"), spark_names.explained("anything"):
        raise Py4JError("connection refused")


def test_a_name_that_a_module_lacks_is_named(monkeypatch):
    use = spark_names.PythonUse("pyspark.rdd", "the rows", ("RDD._gone", "RDD.map"))
    gone = spark_names.PythonUse("pyspark.gone", "the rows", ("any",))
    monkeypatch.setattr(spark_names, "PYTHON", (use, gone))
    first, second = spark_names.python_problems()
    assert first.startswith(f"Spark {pyspark.__version__} has no pyspark.rdd.RDD._gone: the rows needs it; install")
    assert " has no pyspark.gone: " in second
