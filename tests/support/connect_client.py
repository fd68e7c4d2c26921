"""What a user does over Spark Connect, as a program of its own: ``connect_client.py ADDRESS DIRECTORY``."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import optuna
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from standard_mode import standard_session  # beside this script

import tensorflowonspark as tfos
from tensorflowonspark import frames, storage

EPOCHS = 20


def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def two_kinds(spark):
    kind = (f.col("id") % 2).cast("int")
    x = f.array(kind.cast("float"), (1 - kind).cast("float"))
    return spark.range(0, 200, 1, 3).select("id", kind.alias("label"), x.alias("features"))


def verbs(data):
    mapped = frames.map_blocks(lambda label: {"twice": 2 * label}, data)
    assert [row.twice for row in mapped.orderBy("id").limit(4).collect()] == [0, 2, 0, 2]
    assert frames.reduce_rows(lambda id_1, id_2: np.maximum(id_1, id_2), data) == 199
    sums = frames.aggregate(lambda features: features.sum(axis=0), data.groupBy("label")).collect()
    assert {row.label: row.features for row in sums} == {0: [0.0, 100.0], 1: [100.0, 0.0]}
    assert frames.analyze(data).schema["features"].metadata == {"tensorflowonspark.shape": [2]}


def models_of_keys(data, directory):
    def train(label, rows):
        return build(), {"rows": len(rows["id"]), "sum": rows["features"].sum()}

    for _ in range(2):
        found = tfos.fit_each(data, "label", train, output=f"{directory}/each").orderBy("label").collect()
        assert [row.metrics for row in found] == [{"rows": 100.0, "sum": 100.0}] * 2
        assert all(row.model for row in found)


def stages(data, directory):
    estimator = tfos.ml.KerasEstimator(build, epochs=EPOCHS, batchSize=20, numWorkers=2, seed=1)
    fitted = Pipeline(stages=[estimator]).fit(data)
    answered = fitted.transform(data)
    assert answered.where("prediction = label").count() == 200
    assert len(fitted.stages[0].history["loss"]) == EPOCHS
    assert fitted.stages[0].summary.history(data.sparkSession).count() == EPOCHS
    fitted.write().overwrite().save(f"{directory}/pipeline")
    again = PipelineModel.load(f"{directory}/pipeline").transform(data)
    assert again.orderBy("id").collect() == answered.orderBy("id").collect()
    for _ in range(2):
        fitted.stages[0].write().overwrite().save(f"{directory}/model")
        estimator.write().overwrite().save(f"{directory}/estimator")
    assert tfos.ml.KerasEstimator.load(f"{directory}/estimator").getEpochs() == EPOCHS
    warm = tfos.ml.KerasModel.load(f"{directory}/model")
    assert estimator.fit(data, {estimator.initialModel: warm, estimator.epochs: 1}).history["accuracy"] == [1.0]


def records(data, directory):
    spark = data.sparkSession
    tfos.write_tfrecord(data, f"{directory}/records")
    assert tfos.read_tfrecord(spark, f"{directory}/records").where("label = 1").count() == 100
    tfos.register_tfrecord(spark)
    data.write.format("tfrecord").mode("append").save(f"{directory}/records")
    assert spark.read.format("tfrecord").load(f"{directory}/records").count() == 400


def functions_of_ones_own(spark, data):
    def count(args, ctx):
        rows = 0
        for batch in ctx.batches(16, features=["id"])():
            rows += int((~np.signbit(batch["sample_weight"])).sum())
        return args, rows

    found = tfos.run(spark, count, "this", data=data, num_workers=2)
    assert found == {"worker:0": ("this", 100), "worker:1": ("this", 100)}
    assert tfos.run(spark, count, "this", data=tfos.Data(data, start="first_rows"), num_workers=2) == found

    def manifest(args, ctx):
        ctx.feed()
        return ctx._record.manifest()

    described = tfos.run(spark, manifest, "secret", data=data, num_workers=2).chief
    assert described["versions"]["spark"] == spark.version
    assert "java" not in described["versions"]  # a client has none
    assert described["program"]["file"] == str(Path(__file__).resolve())
    assert (described["data"]["0"]["rows"], described["settings"]["num_workers"]) == (200, 2)
    assert "secret" not in str(described)

    def fail(args, ctx):
        if ctx.index == 1:
            raise ValueError("on purpose")
        time.sleep(100)

    with pytest.raises(tfos.NodeError, match="worker:1 on .*ValueError: on purpose"):
        tfos.run(spark, fail, num_workers=2)


def clusters(spark, data, directory):
    """A cluster that is fed twice and answers inference, with its output in files; and one that is restarted."""

    def program(args, ctx):
        rows = [
            {row for batch in feed.batches(16, features=["id"]) for row in batch["id"].tolist()}
            for _, feed in zip("ab", ctx.feeds(), strict=False)
        ]
        print("has read", *map(len, rows))
        ctx.serve(lambda label: label + 1)
        return rows

    with tfos.Cluster(spark, program, num_workers=2, logs=f"file://{directory}/logs") as cluster:
        cluster.train(data)
        cluster.train(data.where("label = 1"), cache=None)
        answers = cluster.inference(data.select("label"), "next int").collect()
        assert all(row.next == row.label + 1 for row in answers)
        assert cluster.metrics().state == "running"
        results = cluster.join()
    assert [len(set.union(*rows)) for rows in zip(*results.by_worker, strict=True)] == [200, 100]
    assert "has read" in Path(directory, "logs", "worker-0.log").read_text()

    def once(args, ctx):
        if not ctx.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.feed().rows

    with tfos.Cluster(spark, once, num_workers=2, restarts=1) as cluster:
        cluster.train(data)
        assert sum(cluster.join().by_worker) == 200


def scripts(spark, directory):
    path = Path(directory, "script.py")
    path.write_text("import sys; sys.exit(int(sys.argv[1]))")
    tfos.run_script(spark, path, ["0"])
    with pytest.raises(tfos.NodeError, match=r"called sys.exit\(7\)") as caught:
        tfos.run_script(spark, path, ["7"])
    assert caught.value.exit_code == 7
    with pytest.raises(tfos.SpecError, match="log_dir='logs': over Spark Connect .* leave this out"):
        tfos.run_script(spark, path, logs="logs")
    with pytest.raises(tfos.SpecError, match="breakpoints=True: over Spark Connect .* leave this out"):
        tfos.run_script(spark, path, nodes=tfos.Nodes(breakpoints=True))


def wait(spark, directory, how):
    """Run something long, which the test breaks off."""

    def long(args, ctx):
        Path(args).touch()
        time.sleep(100)

    if how == "run":
        tfos.run(spark, long, f"{directory}/begun", num_workers=2)
    else:
        with tfos.Cluster(spark, long, f"{directory}/begun", num_workers=2) as cluster:
            cluster.join()


def settings_of_file_systems(spark):
    """The session's own, and what the server was started with."""
    spark.conf.set("fs.defaultFS", "hdfs://set-by-the-client")
    storage.use({"fs.s3a.secret.key": "a secret"})
    known = storage.hadoop_settings(spark)
    assert known["fs.s3a.secret.key"] == "a secret"
    assert known["fs.s3a.endpoint"] == "set-by-the-server"
    assert "fs.s3a.session.token" not in known
    default = tfos.run(spark, lambda args, ctx: ctx.absolute_path("/data"), num_workers=1)
    assert default == {"worker:0": "hdfs://set-by-the-client/data"}


