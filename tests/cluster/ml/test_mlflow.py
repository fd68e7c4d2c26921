"""What a training logs to MLflow: with its own server, and real nodes."""

import json
import math
import time

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as f

import tensorflowonspark as tfos
import tensorflowonspark.ml.mlflow as flavor
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.spark_types import ROWS, TAKEN, source

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def build():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def rows(spark):
    return spark.range(96).select(
        f.array(f.col("id").cast("float") % 3, f.lit(1.0).cast("float")).alias("features"),
        (f.col("id") % 3).cast("int").alias("label"),
    )


def logged(mlflow, run):
    found = mlflow.MlflowClient().get_run(run.info.run_id)
    return found.data.params, found.data.metrics, found.data.tags


def history(mlflow, run, name):
    return [(each.step, each.value) for each in mlflow.MlflowClient().get_metric_history(run.info.run_id, name)]


def test_a_fit_logs_its_params_metrics_and_the_model_with_its_signature(spark, mlflow):
    data = rows(spark)
    est = KerasEstimator(build, epochs=3, numWorkers=2, batchSize=16, clusterOptions={"log_level": "WARNING"})
    with mlflow.start_run() as run:
        model = est.fit(data)
    params, metrics, tags = logged(mlflow, run)
    assert (params["epochs"], params["batchSize"], params["cluster.num_workers"]) == ("3", "16", "2")
    assert params["cluster.spark_master"] == "local[4]"
    assert not {"model", "clusterOptions", "callbacks"} & set(params)
    assert history(mlflow, run, "loss") == list(enumerate(model.history["loss"]))
    assert metrics["accuracy"] == model.history["accuracy"][-1]
    assert metrics["system/seconds_per_epoch"] > 0
    assert (tags["tensorflowonspark.state"], tags["tensorflowonspark.restarts"]) == ("ended", "0")
    names = ("backend", "workers", "seed", "versions.keras", "versions.spark", "program.name", "settings.num_workers")
    assert [tags[f"tensorflowonspark.{name}"] for name in names[:3]] == ["tensorflow", "2", str(est.getSeed())]
    assert all(tags[f"tensorflowonspark.{name}"] for name in names)
    (given,) = mlflow.get_run(run.info.run_id).inputs.dataset_inputs
    assert (given.dataset.name, json.loads(given.dataset.profile)) == ("feed 0", {"num_rows": 96})
    columns = json.loads(given.dataset.schema)["mlflow_colspec"]
    assert [each["name"] for each in columns] == ["features", "label"]
    assert given.dataset.digest not in ("", "unknown")
    assert [(each.key, each.value) for each in given.tags] == [("mlflow.data.context", "training")]

    signature = mlflow.models.get_model_info(f"runs:/{run.info.run_id}/model").signature
    assert [each["name"] for each in signature.inputs.to_dict()] == ["features"]
    assert [each["name"] for each in signature.outputs.to_dict()] == ["rawPrediction", "probability", "prediction"]


def test_a_logged_model_predicts_pandas_and_is_a_stage_again(spark, mlflow):
    data = rows(spark)
    with mlflow.start_run() as run:
        model = KerasEstimator(build, numWorkers=1, clusterOptions={"log_level": "WARNING"}).fit(data)
    uri = f"runs:/{run.info.run_id}/model"
    expected = model.transform(data.limit(9)).toPandas()
    found = mlflow.pyfunc.load_model(uri).predict(expected[["features"]])
    assert found["prediction"].tolist() == expected["prediction"].tolist()
    probabilities = [each.toArray() for each in expected["probability"]]
    np.testing.assert_allclose(np.array(found["probability"].tolist()), probabilities, rtol=1e-5)
    again = flavor.load_model(uri)
    assert (again.uid, again.history) == (model.uid, model.history)
    assert again.transform(data.limit(9)).toPandas()["prediction"].tolist() == expected["prediction"].tolist()


def test_where_code_is_refused_no_stage_with_code_is_read(spark, mlflow):
    """MLflow's own functions run the code of a model anyway."""
    data = rows(spark)
    stage = KerasModel.from_function(lambda x: x[:, 0], {"y": ("float32", ())}, shapes={"features": (2,)})
    with mlflow.start_run():
        uri = flavor.log_model(stage, data).model_uri
    spark.conf.set("spark.tensorflowonspark.loadCode", "false")
    try:
        with pytest.raises(tfos.SpecError, match=r"holds code \(function.pkl\)"):
            flavor.load_model(uri)
    finally:
        spark.conf.unset("spark.tensorflowonspark.loadCode")
    predict = mlflow.pyfunc.spark_udf(spark, uri, result_type="float", env_manager="local")
    assert data.limit(1).select(predict("features").alias("y")).first().y == 0.0


