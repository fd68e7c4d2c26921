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
        ({"epoch": 3}, r"no param 'epoch' \(did you mean 'epochs'\?\)"),
        ({"epochs": 0}, "^epochs=0: expected a positive number"),
        ({"start": "some_rows"}, "^start='some_rows': expected one of 'all_rows', 'first_rows'"),
        ({"strategy": "diloc"}, "strategy='diloc': .*expected one of 'synchronous', 'local_sgd', 'diloco'"),
        ({"handleInvalid": "drop"}, "^handleInvalid='drop': expected one of 'error', 'keep', 'skip'"),
        ({"backend": "theano"}, "backend='theano': .*expected one of 'tensorflow', 'jax', 'torch'"),
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


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"backend": "torch", "numWorkers": 2}, "trains on one worker, and numWorkers is 2.*backend='jax'"),
        ({"backend": "jax", "clusterOptions": {"env": {"KERAS_BACKEND": "tensorflow"}}}, "set one of them"),
        ({"backend": "jax", "clusterOptions": {"env": {"TF_USE_LEGACY_KERAS": "1"}}}, "tf_keras has only TensorFlow"),
        ({"backend": "jax", "clusterOptions": {"num_ps": 1}}, "leave out num_ps"),
        ({"numWorkers": 3, "clusterOptions": {"env": {"KERAS_BACKEND": "torch"}}}, "numWorkers is 3"),
        ({"numWorkers": 2, "clusterOptions": {"num_workers": 4}}, "numWorkers=2, and clusterOptions sets num_wor"),
        ({"clusterOptions": {"log_levle": "INFO"}}, "has no setting 'log_levle' .did you mean 'log_level'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_starts(params, told):
    with pytest.raises(tfos.SpecError, match=told):
        _ = KerasEstimator(line, **params)._options_with_backend


def test_the_backend_becomes_the_environment_of_the_nodes():
    est = KerasEstimator(line, clusterOptions={"env": {"A": "1"}, "log_level": "INFO"}).setBackend("jax")
    assert est._options_with_backend == {"env": {"A": "1", "KERAS_BACKEND": "jax"}, "log_level": "INFO"}
    assert est.getClusterOptions()["env"] == {"A": "1"}
    assert (est.getBackend(), KerasEstimator(line).getBackend()) == ("jax", None)
