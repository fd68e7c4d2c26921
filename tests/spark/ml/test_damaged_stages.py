"""What is no stage that this version can load: each is refused with its path and the reason."""

import json
import shutil
from pathlib import Path

import keras
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.custom_layers import model_of
from tests.support.lines import line

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240), pytest.mark.smoke]


@pytest.fixture(scope="module")
def saved(spark, tmp_path_factory):
    """Return a directory with a stage of each kind."""
    root = tmp_path_factory.mktemp("saved")
    exported = str(root / "exported")
    model_of().export(exported, verbose=False)
    stages = {
        "estimator": KerasEstimator(line, batchSize=8),
        "model": KerasModel.from_keras(model_of()),
        "function": KerasModel.from_function(lambda x: x, {"y": ("float32", ())}),
        "saved_model": KerasModel.from_saved_model(exported),
        "pipeline": Pipeline(stages=[]),
        "assembler": VectorAssembler(inputCols=["x"], outputCol="y"),
    }
    for name, stage in stages.items():
        stage.save(str(root / name))
    return root


def cut(file):
    def spoil(place):
        data = (place / file).read_bytes()
        (place / file).write_bytes(data[: len(data) // 2])

    return spoil


def flipped(file):
    def spoil(place):
        data = bytearray((place / file).read_bytes())
        data[len(data) // 3] ^= 0xFF
        (place / file).write_bytes(data)

    return spoil


def without(file):
    return lambda place: (place / file).unlink()


def metadata(**entries):
    def spoil(place):
        file = next((place / "metadata").glob("part-*"))
        held = json.loads(file.read_text())
        for name, value in entries.items():
            if isinstance(value, dict) and isinstance(held.get(name), dict):
                held[name] |= value
            else:
                held[name] = value
        file.write_text(json.dumps(held))

    return spoil


def nothing(_place):
    pass


PART = "metadata/part-00000"


@pytest.mark.parametrize(
    ("name", "kind", "spoil", "told"),
    [
        ("model", KerasEstimator, nothing, "holds a stage of .*KerasModel, and no .*KerasEstimator: KerasModel.l"),
        ("estimator", KerasModel, nothing, "a stage of .*KerasEstimator, and no .*KerasModel: KerasEstimator.load"),
        ("pipeline", KerasEstimator, nothing, "holds a stage of org.*Pipeline, and no .*: Pipeline.load reads it"),
        ("assembler", KerasEstimator, nothing, "holds a stage of .*VectorAssembler, and no .*KerasEstimator"),
        ("estimator", KerasEstimator, cut(PART), "its metadata is cut or damaged: .*Copy or save the stage again"),
        ("model", KerasModel, cut(PART), "its metadata is cut or damaged"),
        ("model", KerasModel, lambda place: (place / PART).write_text(""), "its metadata is cut or damaged"),
        ("model", KerasModel, lambda place: (place / PART).write_text("3"), "is damaged: it has no 'class', or of"),
        ("model", KerasModel, metadata(history=None), "it has no 'history', or of another type than JSON's object"),
        ("model", KerasModel, metadata(model=[]), "it has no 'model', or of another type"),
        ("model", KerasModel, metadata(uid=3), "it has no 'uid', or of another type than JSON's string"),
        ("estimator", KerasEstimator, metadata(paramMap={"rounds": 3}),
         r"KerasEstimator has no param 'rounds', which the saved stage has \(tensorflowonspark 3.*has saved it"),
        ("model", KerasModel, metadata(defaultParamMap={"rounds": 3}), "KerasModel has no param 'rounds', which"),
        ("estimator", KerasEstimator, metadata(paramMap={"strategy": "gossip"}, tensorflowonspark="9.1"),
         r"can't be set \(tensorflowonspark 9.1 has saved it, and this is 3.*param .strategy.*expected"),
        ("estimator", KerasEstimator, metadata(paramMap={"clusterOptions": {"fabric": 1}}), "has no setting 'fabric'"),
        ("estimator", KerasEstimator, metadata(sparkVersion="new"), "its params can't be set"),
        ("estimator", KerasEstimator, cut("objects/objects.pkl"), "params in objects/objects.pkl can't be loaded"),
        ("model", KerasModel, cut("model/model.keras"), "model/model.keras is cut or damaged: .*Copy or save"),
        ("model", KerasModel, flipped("model/model.keras"), "model/model.keras is cut or damaged"),
        ("model", KerasModel, without("model/model.keras"), "holds no model that can be read"),
        ("function", KerasModel, cut("model/function.pkl"), "model/function.pkl is cut or damaged"),
        ("saved_model", KerasModel, without("model/saved_model/saved_model.pb"), "model/saved_model is cut or damaged"),
    ],
)  # fmt: skip
def test_it_is_refused_with_its_path_and_the_reason(saved, tmp_path, name, kind, spoil, told):
    place = Path(shutil.copytree(saved / name, tmp_path / "stage"))
    for file in place.rglob("*.crc"):
        file.unlink()
    spoil(place)
    with pytest.raises(tfos.SpecError, match=rf"(?s){place}.*{told}"):
        kind.load(str(place))


def test_code_that_is_cut_is_refused_when_the_stage_is_loaded(spark, tmp_path):
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = keras.Sequential([keras.Input((1,)), Twice()])
    KerasModel.from_keras(model).save(str(tmp_path / "stage"))
    cut("model/code.pkl")(tmp_path / "stage")
    with pytest.raises(tfos.SpecError, match="stage: model/code.pkl is cut or damaged"):
        KerasModel.load(str(tmp_path / "stage"))


@pytest.mark.parametrize("name", ["estimator", "model", "function", "saved_model"])
def test_what_is_whole_loads(saved, name):
    kind = KerasEstimator if name == "estimator" else KerasModel
    assert isinstance(kind.load(str(saved / name)), kind)
