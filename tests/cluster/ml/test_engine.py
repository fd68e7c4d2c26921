"""``KerasModel.transform`` with ``engine="onnx"``: the same results as with Keras, or refused by name."""

import os
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from pyspark.sql import functions as f

from benchmarks.formats import models
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports import formats
from tensorflowonspark.ml import KerasModel, distribution, onnx_engine
from tests.cluster.ml.test_export import own_layer, sequences, several, side_by_side, text, vectors

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def pictures(spark):
    """Return a stage of bytes that are images."""
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.GlobalMaxPooling2D()])
    rows = spark.range(40).select(f.expr("cast(repeat(char(65 + id), 64) as binary)").alias("features"))
    return KerasModel.from_keras(model), rows


def numbers(spark):
    """Return a stage whose input has a dimension of 1, which a column of numbers has not."""
    model = keras.Sequential([keras.Input((1,)), layers.BatchNormalization(), layers.Dense(3, "relu")])
    return KerasModel.from_keras(model), spark.range(70).selectExpr("id / 7 as features")


def classifier(spark):
    """Return a stage of a class of the model's own, which leaves rows out that it can't take."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, "sigmoid", name="yes")])
    model.compile("sgd", "binary_crossentropy")
    rows = spark.range(50).selectExpr("id", "if(id = 7, null, array(id / 50, 1.0)) as features")
    return KerasModel.from_keras(model, handleInvalid="skip", inferenceBatchSize=3, thresholds=[0.5, 0.6]), rows


def layer_outputs(spark):
    """Return a stage that gives what two layers compute."""
    stage, rows = several(spark)
    names = [each.name for each in stage.keras().layers if each.name.startswith(("embedding", "dense"))]
    return stage.layer_outputs(names[:2]), rows


def no_rows(spark):
    """Return a stage and a DataFrame that is empty."""
    stage, rows = side_by_side(spark)
    return stage, rows.limit(0)


STAGES = (
    side_by_side, vectors, several, sequences, own_layer, pictures, numbers, classifier, layer_outputs, no_rows
)  # fmt: skip


def flat(value):
    """Return the numbers of a column's value as one array."""
    if hasattr(value, "asDict"):
        return np.concatenate([flat(each) for each in value])
    return np.ravel(value.toArray() if hasattr(value, "toArray") else value).astype("float64")


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=[pytest.mark.smoke] if make is several else [], id=make.__name__) for make in STAGES],
)
def test_the_results_are_those_of_keras(spark, make):
    keras.utils.set_random_seed(3)
    stage, rows = make(spark)
    own = rows.columns
    expected, found = (each.transform(rows) for each in (stage, stage.copy().setEngine("onnx")))
    assert found.schema == expected.schema
    pairs = list(zip(expected.collect(), found.collect(), strict=True))
    assert pairs or make is no_rows
    for wanted, given in pairs:
        for name in wanted.asDict():
            if name in own:
                assert given[name] == wanted[name]
            else:
                np.testing.assert_allclose(flat(given[name]), flat(wanted[name]), rtol=1e-5, atol=1e-6)


LOADING = """
import pickle, sys
import numpy as np
from tensorflowonspark.ml.distribution import load_call
with open(sys.argv[1], "rb") as file:
    call = load_call(pickle.load(file))
(found,) = call({"features": np.ones(5)}).values()
print(found.shape, {"tensorflow", "keras"} & {*sys.modules})
"""


def test_tasks_load_no_tensorflow(spark, tmp_path):
    """A new worker takes a second less, and half a gigabyte."""
    model = keras.Sequential([keras.Input((1,)), layers.Dense(3)])
    bundle = onnx_engine.onnx_bundle(KerasModel.from_keras(model)._complete_bundle)
    (tmp_path / "bundle").write_bytes(pickle.dumps(bundle))
    found = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path / "bundle")], check=False, capture_output=True, text=True
    )
    assert found.stdout.strip() == "(5, 3) set()", found.stderr


ON_JAX = """
import keras
from tensorflowonspark.ml import KerasModel

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
found = [KerasModel.from_keras(model, engine=engine).predict([1.0, 2.0, 3.0]) for engine in ("keras", "onnx")]
print(keras.backend.backend(), max(abs(one - other) for one, other in zip(*found)) < 1e-5)
"""


