"""Functions on DataFrames and models where Spark sends strings and binary in Arrow's large types."""

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import frames
from tensorflowonspark.ml import KerasModel

pytestmark = pytest.mark.masters("local")
SETTING = "spark.sql.execution.arrow.useLargeVarTypes"


@pytest.fixture
def words(spark):
    """Rows with each of the types that become large: alone, in arrays, in structs."""
    spark.conf.set(SETTING, "true")
    yield spark.range(0, 6, 1, 2).select(
        "id",
        f.expr("if(id % 2 = 0, 'even', 'odd')").alias("word"),
        f.expr("cast(id as string)").alias("digit"),
        f.expr("cast(cast(id as string) as binary)").alias("bytes"),
        f.expr("array('a', cast(id as string))").alias("many"),
        f.expr("named_struct('text', cast(id as string))").alias("s"),
    )
    spark.conf.unset(SETTING)


def length(digit, many):
    return {"text": np.array([f"{one}{len(row)}" for one, row in zip(digit, many, strict=True)], object)}


def test_groups_with_keys_of_strings(words):
    data = words.withColumn("x", f.col("id").cast("double"))
    for grouped, keys in (
        (data.groupBy("word"), ["even", "odd"]),
        (data.groupBy(f.col("word").cast("binary").alias("key")), [b"even", b"odd"]),
    ):
        found = sorted(frames.aggregate(lambda x: x.sum(), grouped).collect())
        assert [tuple(row) for row in found] == list(zip(keys, [6.0, 9.0], strict=True))
    longest = frames.aggregate(lambda digit: max(digit), data.groupBy("id")).orderBy("id").collect()
    assert [row.digit for row in longest] == list("012345")


@pytest.mark.slow
def test_maps_reductions_models_and_layers(spark, words, tmp_path):
    import keras
    import tensorflow as tf

    expected = [f"{number}2" for number in range(6)]
    assert [row.text for row in frames.map_blocks(length, frames.analyze(words)).orderBy("id").collect()] == expected
    one = frames.map_rows(lambda bytes: {"same": bytes}, words)  # noqa: A006 - a column's name
    assert [bytes(row.same).decode() for row in one.orderBy("id").collect()] == list("012345")
    graph = tf.function(lambda digit: {"twice": digit + digit})
    assert [bytes(row.twice).decode() for row in frames.map_blocks(graph, words).orderBy("id").collect()][5] == "55"
    trimmed = frames.map_blocks(lambda digit: {"first": digit[:1]}, words.coalesce(1), trim=True)
    assert [row.first for row in trimmed.collect()] == ["0"]
    assert frames.reduce_blocks(lambda digit: max(digit), words) == "5"
    assert frames.reduce_rows(lambda digit_1, digit_2: max(digit_1, digit_2), words) == "5"
    outputs = {"a": ("str", ()), "b": ("string", (2,))}
    stage = KerasModel.from_function(
        lambda columns: {"a": columns["digit"], "b": [[each] * 2 for each in columns["bytes"]]},
        outputs,
        featuresCols=["digit", "bytes"],
    )
    rows = stage.transform(words).orderBy("id").collect()
    assert [(row.prediction.a, bytes(row.prediction.b[1])) for row in rows][3] == ("3", b"3")
    lookup = tfos.adapt(keras.layers.StringLookup(), words, "many")
    assert sorted(lookup.get_vocabulary()) == sorted(["[UNK]", "a", *"012345"])
    tfos.write_tfrecord(words.drop("s"), str(tmp_path / "records"))
    assert sorted(row.digit for row in tfos.read_tfrecord(spark, str(tmp_path / "records")).collect()) == list("012345")
