"""Spark's types, evaluators and tuners with the stages, compared with Keras alone: the table in docs/spark-ml.md.

``TFOS_WRITE_TABLE=1`` writes the table; without that it must be what the cells come to. Run the whole file.
"""

import os
import re

import keras
import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml import evaluation as ev
from pyspark.ml.classification import OneVsRest
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as f
from sklearn import metrics as sk

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.paths import DOCS
from tests.support.spark_types import ROWS, TAKEN, source

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = DOCS / "spark-ml.md"
BEGIN, END = "<!-- the table: begin -->\n", "<!-- the table: end -->\n"
QUIET = {"clusterOptions": {"log_level": "ERROR"}}
CELLS: dict[tuple[str, str], str] = {}
EQUAL = "equal"


def cell(group, name, verdict=EQUAL):
    assert (group, name) not in CELLS, name
    CELLS[group, name] = verdict


# ---- types

REFUSED = {
    "map": ("map('a', id)", "a tensor has no keys"),
    "void": ("null", "it has no values"),
    "array of structs": ("array(named_struct('a', id))", "an array of structs"),
    "interval year to month": ("make_ym_interval(1, 2)", "its length in time varies"),
    "variant": ("parse_json('{}')", "its values have no common type"),
    "matrix": ("matrix", "only Spark ML's vectors"),
    "string into a number": ("cast(id as string)", "holds strings or bytes, and the model's input .* takes float32"),
}


def name_of(kind):
    """Return a column's name in which all is that Spark reads as an expression."""
    return f"{kind}.`x` *"


def types_network():
    """Return a model with an input for each type, each with weights of its own."""
    inputs, parts = {}, []
    for place, (_, value, shape) in enumerate(TAKEN.values()):
        text = isinstance(np.asarray(value(0)).reshape(-1)[0].item(), str)
        given = keras.Input(shape or (1,), name=f"in_{place}", dtype="string" if text else "float32")
        inputs[f"in_{place}"] = given
        number = keras.layers.StringLookup(vocabulary=["a", "b"])(given) if text else given
        number = keras.layers.Rescaling(0.01)(keras.layers.Flatten()(number))
        parts.append(keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name=f"of_{place}")(number))
    model = keras.Model(list(inputs.values()), keras.layers.Add()(parts))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def test_types(spark):
    frame = source(spark).select("y", *[f.expr(sql).alias(name_of(kind)) for kind, (sql, _, _) in TAKEN.items()])
    alone = types_network()
    numbers = np.arange(ROWS)
    arrays = [np.array([value(i) for i in range(ROWS)]).reshape(ROWS, *(shape or (1,))) for _, value, shape in
              TAKEN.values()]  # fmt: skip
    given = [keras.ops.convert_to_tensor(each) if each.dtype.kind == "U" else each.astype("float32") for each in arrays]
    alone.fit(given, numbers / 10, batch_size=ROWS, epochs=2, verbose=0, shuffle=False)
    # One batch of all rows: then their order is nothing to the training.
    est = KerasEstimator(types_network(), featuresCols=list(map(name_of, TAKEN)), labelCol="y", numWorkers=2)
    fitted = est.setParams(epochs=2, batchSize=ROWS, **QUIET).fit(frame)
    trained = fitted.keras()
    for place, kind in enumerate(TAKEN):
        weights = [model.get_layer(f"of_{place}").get_weights()[0] for model in (trained, alone)]
        assert not np.allclose(weights[1], 1.0, atol=1e-6), kind
        np.testing.assert_allclose(*weights, rtol=2e-4, atol=1e-6, err_msg=kind)
        cell("Types of features", kind)
    predicted = sorted(row.prediction for row in fitted.transform(frame).collect())
    assert predicted == pytest.approx(sorted(alone.predict(given, verbose=0).ravel().tolist()), rel=1e-4)

    one = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    one.compile("sgd", "mse")
    for kind, (sql, told) in REFUSED.items():
        frame = source(spark).select("y", f.expr(sql).alias("features"))
        with pytest.raises((tfos.SpecError, tfos.FeedError), match=told) as of_model:
            KerasModel.from_keras(one).transform(frame)
        if kind != "string into a number":  # whose model is asked on the nodes
            with pytest.raises((tfos.SpecError, tfos.FeedError), match=told):
                KerasEstimator(one, labelCol="y").fit(frame)
        assert "features" in str(of_model.value)
        cell("Types of features", kind, f"refused: {re.sub('[.][*]', '…', told)}")
    frame = source(spark).select(f.struct("id", "y").alias("features"), "y")
    with pytest.raises(Exception, match="features"):
        KerasModel.from_keras(one).transform(frame).collect()
    cell(
        "Types of features",
        "struct",
        "different: select its fields as columns (`df.select('s.*')`)",
    )


