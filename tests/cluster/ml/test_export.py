"""Models of stages in other formats: they take the columns of a DataFrame, and give what ``transform`` gives."""

import json

import keras
import numpy as np
import pytest
from keras import layers
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as f

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import FORMATS
from tensorflowonspark.exports.parity import apply
from tensorflowonspark.ml import KerasModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def side_by_side(spark):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="score")])
    rows = spark.createDataFrame([(1.0, 2, 3.0), (4.0, 5, 6.0), (0.5, -7, 2.0)], "a double, b bigint, c float")
    return KerasModel.from_keras(model, featuresCols=["a", "b", "c"]), rows


def vectors(spark):
    model = keras.Sequential([keras.Input((2,)), layers.Dense(3, "softmax", name="classes")])
    rows = spark.createDataFrame([(Vectors.dense(1.0, 2.0),), (Vectors.sparse(2, [0], [4.0]),)], ["features"])
    return KerasModel.from_keras(model), rows


def several(spark):
    user, place = keras.Input((4,), name="user"), keras.Input((), dtype="int32", name="place")
    both = layers.Concatenate()([user, layers.Embedding(10, 3)(place)])
    model = keras.Model([user, place], {"score": layers.Dense(1)(both), "classes": layers.Dense(4)(both)})
    rows = spark.createDataFrame([([1.0] * 4, 3), ([0.5] * 4, 9)], "user array<double>, place bigint")
    return KerasModel.from_keras(model, featuresCols=["place", "user"]), rows


def sequences(spark):
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(20, 4), layers.LSTM(3)])
    rows = spark.createDataFrame([([1, 2, 3],), ([4, 5, 6],)], "words array<int>")
    return KerasModel.from_keras(model, featuresCol="words"), rows


def text(spark):
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    stack = [keras.Input((), dtype="string"), lookup, layers.Embedding(4, 2), layers.Dense(1)]
    rows = spark.createDataFrame([("a",), ("z",), ("ü",)], "features string")
    return KerasModel.from_keras(keras.Sequential(stack)), rows


class Halved(layers.Layer):
    def call(self, values):
        return values / 2


def own_layer(spark):
    model = keras.Sequential([keras.Input((2,)), Halved(), layers.Dense(1)])
    return KerasModel.from_keras(model), spark.createDataFrame([([1.0, 2.0],)], "features array<float>")


STAGES = (side_by_side, vectors, several, sequences, text, own_layer)


@pytest.mark.parametrize("to", ["tf_saved_model", "onnx"])
@pytest.mark.parametrize("make", STAGES, ids=lambda make: make.__name__)
def test_columns_are_the_inputs(spark, tmp_path, make, to):
    stage, rows = make(spark)
    target = str(tmp_path / f"model{FORMATS[to].ending}")
    if (make, to) == (text, "onnx"):
        with pytest.raises(SpecError, match="can't express this model"):
            stage.export(target, rows)
        assert not list(tmp_path.iterdir())
        return
    assert stage.export(target, rows) == target
    first = rows.first().asDict()
    plain = {name: value.toArray() if hasattr(value, "toArray") else value for name, value in first.items()}
    taken = {name: np.array([value]) for name, value in plain.items()}
    for name, kind in rows.dtypes:
        if kind in ("float", "array<float>", "int", "array<int>"):
            taken[name] = taken[name].astype("float32" if "float" in kind else "int32")
    found = apply(target, FORMATS[to], taken)
    bundle = stage._bundle
    assert set(found) == {each.tensor.name for each in bundle.outputs}
    from_spark = stage.transform(rows).first()
    if "rawPrediction" in stage.transform(rows).columns:
        expected = {next(iter(found)): from_spark.probability.toArray()}
    else:
        expected = from_spark.prediction.asDict() if len(found) > 1 else {next(iter(found)): from_spark.prediction}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name][0].ravel(), np.ravel(value), rtol=1e-5, atol=1e-6)


def test_versions_formats_of_keras_and_the_manifest(spark, tmp_path):
    stage, rows = own_layer(spark)
    stage._manifest = {"format": 1, "workers": 2}
    base = str(tmp_path / "served")
    paths = [stage.export(base, rows, version=each) for each in ("next", "next", 7)]
    assert paths == [f"{base}/{number}" for number in (1, 2, 7)]
    assert json.loads((tmp_path / "served/7/assets.extra/manifest.json").read_text())["workers"] == 2
    assert stage.export(base, rows, format="onnx", version="next") == f"{base}/8"
    assert (tmp_path / "served/8/model.onnx").exists()
    for name in ("model.keras", "model.weights.h5"):
        stage.export(str(tmp_path / name), rows)
    with keras.saving.custom_object_scope({"Halved": Halved}):
        assert keras.models.load_model(tmp_path / "model.keras").count_params() == 3


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        (lambda df: df.drop("features"), {}, "the DataFrame has no column 'features'"),
        (lambda df: df.limit(0), {}, "the DataFrame has no rows"),
        (lambda df: df, {"format": "onxx"}, "format='onxx': there is none of this name (did you mean 'onnx'?)"),
        (lambda df: df.withColumn("features", f.array(f.lit(1.0))), {}, "shape"),
        (lambda df: df.withColumn("features", f.lit(None).cast("array<float>")), {}, "null"),
        (lambda df: df, {"check_rows": -1}, "check_rows=-1: expected a number of rows"),
    ],
    ids=["no column", "no rows", "no format", "another shape", "null", "negative"],
)
def test_what_does_not_fit_is_refused(spark, tmp_path, change, options, text):
    stage, rows = own_layer(spark)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - SpecError, or FeedError of a value
        stage.export(str(tmp_path / "model"), change(rows), **options)
    assert text in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_name_that_no_graph_has_is_refused(spark, tmp_path):
    rows = spark.createDataFrame([(1.0, 2.0)], ["grösse", "b"])
    stage = KerasModel.from_keras(keras.Sequential([keras.Input((2,)), layers.Dense(1)]), featuresCols=["grösse", "b"])
    with pytest.raises(SpecError, match="the input 'grösse' can't have this name in a graph"):
        stage.export(str(tmp_path / "model"), rows)


def test_other_kinds_of_stages_are_refused(spark, tmp_path):
    rows = spark.createDataFrame([(1.5,)], "x float")
    stage = KerasModel.from_function(lambda x: x * 2, {"twice": ("float32", ())}, featuresCol="x")
    with pytest.raises(SpecError, match="a stage with a model of the kind 'function' can't be written"):
        stage.export(str(tmp_path / "model"), rows)
    hidden, rows = own_layer(spark)
    with pytest.raises(SpecError, match="a stage with outputs of layers can't"):
        hidden.layer_outputs([hidden.keras().layers[-1].name]).export(str(tmp_path / "model"), rows)
