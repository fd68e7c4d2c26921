"""Columns whose names Spark reads as expressions, on every path through the project."""

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.columns import quoted, select
from tensorflowonspark.frames import aggregate, analyze, append_shape, map_blocks, map_rows, print_schema, reduce_blocks
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.pipeline import TFModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]

# The last two differ in case only; and the first is no field of the struct `a`, which is there too.
NAMES = ["a.b", "a b", "a`b", "`q`", "*", "1st", "é", "a,b", "", "x/y=z%", "select", 'it\'s "it"', "v", "V"]
ROWS = 24


def frame(spark, names=NAMES, partitions=2):
    """Return rows in which the column in place n holds id + n."""
    columns = [(f.col("id") + place).cast("float").alias(name) for place, name in enumerate(names)]
    return spark.range(0, ROWS, 1, partitions).select(*columns)


def expected(names=NAMES):
    return {name: [float(row + place) for row in range(ROWS)] for place, name in enumerate(names)}


def test_one_function_quotes_and_names_are_exact(spark):
    data = frame(spark)
    for place, name in enumerate(NAMES):
        assert select(data, [name]).columns == [name]
        assert select(data, [name]).first()[0] == place
        if name.lower() != "v" and name:
            assert data.select(quoted(name)).columns == [name]


def test_feeds_and_inference(spark):
    def program(args, ctx):
        def answer(batch):
            return {"su.m": sum(np.asarray(batch[name], np.float64) for name in args)}

        seen = []
        for feed in ctx.feeds():
            rows = {name: [] for name in args}
            for part in (feed, feed.validation):
                for batch in part.batches(5, features=args)() if part is not None else ():
                    for name in args:
                        kept = ~np.signbit(batch["sample_weight"]) if "sample_weight" in batch else slice(None)
                        rows[name] += batch[name][kept].tolist()
            seen.append({name: sorted(values) for name, values in rows.items()})
            if len(seen) == 3:
                ctx.serve(answer)
                break
        return seen

    data, flag = frame(spark), "held.out"
    with tfos.Cluster(spark, program, NAMES) as cluster:
        cluster.train(data.withColumn(flag, f.col("1st") % 3 == 0), validation=flag)
        cluster.train(data, cache="none")
        cluster.train(data.where("`1st` < 9"), validation=data.where("`1st` >= 9"))
        answers = cluster.inference(data, "`su.m` double", keep=["a.b", "V"]).collect()
        assert sorted(row[2] for row in answers) == [sum(NAMES.index(n) + row for n in NAMES) for row in range(ROWS)]
        assert {row[1] - row[0] for row in answers} == {float(len(NAMES) - 1)}
        assert cluster.inference(data, "`su.m` double").columns == [*NAMES, "su.m"]
        (seen,) = cluster.shutdown().values()
    assert seen == [expected()] * 3
    (fed,) = tfos.run(spark, lambda args, ctx: sorted(ctx.feed().batches(50)().__next__()["a.b"].tolist()),
                      data=data.select("`a.b`")).values()  # fmt: skip
    assert set(expected()["a.b"]) <= set(fed)


def test_structs_stay_columns_by_their_fields(spark):
    data = spark.range(4).select(
        f.struct(f.col("id").alias("b"), f.struct(f.col("id").alias("c d")).alias("in")).alias("a")
    )

    def program(args, ctx):
        batch = next(ctx.feed().batches(4, features=["a.b", "a.in.c d"], shuffle=False)())
        return {name: batch[name].tolist() for name in ("a.b", "a.in.c d")}

    (fed,) = tfos.run(spark, program, data=data).values()
    assert fed == {"a.b": [0, 1, 2, 3], "a.in.c d": [0, 1, 2, 3]}
    with pytest.raises(tfos.FeedError, match="several columns of the name 'a.b'"):
        tfos.run(spark, program, data=data.withColumn("a.b", f.lit(1)))


@pytest.mark.slow
def test_a_streaming_frame(spark, tmp_path):
    def program(args, ctx):
        return sorted(row for batch in ctx.feed().batches(4)() for row in batch["a.b"].tolist())

    frame(spark, partitions=1).select("`a.b`").write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("`a.b` float").json(str(tmp_path / "in"))
    with tfos.Cluster(spark, program) as cluster:
        feed = cluster.train_stream(stream, trigger={"availableNow": True}, checkpoint=str(tmp_path / "state"))
        assert feed.wait(120)
        (rows,) = cluster.shutdown().values()
    assert set(rows) >= set(expected()["a.b"])


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
    if hasattr(tfos, "register"):
        tfos.register(spark)
        few = [name for name in NAMES if name not in ("", "v", "V")]
        data.select(*map(quoted, few)).write.format("tfrecord").mode("append").save(str(tmp_path / "source"))
        found = spark.read.format("tfrecord").load(str(tmp_path / "source"))
        assert sorted(found.columns) == sorted(few)
        assert sorted(row["a.b"] for row in found.collect()) == expected()["a.b"]


def summing(inputs):
    import keras

    model = keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def test_estimator_and_model(spark, monkeypatch):
    data = frame(spark)
    settings = {"featuresCols": NAMES[:-1], "labelCol": "V", "weightCol": "a.b", "predictionCol": "out.put"}
    est = KerasEstimator(lambda: summing(len(NAMES) - 1), clusterOptions={"log_level": "WARNING"}, **settings)
    totals = [sum(each) for each in zip(*(expected()[name] for name in NAMES[:-1]), strict=True)]
    for each in (est, est.copy({est.validationData: data, est.handleInvalid: "skip"})):
        fitted = each.fit(data)
        predicted = fitted.transform(data)
        assert predicted.columns == [*NAMES, "out.put"]
        assert sorted(row["out.put"] for row in predicted.collect()) == totals
    flagged = data.withColumn("is it?", f.col("1st") % 2 == 0)
    assert "val_loss" in est.copy({est.validationIndicatorCol: "is it?", est.weightCol: ""}).fit(flagged).history
    vectors = data.select(f.array(quoted("a.b"), quoted("a b")).alias("fea.tures"), f.lit(1.0).alias("validates"))
    stage = KerasModel.from_keras(summing(2), featuresCol="fea.tures")
    assert sorted(row.prediction for row in stage.transform(vectors).collect()) == [2.0 * r + 1 for r in range(ROWS)]
    monkeypatch.delattr(f, "arrow_udf", raising=False)
    assert sorted(row[-1] for row in fitted.transform(data).collect()) == totals
    monkeypatch.undo()
    double = data.toDF(*["same" if name in ("v", "V") else name for name in NAMES])
    assert stage.setFeaturesCols(["a.b", "a b"]).transform(double).count() == ROWS


def test_the_model_of_2x(spark, tmp_path):
    summing(2).export(str(tmp_path / "saved"), verbose=False)
    import tensorflow as tf

    (tensor,) = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"].structured_input_signature[1]
    data = frame(spark).select(f.array(quoted("a.b"), quoted("a b")).alias("fea.tu`res"))
    model = TFModel({}).setInputMapping({"fea.tu`res": tensor}).setOutputMapping({"output_0": "out.put"})
    model.setExportDir(str(tmp_path / "saved"))
    assert sorted(row[0][0] for row in model.transform(data).collect()) == [2.0 * row + 1 for row in range(ROWS)]
