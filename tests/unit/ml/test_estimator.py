"""Params of the estimator that are refused."""

import keras
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
        ({"start": "some_rows"}, "start='some_rows': .*expected one of 'all_rows', 'first_rows'"),
        ({"strategy": "diloc"}, "strategy='diloc': .*expected one of 'synchronous', 'local_sgd', 'diloco'"),
        ({"handleInvalid": "drop"}, "expected one of 'error', 'keep', 'skip'"),
    ],
)
def test_wrong_params_are_refused_at_once(params, told):
    with pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(line, **params)


class Own(keras.callbacks.Callback):
    pass


@pytest.mark.parametrize(
    ("params", "start"),
    [
        ({}, "first_rows"),
        ({"seed": 0}, "all_rows"),
        ({"seed": None}, "first_rows"),
        ({"seed": 3, "start": "first_rows"}, "first_rows"),
        ({"start": "all_rows"}, "all_rows"),
        ({"trainFn": lambda model, rows, validation, ctx: None}, "all_rows"),
        ({"callbacks": [keras.callbacks.EarlyStopping()]}, "first_rows"),
        ({"callbacks": [keras.callbacks.EarlyStopping(), Own()]}, "all_rows"),
    ],
)
def test_the_other_params_decide_when_training_begins(params, start):
    assert KerasEstimator(line, **params)._chosen_start == start