def test_a_model_on_jax_is_converted_by_a_process_on_tensorflow():
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", ON_JAX], check=False, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "jax True", done.stderr


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("array(cast(3000000000 as bigint), 1)", "column 'words' .int64. has a value that does not fit into int32"),
        ("slice(array(1, 2, 3), 1, cast(id % 2 + 1 as int))", "'words' has rows of different lengths.*pad them"),
        ("array('a')", "column 'words' holds strings or bytes, and the model's input .* takes int32"),
    ],
)
def test_rows_that_it_does_not_take(spark, column, text):
    stage, _ = sequences(spark)
    if column.startswith("slice"):
        stage.setShapes({"words": (None,)})  # ragged
    rows = spark.range(4).coalesce(1).select(f.expr(column).alias("words"))
    with pytest.raises(Exception, match=text):
        stage.setEngine("onnx").transform(rows).collect()


class Drawn(layers.Layer):
    """Gives other numbers in each call."""

    def call(self, values):
        import tensorflow as tf

        return values + tf.random.normal((2,))


def drawing(spark):
    return KerasModel.from_keras(keras.Sequential([keras.Input((2,)), Drawn()])), own_layer(spark)[1]


def function(spark):
    return KerasModel.from_function(lambda x: x, {"y": ("float32", (2,))}), own_layer(spark)[1]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (text, "engine='onnx': the input .* takes texts"),
        (function, "engine='onnx' takes a model of Keras 3, and this stage holds a function. engine='keras'"),
        (drawing, "engine='onnx': format='onnx': the export differs from the model: row .*engine='keras', the default"),
    ],
)
def test_models_that_it_can_not_apply(spark, make, error):
    stage, rows = make(spark)
    with pytest.raises(SpecError, match=error):
        stage.setEngine("onnx").transform(rows)
    assert stage.setEngine("keras").transform(rows).count() == rows.count()


def test_a_package_that_is_missing_is_named_before_spark_begins(spark, monkeypatch):
    stage, rows = numbers(spark)
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxruntime" else name)
    distribution._converted.clear()
    with pytest.raises(SpecError, match=r'onnxruntime is not installed in this Python: pip install "tensorflowonspark'):
        stage.setEngine("onnx").transform(rows)
    with pytest.raises(SpecError, match=r"engine='onx': expected one of 'keras', 'onnx'"):
        stage.setEngine("onx")


def test_a_stage_keeps_its_engine_and_converts_once(spark, tmp_path, monkeypatch):
    stage, rows = numbers(spark)
    expected = [row.prediction for row in stage.transform(rows).collect()]
    stage.setEngine("onnx").save(str(tmp_path / "stage"))
    again = KerasModel.load(str(tmp_path / "stage"))
    assert again.getEngine() == "onnx"
    np.testing.assert_allclose(again.predict(1.0), expected[7], rtol=1e-5)
    monkeypatch.setattr(onnx_engine, "onnx_bundle", None)
    for _ in range(2):
        found = [row.prediction for row in again.transform(rows).collect()]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_stream(spark, tmp_path):
    stage, rows = numbers(spark)
    rows.write.parquet(str(tmp_path / "incoming"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "incoming"))
    query = stage.setEngine("onnx").transform(stream).writeStream.format("memory").queryName("scored").start()
    try:
        query.processAllAvailable()
        assert spark.table("scored").count() == 70
    finally:
        query.stop()


OTHERS = (models.text, models.own_call)  # an engine takes none of texts, and a stage none of a class


@pytest.mark.parametrize("make", [each for each in models.MODELS if each not in OTHERS], ids=lambda make: make.__name__)
def test_every_kind_of_model(make):
    """What the driver sends computes what the model does, or is refused there."""
    keras.utils.set_random_seed(5)
    model, rows = make()
    stage = KerasModel.from_keras(model)
    call = distribution.loaded_here(onnx_engine.onnx_bundle(stage._complete_bundle))
    columns = rows if isinstance(rows, dict) else {"x": rows}
    expected = distribution.loaded_here(stage._complete_bundle)(columns)
    for name, values in call(columns).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-5)
