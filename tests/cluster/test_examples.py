"""Examples in docstrings that start a cluster."""

import pytest

from tests.support.examples import WITH_NODES, run_examples


@pytest.mark.masters("local")
@pytest.mark.parametrize("name", sorted(WITH_NODES))
def test_examples_of(name, spark):
    run_examples(name, spark)