MORE = {
    "date of today": ("date_add(date'2024-02-03', cast(id as int))", lambda i: 19756 + i, ()),
    "timestamp of today": ("timestamp_micros(1706934306123456 + id)", lambda i: 1706934306123456 + i, ()),
    "long of 53 bits": ("9007199254740980 + id", lambda i: 9007199254740980 + i, ()),
    "array<date>": ("array(date_add(date'2024-02-03', cast(id as int)))", lambda i: [19756 + i], (1,)),
    "array<timestamp>": ("array(timestamp_micros(1706934306123456 + id))", lambda i: [1706934306123456 + i], (1,)),
    "array<boolean>": ("array(id % 2 = 0)", lambda i: [i % 2 == 0], (1,)),
    "array<byte>": ("array(cast(id as byte))", lambda i: [i], (1,)),
    "array<long>": ("array(9007199254740980 + id)", lambda i: [9007199254740980 + i], (1,)),
    "array<double>": ("array(id / 4)", lambda i: [i / 4], (1,)),
    "array<decimal>": ("array(cast(id / 4 as decimal(10, 2)))", lambda i: [i / 4], (1,)),
    "time: nanoseconds": ("make_time(0, 0, cast(id as decimal(16, 6)))", lambda i: i * 10**9, ()),
}


def number(value):
    """Return a number for a row's value: the sum of its numbers, or of the codes of its characters."""
    flat = np.asarray(value).reshape(-1).tolist()
    return float(sum(sum(map(ord, each)) if isinstance(each, str) else each for each in flat))


