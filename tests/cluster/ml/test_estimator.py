"""Fitting Keras models on DataFrames, as a user of Spark ML does it."""

import json
import re

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.commands import run_python
from tests.support.lines import line, lines

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
QUIET = {"clusterOptions": {"log_level": "WARNING"}}


def digits(spark):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    rows = [(number, images[each].tolist(), int(labels[each])) for number, each in enumerate(order)]
    return spark.createDataFrame(rows, "id long, image array<float>, digit int").repartition(4, "id").cache()


def network():
    import keras

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


@pytest.mark.slow
def test_digits_in_a_pipeline_that_is_saved_and_read_in_a_new_process(spark, tmp_path):
    data = digits(spark)
    train, test = data.where("id % 5 <> 0"), data.where("id % 5 = 0")
    settings = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **QUIET}
    est = KerasEstimator(network, featuresCol="image", labelCol="digit", numWorkers=2, epochs=12, **settings)
    est.setBatchSize(64).setValidationData(test)
    fitted = est.fit(train)
    predicted = fitted.transform(test)
    assert predicted.columns == ["id", "image", "digit", "rawPrediction", "probability", "prediction"]
    assert MulticlassClassificationEvaluator(labelCol="digit", metricName="accuracy").evaluate(predicted) >= 0.97
    first = predicted.orderBy("id").first()
    assert first.probability.size == 10
    assert np.argmax(first.probability.toArray()) == first.prediction
    assert abs(first.probability.toArray().sum() - 1) < 1e-5
    assert set(fitted.history) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert fitted.summary.totalIterations == 12

    pipeline = PipelineModel([fitted])
    pipeline.save(str(tmp_path / "pipeline"))
    expected = [row.prediction for row in predicted.orderBy("id").collect()]
    images = [row.image for row in test.orderBy("id").collect()]
    (tmp_path / "images.json").write_text(json.dumps(images))
    program = f"""
import glob, json, sys
import numpy as np
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
images = json.load(open({str(tmp_path / "images.json")!r}))
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([(n, image) for n, image in enumerate(images)], "id long, image array<float>")
model = PipelineModel.load({str(tmp_path / "pipeline")!r})
predicted = [row.prediction for row in model.transform(frame).orderBy("id").collect()]
spark.stop()
import keras
(path,) = glob.glob({str(tmp_path / "pipeline")!r} + "/stages/*/model/model.keras")
alone = keras.models.load_model(path).predict(np.array(images).reshape(-1, 8, 8, 1), verbose=0).argmax(1)
print(json.dumps([predicted, alone.tolist()]))
"""
    told = run_python(program)
    again, alone = json.loads(told.strip().splitlines()[-1])
    assert again == expected
    assert alone == expected


@pytest.mark.slow
def test_same_seed_same_weights_and_workers_agree_with_one(spark):
    def weights(workers, seed=3):
        est = KerasEstimator(line, numWorkers=workers, epochs=3, batchSize=8, seed=seed, **QUIET)
        model = est.fit(lines(spark))
        return np.concatenate([each.ravel() for each in model.keras().get_weights()]), model.history["loss"]

    (one, loss), (again, _), (two, loss_of_two), (three, loss_of_three) = map(weights, (2, 2, 1, 3))
    assert np.array_equal(one, again)
    assert np.allclose(one, two, atol=0.15)  # the rows are the same, their order is not
    assert np.allclose(one, three, atol=0.15)
    assert loss[-1] < 0.1 * loss[0]
    assert loss_of_two[-1] < 0.1 * loss_of_two[0]
    assert loss_of_three[-1] < 0.1 * loss_of_three[0]


@pytest.mark.slow
def test_training_that_begins_with_the_first_rows_learns_as_well(spark, tmp_path):
    """Whatever else an estimator offers goes with it."""
    import keras

    est = KerasEstimator(
        line,
        numWorkers=2,
        epochs=8,
        batchSize=8,
        stepsPerExecution=3,
        validationIndicatorCol="held_out",
        checkpointDir=str(tmp_path),
        callbacks=[keras.callbacks.EarlyStopping(patience=9), keras.callbacks.ReduceLROnPlateau(patience=9)],
        verbose=1,
        restarts=1,
        **QUIET,
    )
    for start in ("all_rows", "first_rows"):
        history = est.fit(lines(spark), {est.start: start}).history
        assert {len(history[name]) for name in ("loss", "val_loss")} == {8}
        assert history["loss"][-1] < 0.2 * history["loss"][0]
        assert history["val_loss"][-1] < 0.1


