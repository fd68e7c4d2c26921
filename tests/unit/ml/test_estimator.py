"""Params of the estimator that are refused."""

import functools
from contextlib import nullcontext

import keras
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.fit_tracking import parameters_of
from tests.support.lines import line

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"epoch": 3}, r"no param 'epoch' \(did you mean 'epochs'\?\)"),
        ({"num_proc": 2}, r"no param 'num_proc' \(here it is 'numWorkers'\): explainParams"),
        ({"epochs": 0}, "^epochs=0: expected a positive number"),
        ({"start": "some_rows"}, "^start='some_rows': expected one of 'all_rows', 'first_rows'"),
        ({"strategy": "diloc"}, "strategy='diloc': .*expected one of 'synchronous', 'local_sgd', 'diloco'"),
        ({"handleInvalid": "drop"}, "^handleInvalid='drop': expected one of 'error', 'keep', 'skip'"),
        ({"backend": "theano"}, "backend='theano': .*expected one of 'tensorflow', 'jax', 'torch'"),
        ({"numWorkers": (2, 0)}, r"^numWorkers=\(2, 0\): expected a positive number"),
        ({"restarts": -1}, "^restarts=-1: expected 0 or more restarts, or a RestartPolicy"),
        ({"restarts": "often"}, "^restarts='often': Could not convert"),
        ({"gpusPerNode": 0}, "^gpusPerNode=0: expected a positive number"),
        ({"env": "A=1"}, "^env='A=1': expected a dict"),
        ({"clusterOptions": {"log_levle": "INFO"}}, r"has no setting 'log_levle' \(did you mean 'log_level'\?\)"),
        ({"clusterOptions": {"num_workers": 4}}, r"'num_workers' is a param of its own: .*numWorkers=\.\.\."),
        ({"clusterOptions": {"restarts": 1}}, r"'restarts' is a param of its own: .*restarts=\.\.\."),
        ({"clusterOptions": {"gpus_per_node": 1}}, r"'gpus_per_node' is a param of its own: .*gpusPerNode=\.\.\."),
        ({"clusterOptions": {"env": {"TOKEN": "x"}}}, r"'env' is a param of its own: [^x]*env=\.\.\."),
        ({"modelParams": ["units"]}, r"^modelParams=\['units'\]: expected a dict of arguments by keyword"),
        ({"modelParams": {1: 16}}, "^modelParams={1: 16}: expected a dict of arguments by keyword"),
        ({"modelParams": {"rat": 0.2}}, r"line\(\) takes no 'rat' \(did you mean 'rate'\?\), but: rate"),
        ({"clusterOptions": {"num_ps": 1}}, "num_ps=1, and an estimator trains on workers: use Cluster"),
        ({"clusterOptions": {"evaluator": True}}, "evaluator=True, and an estimator trains on workers: use Cluster"),
        ({"clusterOptions": {"epochs": 3}}, r"'epochs' is a param of its own: .*epochs=\.\.\."),
    ],
)
def test_wrong_params_are_refused_at_once(params, told):
    with pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(line, **params)


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"backend": "torch", "numWorkers": 2}, "trains on one worker, and numWorkers is 2.*backend='jax'"),
        ({"backend": "jax", "env": {"KERAS_BACKEND": "tensorflow"}}, "set one of them"),
        ({"backend": "jax", "env": {"TF_USE_LEGACY_KERAS": "1"}}, "tf_keras has only TensorFlow"),
        ({"numWorkers": 3, "env": {"KERAS_BACKEND": "torch"}}, "numWorkers is 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_starts(params, told):
    with pytest.raises(tfos.SpecError, match=told):
        _ = KerasEstimator(line, **params)._cluster_settings


class OwnCall(keras.Model):
    """A model without inputs and outputs, whose training a stage could not describe."""

    def call(self, x):
        return x


def two_by_two():
    user, item = keras.Input((1,), name="user"), keras.Input((1,), name="item")
    model = keras.Model([user, item], [keras.layers.Dense(1, name=name)(user + item) for name in "ab"])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("model", "params", "told"),
    [
        (OwnCall(), {}, "^OwnCall is a class of models with a call of its own, and a stage needs a model with inputs"),
        (two_by_two(), {"featuresCols": ["item", "usr"]},
         "^columns 'item', 'usr' and the model's inputs 'user', 'item': 'usr' is none of them, and others match"),
        (two_by_two(), {"featuresCols": ["item", "user"], "labelCols": ["b", "c"]},
         "^columns 'b', 'c' and the model's outputs 'a', 'b': 'c' is none of them, and others match"),
        (two_by_two(), {"featuresCols": ["item", "user"], "labelCols": ["b", "a"]}, None),
        (two_by_two(), {"featuresCols": ["one", "two"], "labelCols": ["three", "four"]}, None),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_its_columns_is_refused_before_anything_starts(model, params, told):
    with nullcontext() if told is None else pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(model, **params)._check_model()


def test_a_class_of_models_makes_no_stage():
    model = OwnCall()
    model.compile("sgd", "mse")
    with pytest.raises(tfos.SpecError, match="OwnCall is a class of models with a call of its own"):
        KerasModel.from_keras(model)


def sized(units, rate=0.1, **_options):
    raise NotImplementedError


MODEL = keras.Sequential()


@pytest.mark.parametrize(
    ("model", "params", "told"),
    [
        (lambda units, rate: None, {"unit": 16}, r"takes no 'unit' \(did you mean 'units'\?\), but: units, rate"),
        (sized, {"rate": 0.2}, r"^sized\(\), which builds the model, needs 'units': modelParams={'units': \.\.\.}"),
        (sized, {"units": 4, "anything": 1}, None),
        (functools.partial(sized, units=4), {}, None),
        (dict, {"units": 4}, None),  # whose parameters Python does not know
        (MODEL, {"units": 4}, "arguments of a function that builds the model, and model is a Keras model"),
        (MODEL, {}, None),
    ],
)
def test_arguments_of_the_function_that_builds_the_model(model, params, told):
    """They are checked when they are set, and with those that are missing at the start of `fit`."""
    est = KerasEstimator(model)
    if told is None:
        est.setModelParams(params)._check_model_params(complete=True)
        assert est.getModelParams() == params
        return
    with pytest.raises(tfos.SpecError, match=told):
        est.setModelParams(params)._check_model_params(complete=True)


def test_a_model_and_its_arguments_can_be_replaced_one_after_the_other():
    est = KerasEstimator(sized, modelParams={"units": 4}).setModel(lambda: line())
    with pytest.raises(tfos.SpecError, match="takes no 'units', but: no arguments"):
        est._check_model_params(complete=True)
    est.setModelParams({})._check_model_params(complete=True)
    further = est.setInitialModel(KerasModel())
    further._check_model_params(complete=True)
    with pytest.raises(tfos.SpecError, match="initialModel takes the place of one"):
        further.setModelParams({"units": 4})


def test_arguments_of_the_model_are_logged_without_secrets():
    est = KerasEstimator(sized, modelParams={"units": 4, "rate": 0.5, "api_token": "x"}, env={"PASSWORD": "y"})
    logged = parameters_of(est)
    assert {name: value for name, value in logged.items() if name.startswith("modelParams")} == {
        "modelParams.units": 4,
        "modelParams.rate": 0.5,
    }
    assert "env" not in logged


POLICY = tfos.RestartPolicy(2)


@pytest.mark.parametrize(
    ("params", "settings"),
    [
        ({}, {"num_workers": 1, "restarts": 0}),
        ({"numWorkers": [2, 8], "restarts": POLICY}, {"num_workers": (2, 8), "restarts": POLICY}),
        ({"restarts": 3, "gpusPerNode": 2}, {"num_workers": 1, "restarts": 3, "gpus_per_node": 2}),
        (
            {"backend": "jax", "env": {"A": "1"}, "clusterOptions": {"log_level": "INFO"}},
            {"num_workers": 1, "restarts": 0, "env": {"A": "1", "KERAS_BACKEND": "jax"}, "log_level": "INFO"},
        ),
    ],
)
def test_params_become_the_settings_of_the_cluster(params, settings):
    est = KerasEstimator(line, **params)
    assert est._cluster_settings == settings
    assert est.getEnv() == params.get("env", {})
    assert (est.getBackend(), est.getStart()) == (params.get("backend"), "all_rows")
