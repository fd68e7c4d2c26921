"""Models over DataFrames: what comes in, what comes out, and what is said of rows that don't fit."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.sent_models import SENT

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def doubling():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, name="twice")])
    model.set_weights([np.array([[2.0, 0.0], [0.0, 2.0]])])
    return model


def pairs(spark, rows=10, partitions=2):
    return spark.range(0, rows, 1, partitions).select(
        "id", f.array(f.col("id").cast("float"), f.lit(1.0).cast("float")).alias("features")
    )


def predictions(frame):
    return [row.prediction for row in frame.orderBy("id").collect()]


@pytest.mark.smoke
def test_from_memory_from_a_file_and_from_a_saved_model(spark, tmp_path):
    model, expected = doubling(), [[2.0 * number, 2.0] for number in range(10)]
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    stages = [
        KerasModel.from_keras(model),
        KerasModel.from_file(str(tmp_path / "model.keras")),
        KerasModel.from_saved_model(str(tmp_path / "saved")),
        KerasModel.from_function(lambda rows: rows * 2, {"twice": ("float32", (2,))}),
    ]
    for number, stage in enumerate(stages):
        assert predictions(stage.transform(pairs(spark))) == expected
        stage.save(str(tmp_path / f"stage-{number}"))
        assert predictions(KerasModel.load(str(tmp_path / f"stage-{number}")).transform(pairs(spark))) == expected
    with pytest.raises(tfos.SpecError, match=r"something at file:.*stage-0: write\(\)\.overwrite"):
        stage.save(str(tmp_path / "stage-0"))
    stage.write().overwrite().save(str(tmp_path / "stage-0"))
    assert KerasModel.load(str(tmp_path / "stage-0")).custom_code == ["function.pkl"]


@pytest.mark.parametrize("stage", [KerasModel, KerasEstimator])
def test_of_a_path_where_nothing_is_that_is_the_error(spark, tmp_path, stage):
    with pytest.raises(tfos.SpecError, match=r"/no-stage: there is nothing there$"):
        stage.load(str(tmp_path / "no-stage"))


def test_of_a_directory_without_a_stage_nothing_is_copied(spark, tmp_path, monkeypatch):
    """It may be a whole file system, by a slip of the pen."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_bytes(bytes(1000))
    copied, fetch = [], storage.fetch
    monkeypatch.setattr(storage, "fetch", lambda *paths: copied.append(fetch(*paths)))
    with pytest.raises(tfos.SpecError, match="data: there is no stage of this package"):
        KerasModel.load(str(tmp_path / "data"))
    assert set(copied) == {False}


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 1, None])
def test_batches_change_nothing(spark, size):
    stage = KerasModel.from_keras(doubling(), **({"inferenceBatchSize": size} if size else {}))
    assert predictions(stage.transform(pairs(spark, 101, 3))) == [[2.0 * number, 2.0] for number in range(101)]


@pytest.mark.slow
def test_logits_of_two_classes_and_of_more(spark):
    import keras

    two = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    two.set_weights([np.array([[1.0], [-2.0]])])
    two.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    row = KerasModel.from_keras(two).transform(pairs(spark).where("id = 3")).first()
    assert row.prediction == 1.0
    assert row.rawPrediction.toArray() == pytest.approx([-1, 1])
    assert row.probability.toArray() == pytest.approx([1 - 0.7310586, 0.7310586])
    other = KerasModel.from_keras(two, thresholds=[0.2, 0.9]).transform(pairs(spark).where("id = 3")).first()
    assert (other.prediction, other.probability) == (0.0, row.probability)
    with pytest.raises(tfos.SpecError, match=r"thresholds=\[1.0\]: expected 2 numbers"):
        KerasModel.from_keras(two, thresholds=[1.0]).transform(pairs(spark))
    more = doubling()
    more.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    stage = KerasModel.from_keras(more, rawPredictionCol="", probabilityCol="p", predictionCol="class")
    row = stage.transform(pairs(spark).where("id = 0")).first()
    assert row["class"] == 1.0
    assert row.p.toArray() == pytest.approx(np.exp([0, 2]) / np.exp([0, 2]).sum())
    assert "rawPrediction" not in row


def spoilt(spark):
    """Return rows of which the third is null, the fifth has a null in it, and the sixth is too short."""
    rows = [[float(number), 1.0] for number in range(8)]
    rows[2], rows[4], rows[5] = None, [1.0, None], [1.0]
    return spark.createDataFrame(list(enumerate(rows)), "id long, features array<float>").coalesce(1)


@pytest.mark.slow
def test_vectors_in_a_file_that_spark_reads_in_columnar_batches(spark, tmp_path):
    """Spark 4.2 and 4.3 give such batches to a Python function, and fail to convert the vectors beside it."""
    pairs(spark).withColumn("features", array_to_vector("features")).write.parquet(str(tmp_path / "rows"))
    stage = KerasModel.from_function(lambda rows: rows * 2, {"twice": ("float32", (2,))})
    row = stage.transform(spark.read.parquet(str(tmp_path / "rows"))).where("id = 3").first()
    assert (row.features.toArray().tolist(), row.prediction) == ([3.0, 1.0], [6.0, 2.0])


