"""Examples in docstrings that need a Spark session."""

import pytest

from tests.support.examples import WITH_SPARK, run_examples


@pytest.mark.slow
@pytest.mark.masters("local")
@pytest.mark.parametrize("name", sorted(WITH_SPARK))
def test_examples_of(name, spark):
    run_examples(name, spark)
