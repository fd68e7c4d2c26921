"""Inference on files, in parallel: nodes that know nothing of each other apply one SavedModel, each to its own files.

Where there is no SavedModel yet, one node trains it first; where there are no TFRecords, Spark writes them.

    spark-submit --master spark://... parallel_inference.py --cluster_size 2 --output predictions
"""

import argparse
import os

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from tensorflowonspark import TFParallel, dfutil


def parse(records):
    """Return the images and the digits of a batch of serialized examples."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([64], tf.float32), "digit": tf.io.FixedLenFeature([], tf.int64)}
    examples = tf.io.parse_example(records, features)
    return examples["image"] / 16, examples["digit"]


def train(args, ctx):
    """Train a small model on all files, and export it."""
    import tensorflow as tf

    files = tf.data.Dataset.list_files(ctx.absolute_path(args.tfrecords) + "/part-*", shuffle=False)
    dataset = tf.data.TFRecordDataset(files).shuffle(2000, seed=1).batch(64).map(parse)
    model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=(64,))])
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(dataset, epochs=10, verbose=2)
    tf.saved_model.save(model, ctx.absolute_path(args.export_dir))


def infer(args, ctx):
    """Apply the SavedModel to every n-th file; write a line of digit and prediction for each record."""
    import tensorflow as tf

    predict = tf.saved_model.load(ctx.absolute_path(args.export_dir)).signatures["serving_default"]
    files = tf.data.Dataset.list_files(ctx.absolute_path(args.tfrecords) + "/part-*", shuffle=False)
    dataset = tf.data.TFRecordDataset(files.shard(ctx.num_workers, ctx.worker_num)).batch(128).map(parse)

    output = ctx.absolute_path(args.output)
    tf.io.gfile.makedirs(output)
    with tf.io.gfile.GFile(f"{output}/part-{ctx.worker_num:05d}", "w") as lines:
        for images, digits in dataset:
            (scores,) = predict(images).values()
            for digit, prediction in zip(digits.numpy(), scores.numpy().argmax(axis=1), strict=True):
                lines.write(f"{digit} {prediction}\n")


def write_tfrecords(spark, directory):
    """Write the handwritten digits of scikit-learn as TFRecord files."""
    images, digits = load_digits(return_X_y=True)
    rows = list(zip(images.tolist(), digits.tolist(), strict=True))
    dfutil.saveAsTFRecords(spark.createDataFrame(rows, ["image", "digit"]).repartition(4), directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--export_dir", help="the SavedModel; trained if it is not there", default="digits_parallel")
    parser.add_argument("--output", help="where the lines go", default="digits_predictions")
    parser.add_argument("--tfrecords", help="the files' directory; made if it is not there", default="digits_tfrecords")
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("parallel_inference"))
    if not os.path.exists(args.tfrecords):
        write_tfrecords(SparkSession(sc), args.tfrecords)
    if not os.path.exists(args.export_dir):
        TFParallel.run(sc, train, args, 1, use_barrier=False)

    TFParallel.run(sc, infer, args, args.cluster_size)

    lines = sc.textFile(args.output).map(str.split).collect()
    print("predictions:", len(lines))
    print(f"accuracy: {sum(digit == prediction for digit, prediction in lines) / len(lines):.3f}")
    sc.stop()
