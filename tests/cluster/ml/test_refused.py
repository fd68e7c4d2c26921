"""Columns that a model can't take."""

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import frames
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.networks import network

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def test_strings_where_a_model_takes_numbers_and_the_other_way_round(spark, tmp_path):
    data = spark.createDataFrame(
        [("a", "b", 1.0, ["a"], b"a")], "s string, t string, n float, ss array<string>, b binary"
    )
    data = data.withColumn("label", f.lit(1.0))
    network().export(str(tmp_path / "saved"), verbose=False)
    saved = KerasModel.from_saved_model(str(tmp_path / "saved"))
    refused = r"column '{}' holds strings or bytes, and the model's input 'in_{}' takes float32: index it"
    for stage, columns, told in [
        (KerasModel.from_keras(network()), ["s"], refused.format("s", 0)),
        (KerasModel.from_keras(network()), ["ss"], refused.format("ss", 0)),
        (KerasModel.from_keras(network(inputs=2)), ["n", "s"], refused.format("s", 1)),
        (saved, ["s"], "column 's' holds strings or bytes, and the model's input .* takes float32"),
        (KerasModel.from_keras(network("string")), ["n"], "column 'n' holds float32.* takes strings: cast it"),
    ]:
        with pytest.raises(tfos.SpecError, match=told):
            stage.setFeaturesCols(columns).transform(data)
    both = KerasModel.from_keras(network("string", inputs=2), featuresCols=["s", "t"]).transform(data)
    assert both.first().prediction == 3.0
    with pytest.raises(tfos.SpecError, match=refused.format("s", 0)):
        frames.map_blocks(network(), data, feed_dict={"in_0": "s"})
    quiet = {"clusterOptions": {"log_level": "ERROR"}}
    with pytest.raises(tfos.NodeError, match=refused.format("s", 0)):
        KerasEstimator(network, featuresCol="s", **quiet).fit(data)
    with pytest.raises(tfos.NodeError, match="label column 't' holds strings, of which no loss can be made"):
        KerasEstimator(network, featuresCol="n", labelCol="t", **quiet).fit(data)