def scored_with_progress(spark):
    stage = tfos.ml.KerasModel.from_function(lambda x: x, {"y": ("float32", ())}, featuresCol="id")
    with stage.progress():
        stage.transform(spark.range(3))


def refusals(spark):
    """Return the error of each thing that Spark Connect can't do, by its name in docs/deploy/databricks.md."""

    def program(args, ctx):
        return None

    def objective(trial):
        return 0.0

    alone = tfos.RestartPolicy(scope="node")
    calls = {
        "`Cluster`: `dashboard`, `metrics_port`": lambda: tfos.Cluster(spark, program, dashboard=True),
        "`tune`": lambda: tfos.tune(spark, optuna.create_study(), objective),
        "`num_workers=(1, 2)`": lambda: tfos.run(spark, program, num_workers=(1, 2)),
        '`restarts=RestartPolicy(scope="node")`': lambda: tfos.run(spark, program, restarts=alone, num_workers=2),
        "`KerasModel.progress`": lambda: scored_with_progress(spark),
        "`run`: `logs`": lambda: tfos.run(spark, program, logs="logs"),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    _, address, directory, *rest = sys.argv
    spark = SparkSession.builder.remote(address).getOrCreate() if rest else standard_session(address)
    if rest[:1] == ["wait"]:
        wait(spark, directory, rest[1])
    if rest == ["settings"]:
        settings_of_file_systems(spark)
        sys.exit()
    data = two_kinds(spark)
    verbs(data)
    models_of_keys(data, directory)
    stages(data, directory)
    records(data, directory)
    functions_of_ones_own(spark, data)
    clusters(spark, data, directory)
    scripts(spark, directory)
    sys.stdout.write(f"refused: {json.dumps(refusals(spark))}\nall is well\n")