# ---- evaluators


def scored(spark, outputs, activation, loss, labels):
    """Return a model's answers about some rows: as a DataFrame, and as Keras gives them in one process."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(outputs, activation=activation)])
    random = np.random.default_rng(3)
    model.set_weights([random.normal(size=(2, outputs)), random.normal(size=outputs)])
    model.compile("sgd", loss)
    x = random.normal(size=(60, 2)).astype("float32")
    truth, weight = labels(x).astype(float), 1.0 + np.arange(len(x)) % 3
    rows = list(zip(x.tolist(), truth.tolist(), weight.tolist(), strict=True))
    frame = spark.createDataFrame(rows, "features array<float>, label double, weight double")
    answers = KerasModel.from_keras(model).transform(frame).cache()
    return answers, model.predict(x, verbose=0).astype(float), truth, weight


def test_evaluators(spark):
    answers, given, truth, weight = scored(spark, 1, None, "mse", lambda x: x.sum(1))
    guess = given.ravel()
    for name, value in {
        "rmse": sk.mean_squared_error(truth, guess) ** 0.5,
        "mse": sk.mean_squared_error(truth, guess),
        "mae": sk.mean_absolute_error(truth, guess),
        "r2": sk.r2_score(truth, guess),
        "var": np.mean((guess - truth.mean()) ** 2),
    }.items():
        assert ev.RegressionEvaluator(metricName=name).evaluate(answers) == pytest.approx(value, rel=1e-5), name
        cell("Evaluators", f"RegressionEvaluator: {name}")
    weighted = ev.RegressionEvaluator(metricName="mse", weightCol="weight").evaluate(answers)
    assert weighted == pytest.approx(sk.mean_squared_error(truth, guess, sample_weight=weight), rel=1e-5)
    cell("Evaluators", "RegressionEvaluator: weightCol")

    losses = {
        "sigmoid": ("sigmoid", "binary_crossentropy"),
        "logits": (None, keras.losses.BinaryCrossentropy(from_logits=True)),
    }
    for kind, (activation, loss) in losses.items():
        answers, given, truth, _ = scored(spark, 1, activation, loss, lambda x: x[:, 0] > 0.2)
        pairs = [
            (Vectors.dense(1 - each, each), label)
            for each, label in zip(given.ravel().tolist(), truth.tolist(), strict=True)
        ]
        plain = spark.createDataFrame(pairs, ["rawPrediction", "label"])
        for name in ("areaUnderROC", "areaUnderPR"):
            # Spark's curve of precisions has a first point of its own.
            found, spark_alone = (
                ev.BinaryClassificationEvaluator(metricName=name, numBins=0).evaluate(each) for each in (answers, plain)
            )
            assert found == pytest.approx(spark_alone, rel=1e-6), name
            cell("Evaluators", f"BinaryClassificationEvaluator: {name}, of a {kind}")
        assert sk.roc_auc_score(truth, given.ravel()) == pytest.approx(
            ev.BinaryClassificationEvaluator(numBins=0).evaluate(answers), rel=1e-6
        )
        accuracy = ev.MulticlassClassificationEvaluator(metricName="accuracy").evaluate(answers)
        assert accuracy == pytest.approx(np.mean((given.ravel() > (0.5 if activation else 0)) == truth))
        cell("Evaluators", f"MulticlassClassificationEvaluator: accuracy, of a {kind}")


def test_evaluators_of_classes(spark):
    loss = "sparse_categorical_crossentropy"
    answers, given, truth, _ = scored(spark, 3, "softmax", loss, lambda x: x[:, 0] % 3 // 1)
    classes = given.argmax(1)
    for name, value in {
        "f1": sk.f1_score(truth, classes, average="weighted"),
        "accuracy": sk.accuracy_score(truth, classes),
        "weightedPrecision": sk.precision_score(truth, classes, average="weighted", zero_division=0),
        "weightedRecall": sk.recall_score(truth, classes, average="weighted"),
        "hammingLoss": np.mean(truth != classes),
        "logLoss": sk.log_loss(truth, given),
    }.items():
        found = ev.MulticlassClassificationEvaluator(metricName=name).evaluate(answers)
        assert found == pytest.approx(value, rel=1e-5), name
        cell("Evaluators", f"MulticlassClassificationEvaluator: {name}")
    for name in ("truePositiveRateByLabel", "precisionByLabel", "recallByLabel", "fMeasureByLabel"):
        found = ev.MulticlassClassificationEvaluator(metricName=name, metricLabel=1.0).evaluate(answers)
        of_one = {"average": None, "labels": [1.0], "zero_division": 0}
        function = {"prec": sk.precision_score, "fMea": sk.f1_score}.get(name[:4], sk.recall_score)
        assert found == pytest.approx(function(truth, classes, **of_one)[0]), name
        cell("Evaluators", f"MulticlassClassificationEvaluator: {name}")
    clusters = answers.withColumn("features", array_to_vector("features"))
    plain = clusters.select("features", f.udf(float, "double")("prediction").alias("prediction"))
    of_clusters = [ev.ClusteringEvaluator().evaluate(each) for each in (clusters, plain)]
    assert of_clusters[0] == of_clusters[1]
    cell("Evaluators", "ClusteringEvaluator: silhouette")


def test_evaluators_of_several_numbers(spark):
    answers, given, _, _ = scored(spark, 3, None, "mse", lambda x: x[:, 0])
    sets = answers.withColumn("label", f.expr("array(0D, 2D)"))
    ranked = f.expr("transform(array_sort(transform(prediction, (p, i) -> struct(-p, i))), s -> cast(s.i as double))")
    chosen = f.expr("filter(transform(prediction, (p, i) -> if(p > 0, cast(i as double), null)), i -> i is not null)")
    best = [np.argsort(-each, kind="stable") for each in given]
    told = "different: it takes `array<double>` of labels, and the model gives a number for each; make them first: `{}`"
    for evaluator, column, value, line in [
        (ev.RankingEvaluator(metricName="precisionAtK", k=2), ranked,
         np.mean([len({0, 2} & set(each[:2].tolist())) / 2 for each in best]), "transform(array_sort(…))"),
        (ev.MultilabelClassificationEvaluator(metricName="subsetAccuracy"), chosen,
         np.mean([set(np.flatnonzero(each > 0).tolist()) == {0, 2} for each in given]), "filter(transform(…))"),
    ]:  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)array<double>|ArrayType\(DoubleType|DoubleType"):
            evaluator.evaluate(sets)
        assert evaluator.evaluate(sets.withColumn("prediction", column)) == pytest.approx(value)
        cell("Evaluators", type(evaluator).__name__, told.format(line))

    inputs = keras.Input((2,))
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    both = KerasModel.from_keras(model).transform(answers.select("features", "label"))
    found = ev.RegressionEvaluator().evaluate(both.withColumn("prediction", f.col("prediction.b")))
    x = np.array([row.features for row in both.collect()])
    truth = np.array([row.label for row in both.collect()])
    guess = model.predict(x, verbose=0)["b"].ravel()
    assert found == pytest.approx(sk.mean_squared_error(truth, guess) ** 0.5, rel=1e-5)
    cell("Evaluators", "any, of one of several outputs",
         "different: `prediction` is a struct; `df.withColumn('prediction', f.col('prediction.b'))`")  # fmt: skip


# ---- tuners and pipelines


def line(rate=0.2):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def alone(rows, epochs):
    """Return the model of one process, trained on a DataFrame's rows as one batch."""
    model = line()
    x, y = (np.array([float(row[name]) for row in rows]) for name in ("x", "label"))
    model.fit(x[:, None], y, batch_size=len(x), epochs=epochs, verbose=0, shuffle=False)
    return model


