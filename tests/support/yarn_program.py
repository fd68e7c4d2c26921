"""A training on YARN from begin to end, on records in HDFS: a test runs it as a process, and reads what it prints."""

import json
import os
import sys
from threading import Thread

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tensorflowonspark as tfos


def train(args, ctx):
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    feed = ctx.read_tfrecord(f"{args}/points")
    checkpoint = ctx.checkpoint(f"{args}/checkpoints")
    data = feed.dataset(32, features="features", label="label", shapes={"features": (2,)})
    history = model.fit(data, epochs=5, verbose=0, callbacks=[checkpoint.callback()])
    ctx.export(model, ctx.absolute_path("model"))
    return {
        "accuracy": history.history["accuracy"][-1],
        "rows": feed.rows,
        "epoch": checkpoint.latest().epoch,
        "model": ctx.absolute_path("model"),
    }


def end_with_the_test():
    sys.stdin.read()
    os._exit(1)


def main(directory):
    Thread(target=end_with_the_test, daemon=True).start()
    spark = SparkSession.builder.getOrCreate()
    points = spark.range(0, 1000, 1, 4).select(f.sin("id").alias("x"), f.cos(f.col("id") * 2).alias("y"))
    features = f.array("x", "y").cast("array<float>").alias("features")
    rows = points.select(features, (f.col("x") > f.col("y")).cast("float").alias("label"))
    tfos.register_tfrecord(spark)
    rows.write.format("tfrecord").mode("append").save(f"{directory}/points")
    assert spark.read.format("tfrecord").load(f"{directory}/points").count() == 1000
    results = tfos.run(spark, train, directory, num_workers=2)
    print(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
