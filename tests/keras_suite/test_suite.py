"""A part of `make keras-suite`: what Keras's trainer tests of fit, evaluate and predict give on two workers."""

from pathlib import Path

import pytest

from keras_suite.cluster import run_suite
from keras_suite.report import compare, read_expected
from keras_suite.source import keras_source

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.masters("local")
def test_keras_tests_of_flows_end_as_expected_in_the_strategy(spark):
    source = keras_source(HERE.parent.parent / ".venvs" / "keras-suite")
    found = list(run_suite(spark, source, ["trainers/trainer_test.py"], strategy=True, timeout=120, select="_flow"))
    assert sum(outcome.kind == "passed" for outcome in found) > 5
    comparison = compare({"strategy": found}, read_expected(HERE / "expected.toml"), whole=False)
    assert comparison, "\n".join(comparison.lines())