@pytest.mark.slow
def test_each_type_of_spark_means_the_same_to_a_logged_model(spark, mlflow):
    """By `transform`, ``pyfunc`` on pandas, and ``spark_udf``, in a session of another time zone than UTC."""
    kinds = {**TAKEN, **MORE}
    if not hasattr(f, "make_time"):  # before Spark 4.1
        del kinds["time: nanoseconds"]
    names = [f"c{place}" for place in range(len(kinds))]
    settings = {"spark.sql.session.timeZone": "America/Los_Angeles", "spark.sql.timeType.enabled": "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        columns = [f.expr(sql).alias(name) for name, (sql, _, _) in zip(names, kinds.values(), strict=True)]
        frame = source(spark).select("id", *columns).cache()
        stage = KerasModel.from_function(
            lambda columns: np.stack([np.array([number(each) for each in columns[name]]) for name in columns], axis=1),
            {"y": ("float64", (len(names),))},
            featuresCols=names,
            shapes={name: (2,) for name, kind in zip(names, kinds, strict=True) if kind.startswith("binary")},
        )
        with mlflow.start_run():
            uri = flavor.log_model(stage, frame).model_uri
        udf = mlflow.pyfunc.spark_udf(spark, uri, env_manager="local", result_type="prediction array<double>")
        given = frame.toPandas()
        answers = {
            "transform": {row.id: row.prediction for row in stage.transform(frame).collect()},
            "pyfunc": dict(
                zip(given["id"], mlflow.pyfunc.load_model(uri).predict(given[names])["prediction"], strict=True)
            ),
        }
        for zone in ("America/Los_Angeles", "Asia/Tokyo"):  # the second is not that of the session that has logged it
            spark.conf.set("spark.sql.session.timeZone", zone)
            found = frame.select("id", udf(*names).alias("y")).collect()
            answers[f"spark_udf in {zone}"] = {row.id: row.y.prediction for row in found}
    finally:
        for name in settings:
            spark.conf.unset(name)
    for way, found in answers.items():
        assert len(found) == ROWS
        for place, (kind, (_, value, _)) in enumerate(kinds.items()):
            for i in range(ROWS):
                assert found[i][place] == number(value(i)), (way, kind, i)


def report(args, ctx):
    for epoch in range(args["epochs"]):
        ctx.report(epoch=epoch, loss=math.nan if epoch == 1 else 1.0 / (epoch + 1))


def test_a_cluster_logs_its_arguments_and_what_its_program_reports(spark, mlflow):
    args = {"epochs": 3, "rate": 0.5, "api_key": "x", "columns": ["a"]}
    with mlflow.start_run() as run:
        for _ in range(2):
            tfos.run(spark, report, args, num_workers=2)
    params, _, tags = logged(mlflow, run)
    assert params["epochs"] == params["cluster_2/epochs"] == "3"
    assert params["cluster.program"] == "report"
    assert params["rate"] == "0.5"
    assert not {"api_key", "columns"} & set(params)
    for name in ("loss", "cluster_2/loss"):
        found = dict(history(mlflow, run, name))
        assert (found[0], math.isnan(found[1]), found[2]) == (1.0, True, 1 / 3)
    assert tags["cluster_2/tensorflowonspark.state"] == "ended"
    folders, files = [None], []
    while folders:
        for each in mlflow.MlflowClient().list_artifacts(run.info.run_id, folders.pop()):
            (folders if each.is_dir else files).append(each.path)
    assert sum(path.endswith("report.html") for path in files) == 2


def test_nothing_is_logged_without_a_run_or_with_tracking_none(spark, mlflow, caplog):
    client = mlflow.MlflowClient()
    before = len(client.search_runs(["0"]))
    tfos.run(spark, report, {"epochs": 1})
    with mlflow.start_run() as run:
        tfos.run(spark, report, {"epochs": 1}, dashboard=tfos.Dashboard(tracking="none"))
        options = {"tracking": "none", "log_level": "WARNING"}
        KerasEstimator(build, clusterOptions=options, registeredModelName="nobody").fit(rows(spark))
    assert "the model is not registered as 'nobody': no run of MLflow is active here" in caplog.text
    params, metrics, tags = logged(mlflow, run)
    assert (params, metrics) == ({}, {})
    assert not any("tensorflowonspark" in name for name in tags)
    assert len(client.search_runs(["0"])) == before + 1


def fail(args, ctx):
    ctx.report(loss=1.0)
    time.sleep(1)
    if ctx.attempt == 0:
        import os

        os._exit(3)


def test_restarts_and_failures_are_tags(spark, mlflow):
    with mlflow.start_run() as run:
        tfos.run(spark, fail, {}, restarts=1)
    _, _, tags = logged(mlflow, run)
    assert tags["tensorflowonspark.restarts"] == "1"
    assert "worker:0" in tags["tensorflowonspark.failure"]
    assert len(history(mlflow, run, "loss")) == 2


@pytest.fixture
def autolog(mlflow, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_DFS_TMP", str(tmp_path / "dfs"))  # mlflow.spark leaves its directory there
    allowed = ["pyspark.ml.*", "tensorflowonspark.ml.*"]
    mlflow.pyspark.ml.autolog(log_input_examples=False, log_datasets=False, log_model_allowlist=allowed)
    yield
    mlflow.pyspark.ml.autolog(disable=True)


def linear():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def points(spark):
    return spark.range(64).select(
        f.col("id").cast("double").alias("a"), f.lit(1.0).alias("b"), f.rand(1).alias("label")
    )


@pytest.mark.slow
def test_autolog_logs_a_pipeline_with_a_stage_of_ours_once(spark, mlflow, autolog):
    data = points(spark)
    est = KerasEstimator(linear, epochs=2, clusterOptions={"log_level": "WARNING"})
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="features"), est])
    pipeline.fit(data)
    run = mlflow.last_active_run()
    params, *_ = logged(mlflow, run)
    assert params["epochs"] == params["KerasEstimator.epochs"] == "2"
    assert params["cluster.num_workers"] == "1"
    assert len(history(mlflow, run, "loss")) == 2
    client = mlflow.MlflowClient()
    assert sorted(each.path for each in client.list_artifacts(run.info.run_id)) == [
        "estimator_info.json",
        "model",
        "tensorflowonspark",  # the report of its cluster
    ]
    ours = client.search_logged_models([run.info.experiment_id])
    assert run.info.run_id not in [each.source_run_id for each in ours]
    loaded = mlflow.spark.load_model(f"runs:/{run.info.run_id}/model")
    assert loaded.transform(data).columns == ["a", "b", "label", "features", "prediction"]


@pytest.mark.slow
def test_a_search_logs_the_training_of_the_best_model(spark, mlflow):
    data = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points(spark))
    est = KerasEstimator(linear, clusterOptions={"log_level": "WARNING"})
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 2]).build()
    search = CrossValidator(estimator=est, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), numFolds=2)
    with mlflow.start_run() as run:
        found = search.fit(data)
    params, metrics, _ = logged(mlflow, run)
    assert params["epochs"] == str(found.bestModel.history["loss"].__len__())
    assert metrics["loss"] == found.bestModel.history["loss"][-1]
    assert not any(name.startswith("cluster_2/") for name in params)
    table = pd.DataFrame({"features": [[1.0, 2.0]]})
    assert len(mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model").predict(table)) == 1
