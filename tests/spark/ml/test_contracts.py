"""The contracts of Spark ML, which its own stages keep, on both stages: params, copies, and what is saved."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import SQLTransformer
from pyspark.ml.param import Param
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.node_training import Trained
from tests.support.lines import line, lines

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240), pytest.mark.smoke]


def linear(units=1):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(units, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    return model


STAGES = {
    "estimator": lambda **params: KerasEstimator(line, **params),
    "model": lambda **params: KerasModel.from_keras(linear(), **params),
}


@pytest.fixture(params=STAGES)
def make(request):
    return STAGES[request.param]


@pytest.fixture
def fits_at_once(monkeypatch):
    """Have `fit` return a model at once, without nodes; its history has the epochs that were asked for."""
    bundle = KerasModel.from_keras(linear())._bundle

    def run(_spark, _train, job, **_options):
        return SimpleNamespace(chief=Trained(bundle, {"loss": [1.0] * job.epochs}))

    monkeypatch.setattr("tensorflowonspark.ml.estimator.run", run)


# ---- one stage


def test_each_stage_has_a_uid_of_its_own_and_its_params_have_it(make):
    one, two = make(), make()
    assert one.uid != two.uid
    assert {each.parent for each in one.params} == {one.uid}
    assert [each.name for each in one.params] == sorted(each.name for each in one.params)
    assert all(isinstance(each, Param) and one.hasParam(each.name) for each in one.params)


def test_what_is_set_is_no_default_and_can_be_cleared(make):
    stage = make(predictionCol="p")
    assert (stage.isSet("predictionCol"), stage.hasDefault("predictionCol"), stage.isDefined("predictionCol")) == (
        True, True, True,
    )  # fmt: skip
    assert (stage.isSet("featuresCol"), stage.hasDefault("featuresCol")) == (False, True)
    assert (stage.isSet("thresholds"), stage.hasDefault("thresholds"), stage.isDefined("thresholds")) == (False,) * 3
    assert stage.extractParamMap()[stage.predictionCol] == "p"
    assert stage.extractParamMap({stage.predictionCol: "q"})[stage.predictionCol] == "q"
    stage.clear(stage.predictionCol)
    assert (stage.isSet("predictionCol"), stage.getPredictionCol()) == (False, "prediction")


def test_params_are_explained_with_value_and_default(make):
    stage = make(predictionCol="p")
    assert stage.explainParam("predictionCol").endswith("(default: prediction, current: p)")
    assert stage.explainParam(stage.featuresCol).endswith("(default: features)")
    assert len([each for each in stage.params if f"{each.name}: " in stage.explainParams()]) == len(stage.params)


def test_a_copy_has_the_uid_and_the_params_and_those_that_are_given_beside(make):
    stage = make(featuresCol="x")
    copied = stage.copy({stage.predictionCol: "p", make().predictionCol: "of another stage"})
    assert (copied.uid, type(copied)) == (stage.uid, type(stage))
    assert (copied.getFeaturesCol(), copied.getPredictionCol()) == ("x", "p")
    assert not stage.isSet("predictionCol")
    copied.setFeaturesCol("z")
    assert stage.getFeaturesCol() == "x"
    with pytest.raises(TypeError):
        stage.copy({"predictionCol": "p"})


def test_a_param_is_set_by_itself_and_not_by_that_of_another_stage(make):
    stage = make()
    stage.set(stage.predictionCol, "p")
    assert stage.getPredictionCol() == "p"
    with pytest.raises(ValueError, match="does not belong"):
        stage.set(make().predictionCol, "q")
    with pytest.raises(TypeError):
        stage.set(stage.featuresCol, 3)


def test_what_is_saved_comes_back_with_uid_values_and_defaults(spark, tmp_path, make):
    stage, path = make(predictionCol="p"), str(tmp_path / "stage")
    stage._setDefault(featuresCol="of the version that saved it")
    stage.save(path)
    again = type(stage).load(path)
    assert again.uid == stage.uid
    assert {each.parent for each in again.params} == {stage.uid}
    for each in stage.params:
        assert again.isSet(each) == stage.isSet(each), each.name
        assert again.hasDefault(each) == stage.hasDefault(each), each.name
    assert (again.getPredictionCol(), again.getFeaturesCol()) == ("p", "of the version that saved it")
    again.save(str(tmp_path / "again"))
    with pytest.raises(tfos.SpecError, match="something at"):
        make().save(path)
    make(predictionCol="q").write().overwrite().save(path)
    assert type(stage).load(path).getPredictionCol() == "q"


# ---- the fitted model, and stages of others


def test_the_fitted_model_has_the_uid_and_the_params_of_its_estimator(spark, fits_at_once):
    """So a param of the estimator is the model's too."""
    est = KerasEstimator(line, predictionCol="p", inferenceBatchSize=7)
    model = est.fit(lines(spark))
    assert (model.uid, {each.parent for each in model.params}) == (est.uid, {est.uid})
    assert (model.isSet("predictionCol"), model.getInferenceBatchSize()) == (True, 7)
    assert model.transform(lines(spark), {est.predictionCol: "q"}).columns[-1] == "q"
    assert model.transform(lines(spark), {model.predictionCol: "r"}).columns[-1] == "r"
    assert model.copy({est.predictionCol: "s"}).getPredictionCol() == "s"
    assert (model.getPredictionCol(), est.getPredictionCol()) == ("p", "p")
    changed = est.fit(lines(spark), {est.predictionCol: "t", est.epochs: 3})
    assert (changed.uid, changed.getPredictionCol(), changed.summary.totalIterations) == (est.uid, "t", 3)
    one, two = est.fit(lines(spark), [{est.epochs: 1}, {est.epochs: 2}])
    assert (one.uid, one.summary.totalIterations, two.summary.totalIterations) == (est.uid, 1, 2)