@pytest.mark.smoke
def test_rows_that_dont_fit_are_named_left_out_or_null(spark):
    data = spoilt(spark)
    stage = KerasModel.from_keras(doubling())
    with pytest.raises(
        Exception, match=r"column 'features' holds 2 nulls, the first in row 2 of partition 0.*handleInvalid"
    ) as caught:
        stage.transform(data).collect()
    assert str(caught.value).count('  File "') == 1
    with pytest.raises(Exception, match=r"column 'features'.*row 1 of partition 0"):
        stage.transform(data.where("id in (1, 5)")).collect()
    kept = predictions(stage.setHandleInvalid("keep").transform(data))
    assert kept == [[0.0, 2.0], [2.0, 2.0], None, [6.0, 2.0], None, None, [12.0, 2.0], [14.0, 2.0]]
    assert predictions(stage.setHandleInvalid("skip").transform(data)) == [each for each in kept if each is not None]
    none_left = stage.transform(data.where("id = 2"))
    assert none_left.count() == 0


def test_an_integer_that_the_input_cannot_hold_is_shown_with_its_column(spark):
    import keras

    stage = KerasModel.from_keras(keras.Sequential([keras.Input((1,), dtype="int16"), keras.layers.Rescaling(2.0)]))
    users = spark.range(65_533, 65_538, 1, 1).withColumnRenamed("id", "user")
    with pytest.raises(PythonException, match=r"(?s)column .*'user.*does not fit into int16.*such values:.*65533"):
        stage.setFeaturesCol("user").transform(users).collect()


def test_integers_that_no_double_holds_come_back_exactly(spark):
    large = spark.range(2**53, 2**53 + 4, 1, 2).withColumn("features", f.col("id"))
    found = KerasModel.from_function(lambda ids: ids, {"same": ("int64", ())}).transform(large)
    assert found.schema["prediction"].dataType.simpleString() == "bigint"
    assert [row.prediction - row.id for row in found.collect()] == [0] * 4


def test_the_files_of_models_are_sparks_to_remove(spark, tmp_path, monkeypatch):
    """A driver that is ended by a signal removes nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stage = KerasModel.from_keras(doubling())
    stage.transform(pairs(spark)).collect()
    assert not list(tmp_path.iterdir())
    *_, newest = SENT._kept.values()
    assert Path(newest._path).exists()
    assert Path(newest._path).is_relative_to(spark.sparkContext._temp_dir)


def test_the_model_is_read_once_by_each_worker(spark, tmp_path):
    marker = str(tmp_path / "reads")

    class Counting:
        def __reduce__(self):
            def read(path):
                with open(path, "a") as file:
                    file.write(f"{__import__('os').getpid()}\n")
                return lambda rows: rows

            return read, (marker,)

    stage = KerasModel.from_function(Counting(), {"same": ("float32", (2,))})
    for _ in range(2):
        assert len(stage.transform(pairs(spark, 40, 8)).collect()) == 40
    readers = (tmp_path / "reads").read_text().split()
    # One for each slot and job, at most: the workers of the first job may not be free yet when the second one begins.
    assert len(readers) == len(set(readers)) <= 8


@pytest.mark.slow
def test_older_sparks_get_the_same_by_whole_rows(spark, monkeypatch):
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    stage = KerasModel.from_keras(doubling())
    assert predictions(stage.transform(pairs(spark))) == [[2.0 * number, 2.0] for number in range(10)]
    data = spoilt(spark)
    with pytest.raises(Exception, match=r"first in row 2 of partition 0"):
        stage.transform(data).collect()
    assert len(predictions(stage.setHandleInvalid("keep").transform(data))) == 8
    assert len(predictions(stage.setHandleInvalid("skip").transform(data))) == 5


def test_what_cant_be_transformed_is_refused(spark):
    stage = KerasModel.from_keras(doubling())
    with pytest.raises(tfos.SpecError, match=r"no column 'features'; it has .* is set with featuresCol\)"):
        stage.transform(spark.range(3))
    with pytest.raises(tfos.SpecError, match="has a column 'prediction' already"):
        stage.transform(pairs(spark).withColumn("prediction", f.lit(1)))
    with pytest.raises(tfos.SpecError, match="no layer 'thrice'; the model has"):
        stage.layer_outputs(["thrice"])
    with pytest.raises(tfos.SpecError, match="has no history"):
        _ = stage.summary
    with pytest.raises(tfos.SpecError, match="no model"):
        KerasModel().transform(pairs(spark))


@pytest.mark.masters("local")
def test_a_directory_in_place_of_a_file_is_refused_with_what_takes_it(spark, tmp_path):
    with pytest.raises(tfos.SpecError, match=r"is a directory: KerasModel\.from_saved_model takes a SavedModel"):
        KerasModel.from_file(str(tmp_path))


@pytest.mark.smoke
def test_no_column_of_the_user_is_overwritten(spark):
    data = pairs(spark, 4).withColumn("TensorFlowOnSpark_results", f.lit("mine"))
    data = data.withColumn("tensorflowonspark_results_", f.lit("too"))
    found = KerasModel.from_function(lambda rows: rows * 2, {"twice": ("float32", (2,))}).transform(data)
    assert found.columns == [*data.columns, "prediction"]
    for row in found.collect():
        assert (row[2], row[3], row.prediction) == ("mine", "too", [row.id * 2.0, 2.0])
