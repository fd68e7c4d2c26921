"""The params of the stages: explicit signatures, typed setters and getters, and None for unset."""

import inspect
import pydoc
import subprocess
import sys

import pytest
from pyspark.ml.param import Param

import tensorflowonspark as tfos
from tensorflowonspark.declarations import entries_of, keywords_of, texts_of
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.params import ModelSettings
from tensorflowonspark.ml.training_params import EstimatorSettings

STAGES = [(KerasEstimator, EstimatorSettings), (KerasModel, ModelSettings)]
SHARED = {"featuresCol", "predictionCol", "probabilityCol", "rawPredictionCol", "labelCol", "weightCol", "seed"}
SHARED |= {"validationIndicatorCol"}
NO_PARAMS = {"self", "bundle", "history"}
PROGRAM = """
from pyspark.sql import DataFrame, SparkSession
from tensorflowonspark.ml import KerasEstimator, KerasModel


def build() -> object:
    raise NotImplementedError


def program(spark: SparkSession) -> DataFrame:
    df = spark.range(3).toDF("image")
    est = KerasEstimator(model=build, featuresCol="image", epochs=5)
    est = est.setBatchSize(64).setOptimizer("adam").setValidationData(df).setParams(numWorkers=2)
    model = est.fit(df)
    reveal_type(model)
    reveal_type(est.getEpochs())
    reveal_type(est.setSeed(3))
    model.setHandleInvalid("keep").layer_outputs(["hidden"]).transform(df)
    KerasModel.from_file("model.keras", inferenceBatchSize=None).save("stage")
    reveal_type(KerasModel.load("stage"))
    return KerasEstimator(model=build, featuresCol="image", epochs=5).fit(df).transform(df)
"""
MISTAKES = """
from tensorflowonspark.ml import KerasEstimator, KerasModel
KerasEstimator(epoch=5)
KerasEstimator(epochs="five")
KerasEstimator().setEpochs("five")
KerasEstimator().setParams(epoch=5)
KerasModel.from_file("model.keras", epochs=5)
KerasModel(handleInvalid="drop")
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Return what mypy reports of both programs, without the types of other packages, which take long to read."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "mistakes.py").write_text(MISTAKES)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py", "mistakes.py"]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)
    assert not ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_typed_program(checked):
    lines = [line for line in checked.splitlines() if line.startswith("program.py")]
    assert [line.split(": ", 2)[2] for line in lines] == [
        'Revealed type is "tensorflowonspark.ml.model.KerasModel"',
        'Revealed type is "int"',
        'Revealed type is "tensorflowonspark.ml.estimator.KerasEstimator"',
        'Revealed type is "tensorflowonspark.ml.model.KerasModel"',
    ]


@pytest.mark.slow
def test_mistakes_are_found_before_a_program_runs(checked):
    errors = [line for line in checked.splitlines() if line.startswith("mistakes.py") and "error" in line]
    assert {int(line.split(":")[1]) for line in errors} == set(range(3, 9))


@pytest.mark.parametrize(("stage", "settings"), STAGES)
def test_signatures_name_all_params_with_their_defaults(stage, settings):
    parameters = inspect.signature(stage.__init__).parameters
    signature = {name: each.default for name, each in parameters.items() if name not in NO_PARAMS}
    made = stage()
    assert set(signature) == set(keywords_of(settings)) == {each.name for each in made.params}
    for name, default in signature.items():
        assert (made._optional(name) or None) == (default or None), name
        title = name[0].upper() + name[1:]
        assert list(inspect.signature(getattr(stage, f"set{title}")).parameters) == ["self", "value"]
        assert callable(getattr(stage, f"get{title}"))
        assert isinstance(getattr(stage, name), Param)


@pytest.mark.parametrize(("stage", "settings"), STAGES)
def test_help_shows_each_param_with_its_text(stage, settings):
    texts, lines = texts_of(settings), [line.strip(" |") for line in pydoc.plain(pydoc.render_doc(stage)).splitlines()]
    shown, explained = "\n".join(lines), stage().explainParams()
    for name, entry in entries_of(settings).items():
        title = name[0].upper() + name[1:]
        assert "\n".join(line.strip() for line in entry.splitlines()) in shown
        assert f"Set `{name}`: {texts[name].split()[0]}" in shown
        assert f"get{title}(self)" in shown
        if name not in SHARED:  # whose text and getter are Spark ML's
            assert f"{name}: {texts[name]}" in explained
            assert f"Return `{name}`: {texts[name].split()[0]}" in shown


def test_none_unsets_and_a_default_is_not_set():
    est = KerasEstimator(epochs=5, classWeight=None, weightCol="w", featuresCols=["a", "b"])
    assert est.isSet("epochs")
    assert not est.isSet("classWeight")
    assert not est.isSet("batchSize")
    assert est.setWeightCol(None)._weight_column is None
    assert est.setWeightCol("")._weight_column is None  # an empty name is none to Spark ML
    assert est.getFeaturesCols() == ["a", "b"]
    assert est.setFeaturesCols(None)._feature_columns == ["features"]
    assert est.setParams(epochs=None).getEpochs() == 1
    assert (est.getOptimizer(), est.getValidationData(), est.getModel()) == (None, None, None)
    assert est.setDtypes({"a": "float32"}).getDtypes() == {"a": "float32"}
    assert "dtypes: dtype of the values that the model receives" in est.explainParams()


@pytest.mark.parametrize(
    "make", [KerasEstimator, KerasModel, lambda **params: KerasModel.from_function(len, {}, **params),
             lambda **params: KerasModel().setParams(**params)],
)  # fmt: skip
def test_a_misspelt_param_is_named_with_the_nearest(make):
    with pytest.raises(tfos.SpecError, match=r"no param 'handleInvalit' \(did you mean 'handleInvalid'\?\)"):
        make(handleInvalit="keep")
