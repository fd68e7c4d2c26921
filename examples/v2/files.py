"""Training on files: each node reads its own TFRecords with ``tf.data``, and Spark only starts the nodes.

The files are written first, by Spark. Each node takes every n-th of them, so TensorFlow must not divide them once more.

    spark-submit --master spark://... files.py --cluster_size 2 --tfrecords digits_tfrecords --model_dir digits_run
"""

import argparse
import os

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from tensorflowonspark import TFCluster, dfutil


def main_fun(args, ctx):
    """Train with the other nodes on the files of this one; the chief keeps the weights and the accuracy."""
    import tensorflow as tf

    from tensorflowonspark import TFNode, compat

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # the first thing that TensorFlow is told

    def parse(record):
        features = {"image": tf.io.FixedLenFeature([64], tf.float32), "digit": tf.io.FixedLenFeature([], tf.int64)}
        example = tf.io.parse_single_example(record, features)
        return example["image"] / 16, example["digit"]

    pattern = TFNode.hdfs_path(ctx, args.tfrecords) + "/part-*"
    files = tf.data.Dataset.list_files(pattern, shuffle=False).shard(ctx.num_workers, ctx.worker_num)
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=4).map(parse)
    dataset = dataset.shuffle(1000, seed=1).repeat().batch(args.batch_size)
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    dataset = dataset.with_options(options)

    with strategy.scope():
        inputs = tf.keras.Input(shape=(64,))
        hidden = tf.keras.layers.Dense(64, activation="relu")(inputs)
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(10)(hidden))
        model.compile(
            optimizer=tf.keras.optimizers.Adam(learning_rate=0.005),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    steps_per_epoch = args.rows // args.batch_size
    history = model.fit(dataset, epochs=args.epochs, steps_per_epoch=steps_per_epoch, verbose=2)

    if ctx.job_name == "chief":
        model_dir = ctx.absolute_path(args.model_dir)
        tf.io.gfile.makedirs(model_dir)
        with tf.io.gfile.GFile(model_dir + "/accuracy.txt", "w") as result:
            result.write("{:.3f}\n".format(history.history["accuracy"][-1]))


def write_tfrecords(spark, directory, files):
    """Write the handwritten digits of scikit-learn as TFRecord files."""
    images, digits = load_digits(return_X_y=True)
    rows = list(zip(images.tolist(), digits.tolist(), strict=True))
    rdd = spark.sparkContext.parallelize(rows, files)
    dfutil.saveAsTFRecords(spark.createDataFrame(rdd, "image array<float>, digit long"), directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step over all nodes", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--epochs", help="number of epochs", type=int, default=8)
    parser.add_argument("--model_dir", help="where the result goes", default="digits_run")
    parser.add_argument("--rows", help="how many there are in the files", type=int, default=1797)
    parser.add_argument("--tensorboard", help="start a TensorBoard", action="store_true")
    parser.add_argument("--tfrecords", help="the files' directory; made if it is not there", default="digits_tfrecords")
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("files"))
    if not os.path.exists(args.tfrecords):
        write_tfrecords(SparkSession(sc), args.tfrecords, 2 * args.cluster_size)

    cluster = TFCluster.run(
        sc,
        main_fun,
        args,
        args.cluster_size,
        num_ps=0,
        tensorboard=args.tensorboard,
        input_mode=TFCluster.InputMode.TENSORFLOW,
        master_node="chief",
    )
    cluster.shutdown()

    print("accuracy:", sc.textFile(args.model_dir + "/accuracy.txt").first())
    sc.stop()
