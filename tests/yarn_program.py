"""A training on YARN from begin to end, on rows in HDFS: a test runs it as a process, and reads what it prints."""

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
    history = model.fit(ctx.dataset(32, features="features", label="label"), epochs=5, verbose=0)
    ctx.export(model, ctx.absolute_path("model"))
    return {"accuracy": history.history["accuracy"][-1], "rows": ctx.feed().rows, "model": ctx.absolute_path("model")}


def end_with_the_test():
    sys.stdin.read()
    os._exit(1)


def main(directory):
    Thread(target=end_with_the_test, daemon=True).start()
    spark = SparkSession.builder.getOrCreate()
    points = spark.range(0, 1000, 1, 4).select(f.sin("id").alias("x"), f.cos(f.col("id") * 2).alias("y"))
    points.withColumn("label", (f.col("x") > f.col("y")).cast("float")).write.parquet(f"{directory}/points")
    features = f.array("x", "y").cast("array<float>").alias("features")
    rows = spark.read.parquet(f"{directory}/points").select(features, "label")
    results = tfos.run(spark, train, data=rows, workers=2)
    print(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
