"""Params of the estimator that are refused."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator
from tests.support.lines import line

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"epoch": 3}, "no param 'epoch': did you mean 'epochs'?"),
        ({"epochs": 0}, "epochs=0: .*expected a positive number"),
        ({"handleInvalid": "drop"}, "expected one of 'error', 'keep', 'skip'"),
    ],
)
def test_wrong_params_are_refused_at_once(params, told):
    with pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(line, **params)