@pytest.mark.slow
def test_validation_weights_and_early_stopping(spark):
    import keras

    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, patience=1)
    est = KerasEstimator(line, epochs=9, batchSize=8, numWorkers=2, validationIndicatorCol="held_out", **QUIET)
    model = est.setCallbacks([stop]).setWeightCol("weight").setStepsPerExecution(2).fit(lines(spark))
    assert model.summary.totalIterations == 2
    assert set(model.history) == {"loss", "val_loss"}
    assert not [name for name in est.setValidationIndicatorCol("").fit(lines(spark)).history if "val" in name]


@pytest.mark.slow
def test_several_inputs_and_outputs(spark):
    def build():
        import keras

        left, right = keras.Input((2,), name="left"), keras.Input((1,), name="right")
        joined = keras.layers.Concatenate(name="joined")([left, right])
        kind = keras.layers.Dense(3, "softmax", name="kind")(joined)
        size = keras.layers.Dense(2, name="size")(joined)
        model = keras.Model([left, right], {"kind": kind, "size": size})
        model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
        return model

    data = spark.range(60).select(
        f.array(f.col("id") / 60, f.lit(1.0)).alias("left"), (f.col("id") % 7).cast("float").alias("right"),
        (f.col("id") % 3).cast("int").alias("kind"), f.array(f.lit(1.0), f.lit(2.0)).alias("size"),
    )  # fmt: skip
    est = KerasEstimator(build, featuresCols=["left", "right"], labelCols=["kind", "size"], numWorkers=2, **QUIET)
    model = est.fit(data)
    row = model.transform(data).first()
    assert row.prediction.kind in (0.0, 1.0, 2.0)
    assert len(row.prediction.size) == 2
    assert row.probability.kind.size == 3
    hidden = model.layer_outputs(["joined"]).transform(data).select("left", "right", "joined").first()
    assert hidden.joined == pytest.approx([*hidden.left, hidden.right])


@pytest.mark.smoke
def test_number_columns_become_one_input_and_class_weights_count(spark):
    def build():
        import keras

        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")])

    data = spark.range(200).select(
        f.col("id").cast("double").alias("a"), f.lit(1).alias("b"), (f.col("id") % 2).cast("int").alias("label")
    )
    settings = {"optimizer": "sgd", "loss": "binary_crossentropy", "epochs": 5, "fill": {}, **QUIET}
    est = KerasEstimator(build, featuresCols=["a", "b"], classWeight={0: 0.0, 1: 1.0}, **settings)
    row = est.fit(data).transform(data).first()
    assert row.prediction == 1.0
    assert row.probability.size == 2