def rmse(model, rows):
    x, y = (np.array([float(row[name]) for row in rows]) for name in ("x", "label"))
    return float(np.sqrt(np.mean((model.predict(x[:, None], verbose=0).ravel() - y) ** 2)))


def test_tuners(spark, tmp_path):
    data = spark.range(0, 24, 1, 2).selectExpr("id / 24 as x", "id / 12 + 1 as label", "int(id % 2) as fold").cache()
    est = KerasEstimator(line(), featuresCol="x", batchSize=4096, **QUIET)
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 4]).build()
    evaluator = ev.RegressionEvaluator(metricName="rmse")
    settings = {"estimator": est, "estimatorParamMaps": grid, "evaluator": evaluator}
    folds = [data.where(f"fold = {number}").collect() for number in (0, 1)]
    expected = [np.mean([rmse(alone(folds[1 - held], epochs), folds[held]) for held in (0, 1)]) for epochs in (1, 4)]
    found = CrossValidator(numFolds=2, foldCol="fold", parallelism=2, **settings).fit(data)
    assert found.avgMetrics == pytest.approx(expected, rel=1e-4)
    rows = data.collect()
    assert evaluator.evaluate(found.transform(data)) == pytest.approx(rmse(alone(rows, 4), rows), rel=1e-4)
    cell("Tuners and pipelines", "CrossValidator: avgMetrics, bestModel, foldCol, parallelism=2")
    found.write().overwrite().save(str(tmp_path / "validator"))
    again = CrossValidatorModel.load(str(tmp_path / "validator"))
    assert again.avgMetrics == found.avgMetrics
    assert sorted(again.transform(data).collect()) == sorted(found.transform(data).collect())
    cell("Tuners and pipelines", "CrossValidatorModel: save and load")

    split = TrainValidationSplit(trainRatio=0.7, seed=5, **{**settings, "estimatorParamMaps": grid[1:]}).fit(data)
    drawn = data.select("*", f.rand(5).alias("drawn")).collect()
    train, held = [row for row in drawn if row.drawn < 0.7], [row for row in drawn if row.drawn >= 0.7]
    assert split.validationMetrics == pytest.approx([rmse(alone(train, 4), held)], rel=1e-4)
    cell("Tuners and pipelines", "TrainValidationSplit: validationMetrics")

    words = data.withColumn("word", f.when(f.col("x") > 0.5, "b").otherwise("a"))
    stages = [
        StringIndexer(inputCol="word", outputCol="number"),
        VectorAssembler(inputCols=["x", "number"], outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features", withMean=True),
    ]
    prepared = Pipeline(stages=stages).fit(words).transform(words)
    two = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    two.compile(keras.optimizers.SGD(0.1), "mse")
    fitted = Pipeline(stages=[*stages, KerasEstimator(two, batchSize=4096, epochs=2, **QUIET)]).fit(words)
    x = np.array([row.features.toArray() for row in prepared.collect()])
    truth = np.array([row.label for row in prepared.collect()])
    two.fit(x, truth, batch_size=len(x), epochs=2, verbose=0)
    answers = [row.prediction for row in fitted.transform(words).collect()]
    assert answers == pytest.approx(two.predict(x, verbose=0).ravel().tolist(), rel=1e-4)
    cell("Tuners and pipelines", "Pipeline: StringIndexer, VectorAssembler, StandardScaler, KerasEstimator")
    fitted.save(str(tmp_path / "pipeline"))
    assert [
        row.prediction for row in PipelineModel.load(str(tmp_path / "pipeline")).transform(words).collect()
    ] == answers
    cell("Tuners and pipelines", "PipelineModel: save and load")

    kinds = words.withColumn("label", f.col("fold").cast("double")).withColumn(
        "features", array_to_vector(f.array("x"))
    )
    binary = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    binary.compile("sgd", "binary_crossentropy")
    rest = OneVsRest(classifier=KerasEstimator(binary, batchSize=4096, **QUIET))
    assert {row.prediction for row in rest.fit(kinds).transform(kinds).collect()} <= {0.0, 1.0}
    cell("Tuners and pipelines", "OneVsRest: a binary network for each class")


def test_the_page_is_what_the_cells_have_come_to():
    lines = []
    for group in dict.fromkeys(group for group, _ in CELLS):
        lines += [f"| {group} | |", "|---|---|"]
        lines += [f"| {name} | {verdict} |" for (of, name), verdict in CELLS.items() if of == group]
        lines += [""]
    counted = {
        kind: sum(each.startswith(kind) for each in CELLS.values()) for kind in ("equal", "refused", "different")
    }
    assert sum(counted.values()) == len(CELLS)
    equal, refused, different = counted.values()
    text = f"{equal} equal, {refused} refused by name, {different} different; none wrong.\n\n"
    page = PAGE.read_text()
    before, old, after = page.split(BEGIN)[0], page.split(BEGIN)[1].split(END)[0], page.split(END)[1]
    new = text + "\n".join(lines)
    if os.environ.get("TFOS_WRITE_TABLE"):
        PAGE.write_text(before + BEGIN + new + END + after)
    elif "TFOS_TEST_TURN" in os.environ:  # some of the tests before this one were left out
        assert set(lines) <= set(old.splitlines())
    else:
        assert old == new
