"""Examples in docstrings that start a cluster."""

import pytest

from tests.support.examples import WITH_NODES, run_spark_examples


@pytest.mark.timeout(300)  # several clusters
@pytest.mark.masters("local")
@pytest.mark.parametrize("name", sorted(WITH_NODES))
def test_examples_of(name, spark, tmp_path):
    run_spark_examples(name, tmp_path, spark)