def test_in_a_pipeline_and_its_model(spark, fits_at_once, tmp_path):
    est = KerasEstimator(line, featuresCol="x")
    renamed = SQLTransformer(statement="select *, features as x from __THIS__")
    pipeline = Pipeline(stages=[renamed, est])
    pipeline.save(str(tmp_path / "pipeline"))
    assert Pipeline.load(str(tmp_path / "pipeline")).getStages()[1].uid == est.uid
    fitted = pipeline.fit(lines(spark), {est.predictionCol: "p"})
    assert fitted.stages[1].uid == est.uid
    assert fitted.transform(lines(spark), {est.predictionCol: "q"}).columns[-1] == "q"
    assert fitted.copy({est.predictionCol: "r"}).stages[1].getPredictionCol() == "r"
    fitted.save(str(tmp_path / "fitted"))
    again = PipelineModel.load(str(tmp_path / "fitted"))
    assert [each.uid for each in again.stages] == [renamed.uid, est.uid]
    assert again.transform(lines(spark), {est.predictionCol: "s"}).columns[-1] == "s"
    fitted.write().overwrite().save(str(tmp_path / "fitted"))


@pytest.mark.slow
def test_in_a_cross_validator_and_its_model(spark, fits_at_once, tmp_path):
    est = KerasEstimator(line)
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 2]).baseOn({est.predictionCol: "p"}).build()
    evaluator = RegressionEvaluator(predictionCol="p")
    validator = CrossValidator(estimator=est, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1)
    found = validator.fit(lines(spark))
    assert (found.bestModel.uid, found.bestModel.getPredictionCol()) == (est.uid, "p")
    assert np.isfinite(found.avgMetrics).all()
    for each, kind, path in ((validator, CrossValidator, "validator"), (found, CrossValidatorModel, "found")):
        each.save(str(tmp_path / path))
        maps = kind.load(str(tmp_path / path)).getEstimatorParamMaps()
        assert [{param.name: value for param, value in each.items()} for each in maps] == [
            {"epochs": epochs, "predictionCol": "p"} for epochs in (1, 2)
        ]
    assert CrossValidatorModel.load(str(tmp_path / "found")).bestModel.uid == est.uid
