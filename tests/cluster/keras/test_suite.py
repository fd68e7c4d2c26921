"""A part of `make keras-suite`: what Keras's trainer tests of fit, evaluate and predict give on two workers."""

import pytest

from tests.support.keras_suite.cluster import run_suite
from tests.support.keras_suite.report import compare, read_expected
from tests.support.keras_suite.source import keras_source
from tests.support.paths import DOWNLOADS, SUPPORT


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.masters("local")
def test_keras_tests_of_flows_end_as_expected_in_the_strategy(spark):
    source = keras_source(DOWNLOADS / "keras-suite")
    found = list(run_suite(spark, source, ["trainers/trainer_test.py"], strategy=True, timeout=120, select="_flow"))
    assert sum(outcome.kind == "passed" for outcome in found) > 5
    comparison = compare({"strategy": found}, read_expected(SUPPORT / "keras_suite" / "expected.toml"), whole=False)
    assert comparison, "\n".join(comparison.lines())
