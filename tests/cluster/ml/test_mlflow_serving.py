"""Logged models where they are served: over HTTP in an environment without this package, in pandas, and in Spark."""

import logging
import re
import socket
import subprocess

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
import tensorflowonspark.ml.mlflow as flavor
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.registration import Registration
from tests.support.mlflow_server import ModelServer, own_environment, without_paths

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]

# Columns of each kind that a request can hold.
COLUMNS = {
    "pixels": "transform(array(0, 1, 2, 3), k -> cast(id * k as float))",
    "word": "element_at(array('to', 'be'), cast(id % 2 as int) + 1)",
    "counts": "array(array(cast(id as int)), array(7))",
    "level": "cast(id as byte)",
    "weight": "cast(id / 4 as decimal(6, 2))",
    "day": "date_add(date'2024-02-03', cast(id as int))",
}


def classifier():
    import keras

    class Shift(keras.layers.Layer):
        """A layer of a module that imports Spark's: its code is in a pickle."""

        def call(self, x):
            return x + 0.5

    model = keras.Sequential([keras.Input((4,)), Shift(), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def many():
    """A model of several inputs and outputs, of text and numbers, with a layer whose module is logged."""
    import keras

    from tests.support.served_layers import Scale

    inputs = {
        "pixels": keras.Input((2, 2), name="pixels"),
        "word": keras.Input((1,), name="word", dtype="string"),
        "counts": keras.Input((2, 1), name="counts"),
        "level": keras.Input((1,), name="level", dtype="int64"),
        "weight": keras.Input((1,), name="weight"),
        "day": keras.Input((1,), name="day"),
    }
    parts = [
        Scale()(keras.layers.Flatten()(inputs["pixels"])),
        keras.layers.StringLookup(vocabulary=["to", "be"], output_mode="one_hot")(inputs["word"]),
        keras.layers.Flatten()(inputs["counts"]),
        keras.layers.CategoryEncoding(8)(inputs["level"]),
        inputs["weight"],
        keras.layers.Rescaling(1e-4)(inputs["day"]),
    ]
    joined = keras.layers.Concatenate()(parts)
    outputs = {
        "kind": keras.layers.Dense(3, "softmax", name="kind")(joined),
        "age": keras.layers.Dense(1, name="age")(joined),
        "place": keras.layers.Dense(2, name="place")(joined),
    }
    return keras.Model(inputs, outputs)


@pytest.fixture
def registered(spark, mlflow):
    """A function from the name of a model to that model, fitted or given, its address in the registry, and its rows."""

    def made(name):
        rows = spark.range(8).select(*(f.expr(sql).alias(column) for column, sql in COLUMNS.items()))
        if name == "given":
            stage = KerasModel.from_keras(many(), featuresCols=list(COLUMNS))
            with mlflow.start_run():
                flavor.log_model(stage, rows, registered_model_name=name, tags={"by": "us"}, aliases=["champion"])
            return stage, f"models:/{name}@champion", rows
        rows = rows.select("pixels", (f.col("level") % 3).alias("label"))
        est = KerasEstimator(
            classifier,
            featuresCol="pixels",
            registeredModelName=name,
            modelTags={"by": "us"},
            modelAliases=["champion"],
        )
        with mlflow.start_run():
            return est.fit(rows), f"models:/{name}@champion", rows.drop("label")

    return made


def flat(rows):
    """Return the results of rows as MLflow has them: a column for each output of a struct, and lists."""
    found = {}
    for name in ("rawPrediction", "probability", "prediction"):
        for row in rows:
            values = row[name].asDict() if hasattr(row[name], "asDict") else {"": row[name]}
            for output, value in values.items():
                column = f"{name}.{output}".rstrip(".")
                found.setdefault(column, []).append(value.toArray() if hasattr(value, "toArray") else value)
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("name", ["fitted", "given"])
def test_every_way_to_apply_a_logged_model_gives_the_rows_of_transform(spark, mlflow, registered, tmp_path, name):
    stage, uri, rows = registered(name)
    version = mlflow.MlflowClient().get_model_version_by_alias(name, "champion")
    assert (version.version, version.tags) == ("1", {"by": "us"})
    expected = flat(stage.transform(rows).collect())
    given = rows.toPandas()
    python = own_environment(tmp_path / "environment")
    looking = "from importlib.util import find_spec; print(find_spec('tensorflowonspark'), find_spec('pyspark'))"
    found = subprocess.check_output([python, "-c", looking], text=True, cwd=tmp_path, env=without_paths())
    assert found == "None None\n"
    server = ModelServer(python, uri, mlflow.get_tracking_uri(), tmp_path)
    try:
        answers = {"HTTP": pd.DataFrame(server.answer(given))}
        wrong = server.answer(given.assign(pixels=[[1.0]] * len(given)))
        assert "column 'pixels' holds 1 value in each row" in wrong
    finally:
        server.close()
    answers["load_model"] = mlflow.pyfunc.load_model(uri).predict(given)
    signature = mlflow.models.get_model_info(uri).signature
    assert signature.inputs.input_names() == list(rows.columns)
    kinds = {
        each.name: "array<double>" if "array" in str(each.type).lower() else "double" for each in signature.outputs
    }
    udf = mlflow.pyfunc.spark_udf(
        spark, uri, env_manager="local", result_type=", ".join(f"`{each}` {kind}" for each, kind in kinds.items())
    )
    answers["spark_udf"] = rows.select(udf(*rows.columns).alias("y")).select("y.*").toPandas()
    for way, answer in answers.items():
        assert sorted(answer) == sorted(expected) == sorted(kinds), way
        for column, values in expected.items():
            np.testing.assert_allclose(np.array(answer[column].tolist()), values, rtol=1e-5, atol=1e-6, err_msg=way)
    example = mlflow.pyfunc.load_model(uri).input_example
    assert list(example) == list(rows.columns)
    assert len(mlflow.pyfunc.load_model(uri).predict(example)) == 1
    assert flavor.load_model(uri).uid == stage.uid


def test_a_registry_that_is_down_is_a_warning_and_the_model_is_logged(spark, mlflow, caplog):
    with socket.create_server(("127.0.0.1", 0)) as found:
        closed = f"http://127.0.0.1:{found.getsockname()[1]}"
    before = mlflow.get_registry_uri()
    mlflow.set_registry_uri(closed)
    try:
        rows = spark.range(8).select(f.expr(COLUMNS["pixels"]).alias("features"), (f.col("id") % 3).alias("label"))
        with mlflow.start_run() as run, caplog.at_level(logging.WARNING):
            model = KerasEstimator(classifier, registeredModelName="digits").fit(rows)
    finally:
        mlflow.set_registry_uri(before)
    text = f"the model's registration as 'digits' at {closed}: nothing listens at {closed.removeprefix('http://')}"
    assert text in caplog.text
    assert model.history["loss"]
    assert len(mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model").predict(rows.toPandas())) == 8


def forgetful():
    import keras

    class Times(keras.layers.Layer):
        def __init__(self, by=2.0):
            super().__init__()
            self.by = by

        def get_config(self):  # Keras saves it, and can't load it
            return super().get_config()

        def call(self, x):
            return self.by * x

    model = keras.Sequential([keras.Input((4,)), Times(), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def test_a_model_that_can_not_be_loaded_again_is_neither_logged_nor_registered(spark, mlflow, caplog):
    rows = spark.range(8).select(f.expr(COLUMNS["pixels"]).alias("features"), (f.col("id") % 3).alias("label"))
    problem = r"can't be loaded from its file, with your Times: .*argument 'name'.* A class needs a get_config"
    with mlflow.start_run(), caplog.at_level(logging.WARNING):
        model = KerasEstimator(forgetful, registeredModelName="forgetful").fit(rows)
        with pytest.raises(tfos.SpecError, match=problem):
            flavor.log_model(model, rows)
    assert re.search(f"the model: the model {problem}", caplog.text)
    assert model.history["loss"]
    with pytest.raises(mlflow.MlflowException, match="not found"):
        mlflow.MlflowClient().get_registered_model("forgetful")


def test_unity_catalogs_rules_are_obeyed_before_anything_starts(spark, mlflow):
    """Its client checks the name, and the signature in the files of the model."""
    from mlflow.store._unity_catalog.registry.rest_store import UcModelRegistryStore

    rows = spark.range(8).select(f.expr(COLUMNS["pixels"]).alias("features"), (f.col("id") % 3).alias("label"))
    before = mlflow.get_registry_uri()
    mlflow.set_registry_uri("databricks-uc")
    try:
        for name in ("digits", "ml.digits", "main..digits", "main.ml.digits.v1"):
            with pytest.raises(tfos.SpecError, match=f"name '{name}': in Unity Catalog.*catalog.schema.model"):
                KerasEstimator(classifier, registeredModelName=name).fit(rows)
        assert Registration.of("main.ml.digits", None, None).name == "main.ml.digits"
    finally:
        mlflow.set_registry_uri(before)
    with mlflow.start_run():
        stage = KerasModel.from_function(abs, {"y": ("float32", (4,))}, shapes={"features": (4,)})
        uri = flavor.log_model(stage, rows).model_uri
    UcModelRegistryStore._validate_model_signature(None, mlflow.artifacts.download_artifacts(uri))