@pytest.mark.slow
@pytest.mark.parametrize("in_files", [False, True])
def test_training_goes_on_from_its_checkpoint_and_from_a_model(spark, tmp_path, in_files):
    def broken(marker):
        import keras

        class Break(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2 and not marker.exists():
                    marker.touch()
                    raise RuntimeError("the power went")

        return Break()

    marker, directory = tmp_path / "marker", tmp_path / "checkpoints"
    import keras

    # The best, in this sense, is the first epoch.
    stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
    settings = {"epochs": 5, "batchSize": 8, "numWorkers": 2, "seed": 1, **QUIET}
    settings["cacheDir"] = str(tmp_path / "rows") if in_files else None
    unbroken = KerasEstimator(line, callbacks=[stopping], **settings).fit(lines(spark))
    est = KerasEstimator(line, checkpointDir=str(directory), **settings)
    est.setCallbacks([broken(marker), stopping])
    with pytest.raises(tfos.NodeError, match="the power went"):
        est.fit(lines(spark))
    assert directory.exists()
    model = est.fit(lines(spark))
    assert model.summary.totalIterations == 5  # of the whole training
    assert model.history["loss"] == pytest.approx(unbroken.history["loss"], rel=1e-4)
    for mine, theirs in zip(model.keras().get_weights(), unbroken.keras().get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert not directory.exists()
    further = KerasEstimator(initialModel=model, epochs=1, batchSize=8, **QUIET).fit(lines(spark))
    assert further.history["loss"][0] < model.history["loss"][0]


@pytest.mark.slow
def test_a_trained_model_that_cannot_be_made_a_stage_is_in_the_checkpoint(spark, tmp_path):
    def breaking(marker):
        import keras

        class Break(keras.callbacks.Callback):
            def on_train_end(self, logs=None):
                if not marker.exists():
                    marker.touch()
                    self.model.layers[-1].get_config = None

        return Break()

    directory = tmp_path / "checkpoints"
    est = KerasEstimator(line, epochs=3, batchSize=8, seed=1, checkpointDir=str(directory), **QUIET)
    with pytest.raises(tfos.NodeError, match="TypeError"):
        est.setCallbacks([breaking(tmp_path / "marker")]).fit(lines(spark))
    assert directory.exists()
    model = est.fit(lines(spark))
    assert len(model.history["loss"]) == 3
    assert model.history["loss"][-1] < model.history["loss"][0]
    assert not directory.exists()


@pytest.mark.slow
def test_a_loop_of_ones_own(spark):
    def loop(model, dataset, validation, ctx):
        rows = sum(int((weights > 0).numpy().sum()) for _, _, weights in dataset)
        model.layers[-1].bias.assign([float(rows)])
        return {"rows": [rows]}

    model = KerasEstimator(line, trainFn=loop, **QUIET).fit(lines(spark))
    assert model.history == {"rows": [64.0]}
    assert {row.prediction for row in model.transform(lines(spark)).collect()} == {64.0}


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cross_validation_finds_the_better_params_and_all_can_be_saved(spark, tmp_path):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    est = KerasEstimator(model, loss="mse", batchSize=8, **QUIET)
    rates = [keras.optimizers.SGD(0.3), keras.optimizers.SGD(1e-5)]
    grid = ParamGridBuilder().addGrid(est.optimizer, rates).addGrid(est.epochs, [6, 1]).build()
    assembler = VectorAssembler(inputCols=["x"], outputCol="raw")
    scaler = StandardScaler(inputCol="raw", outputCol="features", withMean=True)
    pipeline = Pipeline(stages=[assembler, scaler, est])
    data = lines(spark).select(f.col("features")[0].alias("x"), "label")
    validator = CrossValidator(
        estimator=pipeline,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(metricName="rmse"),
        numFolds=3,
        seed=1,
    )
    found = validator.fit(data)
    best = found.getEstimatorParamMaps()[int(np.argmin(found.avgMetrics))]
    assert (best[est.optimizer], best[est.epochs]) == (rates[0], 6)
    pipeline.save(str(tmp_path / "pipeline"))
    loaded = Pipeline.load(str(tmp_path / "pipeline")).getStages()[-1]
    assert loaded.uid == est.uid
    assert loaded.getBatchSize() == 8
    assert loaded.getModel().count_params() == 2
    best = found.bestModel
    best.write().overwrite().save(str(tmp_path / "best"))
    again = PipelineModel.load(str(tmp_path / "best"))
    expected, got = ([row.prediction for row in each.transform(data).collect()] for each in (best, again))
    assert got == expected


def test_rows_are_read_from_files_in_each_epoch(spark, tmp_path):
    """Nothing is left of the files; vectors and marked rows are what they are."""
    assembler = VectorAssembler(inputCols=["features[0]"], outputCol="vector")
    data = assembler.transform(lines(spark).select("*", f.col("features")[0]))
    est = KerasEstimator(line, featuresCol="vector", validationIndicatorCol="held_out", batchSize=8, epochs=8, **QUIET)
    history = est.setCacheDir(str(tmp_path)).fit(data).history
    assert {len(history[name]) for name in ("loss", "val_loss")} == {8}
    assert history["loss"][-1] < 0.2 * history["loss"][0]
    assert history["val_loss"][-1] < 0.1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_rows_in_files_are_those_that_are_fed_and_are_removed_after_a_failure(spark, tmp_path):
    def collect(model, rows, validation, ctx):
        seen = [sorted((x[0], y) for batch in each for x, y, w in zip(*map(np.asarray, batch), strict=True) if w > 0)
                for each in (rows, validation)]  # fmt: skip
        if ctx.attempt == 0 and model.optimizer.learning_rate > 0.2:
            raise RuntimeError("the rate is too high")
        return {"train": [y for _, y in seen[0]], "validation": [y for _, y in seen[1]]}

    data, params = lines(spark), {"trainFn": collect, "validationData": lines(spark, 10)}
    fed = KerasEstimator(line, batchSize=8, **params, **QUIET)
    read = fed.copy().setCacheDir(str(tmp_path))
    assert read.fit(data).history == fed.fit(data).history
    with pytest.raises(tfos.NodeError, match="the rate is too high"):
        read.setModelParams({"rate": 0.5}).fit(data)
    assert not list(tmp_path.iterdir())


def test_mixed_precision(spark):
    est = KerasEstimator(line, epochs=2, batchSize=8, mixedPrecision="mixed_bfloat16", **QUIET)
    fitted = est.fit(lines(spark))
    assert fitted.keras().layers[-1].dtype_policy.name == "mixed_bfloat16"
    assert fitted.history["loss"][-1] < fitted.history["loss"][0]
    assert fitted.transform(lines(spark)).first().prediction is not None


@pytest.mark.slow
def test_models_of_tf_keras(spark, tmp_path):
    import tf_keras

    model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    fitted = KerasEstimator(model, numWorkers=2, epochs=3, batchSize=8, **QUIET).fit(lines(spark))
    assert fitted._bundle.kind == "tf_keras"
    assert fitted.history["loss"][-1] < 0.1 * fitted.history["loss"][0]
    fitted.save(str(tmp_path / "model"))
    again = KerasModel.load(str(tmp_path / "model"))
    assert type(again.keras()).__module__.startswith("tf_keras")
    assert again.transform(lines(spark)).collect() == fitted.transform(lines(spark)).collect()


def test_copies_and_params(spark):
    est = KerasEstimator(line, epochs=2, **QUIET)
    other = est.copy({est.epochs: 5})
    assert (est.getEpochs(), other.getEpochs()) == (2, 5)
    assert "passes over all rows" in est.explainParams()
    models = dict(est.fitMultiple(lines(spark), [{est.epochs: 1}, {est.epochs: 3, est.modelParams: {"rate": 0.5}}]))
    assert [models[number].summary.totalIterations for number in (0, 1)] == [1, 3]
    rates = [float(models[number].keras().optimizer.learning_rate) for number in (0, 1)]
    assert rates == pytest.approx([0.1, 0.5])


def test_what_only_the_node_can_see_is_reported_by_it(spark, caplog):
    with pytest.raises(tfos.NodeError, match="not compiled: compile it, or set optimizer and loss"):
        KerasEstimator(network, featuresCol="features", **QUIET).fit(lines(spark))
    nulls = lines(spark).withColumn("label", f.expr("if(label > 2.9, null, label)"))
    expected = (
        r"column 'label' holds 3 nulls, the first in row 61.*df.where\(\"label is null\"\) shows them"
        ".* handleInvalid='skip'"
    )
    with pytest.raises(tfos.NodeError, match=expected):
        KerasEstimator(line, **QUIET).fit(nulls.coalesce(1))
    counting = {
        "trainFn": lambda model, rows, validation, ctx: {"rows": [sum(int((w > 0).numpy().sum()) for *_, w in rows)]}
    }
    assert KerasEstimator(line, handleInvalid="skip", **counting, **QUIET).fit(nulls).history == {"rows": [61.0]}
    assert re.search(
        r"'skip': 3 of 64 rows are left out of training; of the first one, column 'label' .*1 null", caplog.text
    )
