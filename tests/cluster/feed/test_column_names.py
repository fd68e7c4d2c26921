"""Columns whose names Spark reads as expressions: feeds, inference and the estimator."""

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.columns import quoted
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tests.support.column_names import NAMES, ROWS, expected, frame, summing

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


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
        cluster.train(data, cache=None)
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


@pytest.mark.slow
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
