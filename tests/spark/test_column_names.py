"""Columns whose names Spark reads as expressions: verbs, records and models."""

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.columns import quoted, select
from tensorflowonspark.frames import aggregate, analyze, append_shape, map_blocks, map_rows, print_schema, reduce_blocks
from tensorflowonspark.pipeline import TFModel
from tests.support.column_names import NAMES, ROWS, expected, frame, summing

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def test_one_function_quotes_and_names_are_exact(spark):
    data = frame(spark)
    for place, name in enumerate(NAMES):
        assert select(data, [name]).columns == [name]
        assert select(data, [name]).first()[0] == place
        if name.lower() != "v" and name:
            assert data.select(quoted(name)).columns == [name]


@pytest.mark.slow
def test_verbs(spark, capsys):
    import tensorflow as tf

    data = frame(spark)
    for name in NAMES:
        found = map_blocks(lambda x: {"y": x + 1}, data, feed_dict={"x": name}).where("y = 3").collect()
        assert [row[NAMES.index(name)] for row in found] == ([2.0] if NAMES.index(name) <= 2 else [])
    twice = map_rows(tf.function(lambda x: {"out.put": 2 * x}), data, feed_dict={"x": "a.b"})
    assert [row[-1] for row in twice.orderBy(quoted("a.b")).collect()] == [2 * each for each in expected()["a.b"]]
    assert map_blocks(lambda x: {"y": x[:1]}, data, feed_dict={"x": "V"}, trim=True).columns == ["y"]
    # Of a reduction, the parameters have the columns' names.
    assert reduce_blocks(lambda v: v.sum(), data) == sum(expected()["v"])
    assert reduce_blocks(tf.function(lambda v: tf.reduce_sum(v)), data) == sum(expected()["v"])
    keyed = frame(spark, ["k.y", "v"]).withColumn("k.y", f.col("`k.y`") % 2)
    groups = aggregate(lambda v: v.sum(), keyed.groupBy("`k.y`"))
    assert {tuple(row) for row in groups.collect()} == {(0.0, 144.0), (1.0, 156.0)}
    with pytest.raises(tfos.SpecError, match="make it a column first"):
        aggregate(lambda v: v.sum(), keyed.groupBy(f.col("`k.y`") + 1))
    nested = spark.createDataFrame([([1.0, 2.0],)], "`a.b` array<double>")
    print_schema(analyze(nested))
    print_schema(append_shape(nested, "a.b", [2]))
    assert capsys.readouterr().out.count("a.b: array<double> float64[2]") == 2


@pytest.mark.slow
def test_records(spark, tmp_path):
    data, path = frame(spark), str(tmp_path / "plain")
    tfos.write_tfrecord(data, path)
    again = tfos.read_tfrecord(spark, path)
    assert sorted(again.columns) == sorted(NAMES)
    assert sorted(row["a.b"] for row in again.collect()) == expected()["a.b"]
    assert tfos.read_tfrecord(spark, path, columns=["V"]).columns == ["V"]
    for number, name in enumerate(("a.b", "a,b", "x/y=z%", "*")):
        divided = str(tmp_path / f"divided-{number}")
        tfos.write_tfrecord(data.withColumn("kept", f.lit(1)), divided, partition_by=[name])
        found = tfos.read_tfrecord(spark, divided)
        assert sorted(row[name] for row in found.collect()) == expected()[name]
    if hasattr(tfos, "register_tfrecord"):
        tfos.register_tfrecord(spark)
        few = [name for name in NAMES if name not in ("", "v", "V")]
        data.select(*map(quoted, few)).write.format("tfrecord").mode("append").save(str(tmp_path / "source"))
        found = spark.read.format("tfrecord").load(str(tmp_path / "source"))
        assert sorted(found.columns) == sorted(few)
        assert sorted(row["a.b"] for row in found.collect()) == expected()["a.b"]


@pytest.mark.slow
def test_the_model_of_2x(spark, tmp_path):
    summing(2).export(str(tmp_path / "saved"), verbose=False)
    import tensorflow as tf

    (tensor,) = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"].structured_input_signature[1]
    data = frame(spark).select(f.array(quoted("a.b"), quoted("a b")).alias("fea.tu`res"))
    model = TFModel({}).setInputMapping({"fea.tu`res": tensor}).setOutputMapping({"output_0": "out.put"})
    model.setExportDir(str(tmp_path / "saved"))
    assert sorted(row[0][0] for row in model.transform(data).collect()) == [2.0 * row + 1 for row in range(ROWS)]
