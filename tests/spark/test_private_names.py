"""The private names of Spark in a real JVM."""

import pytest

from tensorflowonspark.driver.spark import spark_names
from tensorflowonspark.driver.spark.spark_names import JavaUse, jvm_problems

pytestmark = [pytest.mark.masters("local"), pytest.mark.smoke]


def test_the_jvm_has_all_names(spark):
    assert list(jvm_problems(spark)) == []


def test_a_method_and_an_object_that_are_gone_are_named(spark, monkeypatch):
    uses = [
        JavaUse("sparkContext._jsc.sc()", "slots", ("maxNumConcurrentTasks", "gone")),
        JavaUse("sparkContext._jsc.sc().goneToo()", "slots", ("any",)),
        JavaUse("_gone.sc()", "slots", ("any",)),
    ]
    monkeypatch.setattr(spark_names, "JVM", uses)
    found = [problem.partition(": ")[0].partition(" has no ")[2] for problem in jvm_problems(spark)]
    assert found == [
        "org.apache.spark.SparkContext.gone",
        "SparkSession.sparkContext._jsc.sc().goneToo()",
        "SparkSession._gone.sc()",
    ]
