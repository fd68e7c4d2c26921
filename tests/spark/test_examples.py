"""Examples in docstrings that need a Spark session."""

import pytest

from tests.support.examples import WITH_SPARK, run_spark_examples

_SHORT = ("tensorflowonspark.frames.newest_windows",)  # that load no TensorFlow


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _SHORT else pytest.mark.slow) for name in sorted(WITH_SPARK)]
)
def test_examples_of(name, spark, tmp_path):
    run_spark_examples(name, tmp_path, spark)
