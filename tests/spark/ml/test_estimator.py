"""DataFrames that the estimator refuses before it starts nodes."""

import keras
import pytest
import tf_keras
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, DoubleType, StructField, StructType

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.row_files import written_rows
from tests.support.lines import line, lines

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240), pytest.mark.smoke]


ROWS = [[1.0], None, [3.0], [4.0, 5.0], [None], [6.0]]


@pytest.mark.parametrize(
    ("model", "params", "left", "reason"),
    [
        (line(), {}, [1.0, 6.0], "column 'features' holds 1 null, the first in row 1 of partition 0"),
        (line, {}, [1.0, 4.0, 6.0], "'features' holds 1 null"),  # the driver does not know what it builds
        (line, {"shapes": {"features": (1,)}}, [1.0, 6.0], "'features' holds 1 null"),
        (
            line(),
            {"fill": {"features": 0.0, "label": 0.0}},
            [1.0, 0.0, 3.0, 0.0, 6.0],
            "2 values in each row, as in row 3",
        ),
        (line(), {"weightCol": "weight"}, [1.0], "'features' holds 1 null"),
    ],
)
def test_rows_that_cant_be_trained_on_are_left_out_and_counted(spark, caplog, model, params, left, reason):
    rows = [(x, None if n == 2 else 1.0, None if n == 5 else 1.0) for n, x in enumerate(ROWS)]
    data = spark.createDataFrame(rows, "features array<double>, label double, weight double").coalesce(1)
    est = KerasEstimator(model, handleInvalid="skip", **params)
    frame, _ = est._skip_invalid(*est._select_rows(data))
    assert [row.features and row.features[0] for row in frame.collect()] == [each or None for each in left]
    told = f"{6 - len(left)} of 6 rows are left out of training; of the first one, "
    assert told in caplog.text
    assert reason in caplog.text


def test_valid_rows_stay_as_they_are_and_some_must_be_left(spark):
    est = KerasEstimator(line(), handleInvalid="skip", validationIndicatorCol="held_out")
    rows = est._select_rows(lines(spark))
    assert est._skip_invalid(*rows) == rows
    nothing = lines(spark).withColumn("label", f.lit(None).cast("float"))
    with pytest.raises(
        tfos.SpecError, match="'skip' leaves none of the 64 rows; of the first one, column 'label' holds"
    ):
        est.fit(nothing)
    est.setParams(validationIndicatorCol=None, validationData=nothing)
    with pytest.raises(
        tfos.SpecError, match="leaves none of the 64 rows of validationData; of the first one, column 'la"
    ):
        est.fit(lines(spark))


def test_vectors_and_any_name_of_a_column_stay_what_they_are(spark):
    rows = [(Vectors.dense(1.0, 2.0), 1.0, True), (None, 1.0, False), (Vectors.sparse(2, {1: 3.0}), 0.0, False)]
    kinds = {"a.b c": VectorUDT(), "label": DoubleType(), "held": BooleanType()}
    data = spark.createDataFrame(rows, StructType([StructField(name, kind) for name, kind in kinds.items()]))
    est = KerasEstimator(line, featuresCol="a.b c", handleInvalid="skip", validationIndicatorCol="held")
    frame, _ = est._skip_invalid(*est._select_rows(data))
    assert frame.schema == data.schema
    assert [tuple(row) for row in frame.collect()] == [rows[0], rows[2]]


def compiled(loss):
    model = line()
    model.compile("adam", loss)  # Keras takes any name until the first step
    return model


def on_weight(width, units=1, **params):
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(units)])
    return {"model": model, "loss": "mse", "featuresCol": "weight", **params}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"labelCol": "digit"}, "the DataFrame has no column 'digit'; it has"),
        ({"labelCol": "labl"}, r"no column 'labl' \(did you mean 'label'\?\)"),
        ({"model": None}, "no model"),
        ({"model": "resnet"}, "expected a Keras model, or a function"),
        ({"validationIndicatorCol": "held_out", "validationData": True}, "not both"),
        ({"initialModel": 3}, "expected a fitted KerasModel"),
        ({"start": "first_rows", "cacheDir": "rows"}, "with cacheDir training begins when Spark has written all rows"),
        ({"model": line(), "loss": "mean_squared_eror"}, "has none of this name .did you mean 'mean_squared_error'"),
        ({"model": line(), "loss": {"y": "mse"}, "optimizer": "adm"}, r"optimizer='adm': .*did you mean 'adam'"),
        ({"model": line(), "metrics": ["acuracy"]}, r"metrics='acuracy': .*did you mean 'accuracy'"),
        ({"model": line(), "metrics": ["MeanIoU"]}, r"metrics='MeanIoU' needs arguments \(.*'num_classes'\)"),
        ({"model": line(), "metrics": ["recallatprecision"]}, r"metrics='recallatprecision': .*'RecallAtPrecision'"),
        ({"model": compiled("mean_squared_eror")}, "loss='mean_squared_eror': .*did you mean 'mean_squared_error'"),
        ({"model": compiled("mean_squared_eror"), "optimizer": "sgd"}, "loss='mean_squared_eror'"),
        ({"model": keras.Sequential()}, "the model is not compiled"),
        ({"model": tf_keras.Sequential(), "loss": ["hing"]}, r"loss='hing': .*did you mean 'hinge'"),
        ({"loss": "mean_squared_eror"}, "loss='mean_squared_eror': .*did you mean 'mean_squared_error'"),
        ({"optimizer": "adm"}, "optimizer='adm': .*did you mean 'adam'"),
        ({"initialModel": KerasModel.from_keras(line()), "loss": "mes"}, "loss='mes': Keras has none of this name"),
        (on_weight(4), "the model's input takes 4 numbers in each row, and the column 'weight' has one number"),
        (on_weight(3, featuresCols=["label", "weight"]), "takes 3 numbers in each row, and the columns 'label'"),
        (on_weight(1, 3, loss="categorical_crossentropy", labelCol="held_out"),
         "label column 'held_out' holds whole numbers: take loss='sparse_categorical_crossentropy'"),
        (on_weight(1, 3, loss="bce"), "'label' holds one number in each row, and the model's output has 3 units, each"),
    ],
)  # fmt: skip
def test_what_cant_be_fitted_is_refused_before_anything_starts(spark, params, told):
    data = lines(spark)
    if params.get("validationData"):
        params = {**params, "validationData": data}
    with pytest.raises(tfos.SpecError, match=told):
        KerasEstimator(**{"model": line, **params}).fit(data)


def test_params_of_the_cluster_and_the_model_are_saved(spark, tmp_path):
    params = {"numWorkers": (1, 2), "restarts": tfos.RestartPolicy(2), "gpusPerNode": 1, "env": {"A": "1"}}
    params |= {"modelParams": {"rate": 0.2}, "thresholds": [0.5, 0.5], "cacheDir": "/rows"}
    KerasEstimator(line, **params).save(str(tmp_path / "estimator"))
    again = KerasEstimator.load(str(tmp_path / "estimator"))
    assert {name: again.getOrDefault(name) for name in params} == params


def test_rows_that_can_not_be_written_to_a_cache_are_named_and_leave_nothing(spark, tmp_path):
    frame = spark.createDataFrame([(1.0, True), (2.0, None)], "x double, held_out boolean")
    with (
        pytest.raises(tfos.FeedError, match=r"Spark could not write the rows: .*the column 'held_out', .* is null"),
        written_rows(str(tmp_path), frame, "held_out"),
    ):
        pass
    assert not list(tmp_path.iterdir())
