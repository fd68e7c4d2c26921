"""What an estimator reports of models and columns that don't fit, once its nodes have started."""

import re

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


def network(width=2, units=2, activation="softmax", loss="sparse_categorical_crossentropy", **compiled):
    import keras

    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(units, activation)])
    model.compile("sgd", loss, **compiled)
    return model


def rows(spark):
    return spark.range(24).select(
        (f.col("id") / 24).alias("a"), f.lit(1.0).alias("b"), (f.col("id") % 3).cast("int").alias("three"),
        (f.col("id") % 2).alias("two"), f.array(f.lit(0.0), f.lit(1.0)).alias("one_hot"),
        f.when(f.col("id") % 8 == 0, f.lit(float("nan"))).otherwise(1.0).alias("hole"),
    )  # fmt: skip


CASES = {
    "wider": ({"width": 3}, {}, "the model's input takes 3 numbers in each row, and the columns 'a', 'b' have 2"),
    "one_hot": ({}, {"labelCol": "one_hot"}, "'one_hot' holds 2 numbers in each row, and sparse_categorical_cross"),
    "whole": ({"loss": "categorical_crossentropy"}, {}, "'two' holds whole numbers: take loss='sparse_cat"),
    "binary": ({"loss": "binary_crossentropy"}, {}, "has 2 units, each of which binary_crossentropy would compare"),
    "range": ({}, {"labelCol": "three"}, "label column 'three' has labels that are no class, and the model's output "
              "has 2 units: .*whole numbers from 0 to 1; the first such labels: 2"),
    "zero_one": ({"units": 1, "activation": "sigmoid", "loss": "bce"}, {"labelCol": "three"},
                 "'three' has labels outside of 0 to 1, and binary_crossentropy takes .*; the first such labels: 2"),
    "no_loss": ({"loss": None, "metrics": ["accuracy"]}, {}, "the model has no loss: set it on the estimator"),
    "dtype": ({}, {"dtypes": {"a": "flot"}}, r"the training raised FeedError: dtypes={'a': 'flot'}: expected the dtype "
              r"of a number, as in 'float32' or 'int64'\Z"),
    "nan": ({}, {"featuresCols": ["a", "hole"], "numWorkers": 2}, "the loss is NaN after epoch 1.*'hole' in . rows?:"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_each_mistake_is_named_in_few_lines(spark, case):
    arguments, params, told = CASES[case]
    est = KerasEstimator(network, modelParams=arguments, featuresCols=["a", "b"], labelCol="two", batchSize=8,
                         clusterOptions={"log_level": "WARNING"})  # fmt: skip
    with pytest.raises(tfos.NodeError) as caught:
        est.setParams(**params).fit(rows(spark))
    assert re.search(told, str(caught.value), re.DOTALL), str(caught.value)
    assert len(str(caught.value)) < 400
    assert not caught.value.traceback


def of_the_user(true, given):
    raise LookupError("no such loss")


@pytest.mark.slow
def test_of_the_users_own_code_the_frames_are_shown(spark):
    est = KerasEstimator(network, modelParams={"loss": of_the_user}, featuresCols=["a", "b"], labelCol="two")
    with pytest.raises(tfos.NodeError, match="the training raised LookupError: no such loss") as caught:
        est.fit(rows(spark))
    frames = [line for line in caught.value.traceback.splitlines() if line.startswith('  File "')]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["of_the_user"], caught.value.traceback
