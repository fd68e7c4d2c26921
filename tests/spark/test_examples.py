"""Examples in docstrings that need a Spark session."""

import pytest

from tests.support.examples import WITH_SPARK, run_spark_examples


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.parametrize("name", sorted(WITH_SPARK))
def test_examples_of(name, spark, tmp_path):
    run_spark_examples(name, tmp_path, spark)
